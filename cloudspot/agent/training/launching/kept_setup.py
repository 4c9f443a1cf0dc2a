"""The setup in a disk image: run once to make the image, then used by machines with the image."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.node import Node
from cloudspot.agent.node_context import Job, NodeContext
from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.decoding import decode
from cloudspot.errors import BundleError, CloudspotError, SpecError
from cloudspot.host.partial_files import partial_directory, write_whole
from cloudspot.jobfile.setup_key import setup_key
from cloudspot.jobstore.code.extraction import (
    MAX_EXTRACTED_BYTES,
    bundle_digests,
    digest_of,
    extract_bundle,
    link_digest,
)
from cloudspot.jobstore.jobs.submission import code_key
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import SetupReady

_log = logging.getLogger(__name__)

WAIT_SECONDS = 2 * 3600.0
"""How long a machine waits until its image is made; clouds may take most of an hour to copy a large disk."""


class KeptSetup(msgspec.Struct, frozen=True, kw_only=True):
    """``image.json``: the setup on the disk, and the code with which it was run."""

    key: str
    code: dict[str, str]
    """The digests of the code's files by name: see ``bundle_digests``."""


def find_kept(node: Node, job: Job, data: bytes) -> str | None:
    """Add the code to the setup in the machine's image, and return the setup's key.

    Return None if the image has no setup or a different one; then the caller must extract the code and run
    the setup.

    Raises:
        BundleError, CorruptData: ``data`` is not the job's code.
    """
    try:
        kept: KeptSetup = decode(node.baked.read_bytes(), KeptSetup)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("the record of the image's setup cannot be read: %s", error)
        return None
    code = _code(job, data)
    if _key_of(node, job, code) != kept.key:
        _log.info("the image holds another setup, so this job's setup is run")
        return None
    if not _replace_code(node.work, kept.code, code, data, job.submission.code_sha256):
        return None
    _log.info("the image holds this job's setup, so the setup is not run again")
    return kept.key


def bake(context: NodeContext, runtime: Runtime) -> NoReturn:
    """Keep the finished setup on the disk, and wait until an image of the disk is made.

    Raises:
        LeavingError: the node was ordered to leave, which normally ends the wait, or no image was made in
            time.
    """
    node, job = context.node, context.job
    code = _code(job, context.retry_until(lambda: context.store.get(code_key(job.submission))))
    key = _key_of(node, job, code)
    try:
        runtime.keep(key)
        context.memory.kept_setup = key
        context.memory.save(node)
        write_whole(node.baked, msgspec.json.encode(KeptSetup(key=key, code=code)))
    except (CloudspotError, OSError) as error:
        raise LeavingError(Leaving("failed", str(error), exit_code=1, permanent=True)) from error
    os.sync()
    ready = SetupReady(instance_id=job.identity.instance_id, key=key, at=context.now())
    context.retry_until(lambda: context.store.put(keys.setup_ready(context.job_id), codec.encode(ready)))
    _log.info("the setup is done and on the disk: waiting until an image of it is made")
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        context.obey()
        context.orders.wait(0.5)
    detail = f"no image of this machine was made within {WAIT_SECONDS / 3600:g} hours"
    raise LeavingError(Leaving("failed", detail, exit_code=1, permanent=True))


def _code(job: Job, data: bytes) -> dict[str, str]:
    return dict(bundle_digests(data, sha256=job.submission.code_sha256))


def _key_of(node: Node, job: Job, code: dict[str, str]) -> str:
    try:
        return setup_key(job.spec.run, train_python=node.train_python, digests=code.items())
    except SpecError as error:
        raise BundleError(str(error)) from error


def _replace_code(work: Path, old: dict[str, str], new: dict[str, str], data: bytes, sha256: str) -> bool:
    """Replace the changed files of the code, and keep the files that the setup created.

    Do nothing and return False if the setup changed one of these files, or created a file at a path of the
    new code: then the setup must be run with the new code.
    """
    gone = [name for name, digest in old.items() if new.get(name) != digest]
    come = [name for name, digest in new.items() if old.get(name) != digest]
    spoilt = next((name for name in gone if _digest(work / name) != old[name]), None)
    taken = next((name for name in come if name not in old and _is_taken(work, name)), None)
    if spoilt is not None or taken is not None:
        _log.info("the setup is run again because both it and the new code change %s", spoilt or taken)
        return False
    with partial_directory(work.parent) as fresh:
        extract_bundle(data, fresh / "code", sha256=sha256)
        for name in gone:
            (work / name).unlink()
            _remove_empty(work, (work / name).parent)
        for name in come:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(fresh / "code" / name, work / name)
    return True


def _digest(path: Path) -> str | None:
    """Return the digest of a file or symlink, or None for any other path."""
    if path.is_symlink():
        return link_digest(str(path.readlink()))
    if not path.is_file() or path.stat().st_size > MAX_EXTRACTED_BYTES:  # larger than any code
        return None
    return digest_of(path.read_bytes(), bool(path.stat().st_mode & 0o100))


def _remove_empty(work: Path, directory: Path) -> None:
    """Remove the directory and its parents as long as they are empty, to make room for other files."""
    while directory != work and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent


def _is_taken(work: Path, name: str) -> bool:
    """Return whether the name exists, or one of its parents is not a directory."""
    parents = [work / parent for parent in Path(name).parents]
    on_the_way = any(os.path.lexists(one) and (one.is_symlink() or not one.is_dir()) for one in parents)
    return on_the_way or os.path.lexists(work / name)
