"""Runs a command of cloudspot while its plugins' requests are recorded: ``python -m cloudspot_prove.recorded``.

Which recording it writes to stands in the environment. Without that, it is the command alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from cloudspot.decoding import decode
from cloudspot.plugin.apirecording import observe
from cloudspot_prove.clouds import cloud_of
from cloudspot_prove.masking import Mask
from cloudspot_prove.recording import Recorder

VARIABLE: Final = "CLOUDSPOT_PROVE_RECORDING"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a process records, and where."""

    provider: str
    directory: str
    """It takes a file for each process."""
    key: str
    """The pseudonyms' key, in hex digits."""
    step: str
    began: float
    """The run's beginning by ``time.time()``."""


def begin(assignment: Assignment) -> Recorder:
    """Record what this process asks from now on, and return the recorder."""
    cloud = cloud_of(assignment.provider)
    path = Path(assignment.directory) / f"{assignment.step}-{os.getpid()}.jsonl"
    mask = Mask(bytes.fromhex(assignment.key), cloud.allowed())
    recorder = Recorder(path, mask, step=assignment.step, began=assignment.began, left_out=cloud.left_out)
    observe(recorder)
    return recorder


def main() -> None:
    """Run ``cloudspot`` with the arguments of this process."""
    # What it starts in turn, such as a notifier, is no business of the recording.
    text = os.environ.pop(VARIABLE, None)
    if text is not None:
        begin(decode(text, Assignment))
    from cloudspot.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
