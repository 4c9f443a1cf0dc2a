"""Exports a checkpoint: its weights for safetensors or torch, or the directory that the script wrote."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloudspot import __version__
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.disk.partial_files import partial_directory
from cloudspot.errors import CloudspotError, CorruptData, SpecError
from cloudspot.jobstore import keys
from cloudspot.jobstore.fetching import fetch
from cloudspot.jobstore.records import Commit
from cloudspot.jobstore.safetensors import num_bytes_read, write_safetensors
from cloudspot.jobstore.tensors import Selection, choose, shared_state

SAFETENSORS, TORCH = ".safetensors", ".pt"


def export_checkpoint(
    job: Job, commit: Commit, target: Path, *, only: str | None, whole: bool
) -> dict[str, Any]:
    """Write the checkpoint to ``target``, whole or not at all, and return what ``--json`` prints.

    Raises:
        SpecError: the suffix of ``target`` does not fit the checkpoint.
        CloudspotError: the checkpoint has no such object, the file format cannot hold it, the disk refuses,
            or torch is missing.
        CorruptData: a chunk is missing or changed; nothing was written.
    """
    if not target.parent.is_dir():
        raise SpecError(f"--to: there is no directory {target.parent}")
    size, tensors, left_out = commit.size, None, []
    if commit.kind == "directory":
        if only is not None or whole or target.suffix in (SAFETENSORS, TORCH):
            raise SpecError(
                f"checkpoint {commit.id} is a directory that the script wrote itself: give only --to DIR"
            )
        _export_directory(job, commit, target)
    elif target.suffix not in (SAFETENSORS, TORCH):
        raise SpecError(f"--to must end with {SAFETENSORS} or {TORCH}: got {str(target)!r}")
    else:
        selection = choose(commit, only=only, whole=whole)
        tensors = len(selection.tensors)
        if target.suffix == TORCH:
            _export_torch(job, commit, selection, target, nested=whole or len(selection.objects) > 1)
            size = target.stat().st_size
        else:
            chosen, metadata = selection.tensors, _metadata(job, commit, whole=whole)
            with transfer("exporting", num_bytes_read(job.id, commit, chosen)) as advance:
                size = write_safetensors(
                    job.store, job.id, commit, chosen, target, metadata=metadata, progress=advance
                )
            left_out = list(selection.left_out)
    return {
        "file": str(target),
        "bytes": size,
        "checkpoint": str(commit.id),
        "step": commit.step,
        "tensors": tensors,
        "left_out": left_out,
    }


def _metadata(job: Job, commit: Commit, *, whole: bool) -> dict[str, str]:
    metadata = {
        "format": "pt",  # transformers refuses a file without it
        "job": job.id,
        "checkpoint": str(commit.id),
        "step": str(commit.step),
        "source": f"{job.store.url.rstrip('/')}/{keys.commit(job.id, commit.generation, commit.step)}",
        "cloudspot": __version__,
    }
    return metadata | ({"state": json.dumps(shared_state(commit))} if whole else {})


def _export_torch(job: Job, commit: Commit, selection: Selection, target: Path, *, nested: bool) -> None:
    if importlib.util.find_spec("torch") is None:
        raise CloudspotError(
            f"a {TORCH} file needs torch here; run: pip install torch (or export to {SAFETENSORS}, which "
            "does not need it)"
        )
    from cloudspot.train.errors import CheckpointError
    from cloudspot.train.torchfile import write_torch_file

    with _beside(target) as scratch:
        _fetch(job, commit, scratch / "state")
        try:
            write_torch_file(scratch / "state", scratch / "file", objects=selection.objects, nested=nested)
        except CheckpointError as error:
            raise CorruptData(f"checkpoint {commit.id}: {error}") from error
        (scratch / "file").replace(target)


def _export_directory(job: Job, commit: Commit, target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CloudspotError(f"--to: {target} exists already; remove it first or name another")
    names = {part.directory or "" for part in commit.parts}
    with _beside(target) as scratch:
        _fetch(job, commit, scratch)
        # Usually there is one. If nodes named different directories, each goes below the target.
        source = scratch / names.pop() if len(names) == 1 else scratch
        source.replace(target)


def _fetch(job: Job, commit: Commit, directory: Path) -> None:
    with transfer("downloading the checkpoint", commit.size) as advance:
        fetch(job.store, job.id, commit, directory, progress=advance)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a directory on the target's file system, removed at the end; the disk's errors are ours."""
    try:
        with partial_directory(target.parent) as scratch:
            yield scratch
    except OSError as error:
        raise CloudspotError(f"cannot write {target}: {error.strerror or error}") from error
