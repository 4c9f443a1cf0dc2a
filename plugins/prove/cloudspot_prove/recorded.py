"""Runs a cloudspot command, and records its plugins' requests: ``python -m cloudspot_prove.recorded``.

An environment variable states which recording it writes. Without the variable, nothing is recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from cloudspot.decoding import decode
from cloudspot.host.partial_files import write_whole
from cloudspot.plugin.apirecording import observe
from cloudspot_prove.clouds import cloud_of
from cloudspot_prove.masking import Mask
from cloudspot_prove.recording import Recorder

VARIABLE: Final = "CLOUDSPOT_PROVE_RECORDING"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The recording that a process makes."""

    provider: str
    directory: str
    """The directory gets one file for each process."""
    key: str
    """The pseudonyms' key, in hex digits."""
    step: str
    began: float
    """The run's beginning by ``time.time()``."""


def begin(assignment: Assignment) -> Recorder:
    """Record all requests that this process makes from now on, and return the recorder."""
    cloud = cloud_of(assignment.provider)
    path = Path(assignment.directory) / f"{assignment.step}-{os.getpid()}.jsonl"
    allowed = cloud.allowed()
    kept = Path(assignment.directory).parent
    allowed = msgspec.structs.replace(
        allowed, names=_kept(kept, "names", allowed.names), texts=_kept(kept, "words", allowed.texts)
    )
    mask = Mask(bytes.fromhex(assignment.key), allowed)
    recorder = Recorder(path, mask, step=assignment.step, began=assignment.began, left_out=cloud.left_out)
    observe(recorder)
    return recorder


def _kept(
    directory: Path, kind: str, find: Callable[[str], frozenset[str]]
) -> Callable[[str], frozenset[str]]:
    """Return ``find`` with its results cached in files: reading an SDK's models takes a second or more."""

    @cache
    def look(service: str) -> frozenset[str]:
        path = directory / f"{kind}-{service}.json"
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return frozenset(decode(path.read_bytes(), list[str]))
        found = find(service)
        write_whole(path, msgspec.json.encode(sorted(found)), mode=0o600)
        return found

    return look


def main() -> None:
    """Run ``cloudspot`` with the arguments of this process."""
    # Programs that the command starts, such as a notifier, are not recorded.
    text = os.environ.pop(VARIABLE, None)
    if text is not None:
        begin(decode(text, Assignment))
    from cloudspot.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
