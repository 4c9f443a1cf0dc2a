"""TensorBoard: steps that are made again replace their earlier values."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cloudspot.calls import TrackingRequest
from cloudspot.interfaces import Tracker

EVENTS = "events.out.tfevents."
"""The beginning of the names of TensorBoard's files."""
OWN_DIRECTORY = "tensorboard"
"""The directory of artifacts with the files of ``run.log()``, in which each step already appears only once.
"""
MARK_SECONDS = 180.0
_OWN = ".cloudspot-"
"""The text between an event file's name and a generation in the name of a restart mark."""
_MARK = """
import json
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
for path, step, at in json.loads({marks!r}):
    with open(path, "wb") as file:
        records = RecordWriter(file)
        records.write(Event(wall_time=at, step=step, file_version="brain.Event:2").SerializeToString())
        started = SessionLog(status=SessionLog.START)
        records.write(Event(wall_time=at, step=step, session_log=started).SerializeToString())
        records.flush()
"""


class TensorBoardTracker(Tracker):
    """Marks a restart, at the step from which a session resumes, beside the existing event files.

    The mark is that of ``SummaryWriter(purge_step=...)``, at which readers drop all values that were logged
    at that step or later. The mark is in a file of its own, which readers read after the earlier files and
    before the next.

    Source: ``torch.utils.tensorboard.writer.FileWriter`` and ``SummaryWriter`` (torch 2.13),
    ``tensorboard.backend.event_processing.event_accumulator`` (tensorboard 2.21, checked 2026-11).
    """

    name = "tensorboard"

    def variables(self, request: TrackingRequest) -> Mapping[int, Mapping[str, str]]:
        """Mark the restart; ranks need no variables."""
        step, now = request.step, time.time()
        if step is not None:
            suffix = f"{_OWN}{request.generation:06d}"
            marks = [(f"{newest}{suffix}", step, now) for newest in newest_files(request)]
            if marks:
                request.run_python(_MARK.format(marks=json.dumps(marks)), MARK_SECONDS)
        return {}


def newest_files(request: TrackingRequest) -> Iterator[Path]:
    """Yield the newest event file of each directory in the working directory and the artifacts.

    The names begin with the time, so a name with a suffix sorts after the original and before the next one.
    """
    for root in (request.work, request.artifacts):
        for parent, directories, names in os.walk(root):
            directories[:] = [one for one in directories if not one.startswith(".")]
            here = Path(parent)
            events = [one for one in names if one.startswith(EVENTS) and _OWN not in one]
            if events and here != request.artifacts / OWN_DIRECTORY:
                yield here / max(events)
