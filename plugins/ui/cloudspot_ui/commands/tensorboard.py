"""``cloudspot tensorboard``: show jobs that may still be running in TensorBoard."""

from __future__ import annotations

import importlib.util
import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from cloudspot.cli.completers import complete_jobs
from cloudspot.cli.jobs import find_job, open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import store_option
from cloudspot.cli.stored.storedjobs import StoredJobs
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.host.names import is_safe_name, make_parents
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.logs.stored_artifacts import Artifact, list_artifacts
from cloudspot.story.states import TERMINAL_STATES

SYNC_SECONDS = 30.0
"""The time between two copies, which equals the time between two uploads of a machine."""
BLOCK = 8 << 20
_EVENTS = "events.out.tfevents."
_OTHER_NODE = re.compile(r"node-[0-9]+\.[0-9]+/")


@click.command("tensorboard")
@click.argument("job_ids", metavar="[ID]...", nargs=-1, shell_complete=complete_jobs)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=6006, show_default=True, help="TensorBoard's port."
)
@store_option
def tensorboard(job_ids: Sequence[str], port: int, store_url: str | None) -> None:
    """Show jobs in TensorBoard, and follow them.

    Without an ID, all jobs of the store that have not ended are shown. The jobs' event files are copied to
    this computer, and their additions every half minute. Ctrl-C ends TensorBoard.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise CloudspotError("TensorBoard is not installed here; run: pip install tensorboard")
    store = open_named_store(store_url)
    named = [find_job(store, one) for one in job_ids]
    with tempfile.TemporaryDirectory(prefix="cloudspot-tensorboard-") as directory:
        copies = EventCopies(store, Path(directory))
        copies.update(named)
        command = (sys.executable, "-m", "tensorboard.main", "--logdir", directory, "--port", str(port))
        viewer = subprocess.Popen(command)
        try:
            while viewer.poll() is None:
                try:
                    viewer.wait(SYNC_SECONDS)
                except subprocess.TimeoutExpired:
                    _update(copies, named)
        except KeyboardInterrupt:
            pass
        finally:
            viewer.terminate()
            viewer.wait()


def _update(copies: EventCopies, job_ids: Sequence[str]) -> None:
    try:
        copies.update(job_ids)
    except TransientError as error:
        output.warn(f"the store does not answer; trying again in {SYNC_SECONDS:g} s: {error}")


class EventCopies:
    """Copies of jobs' event files, with one directory for each job, which all its nodes share."""

    def __init__(self, store: ObjectStore, directory: Path) -> None:
        self._store = with_retries(store)
        self._directory = directory
        self._sizes: dict[str, int] = {}
        """How many bytes of each object have been copied, by its key."""
        self._over: set[str] = set()
        """The jobs that had ended when they were last copied."""

    def update(self, job_ids: Sequence[str]) -> None:
        """Copy the additions to these jobs' event files.

        If ``job_ids`` is empty, these are all jobs that have not ended or had not ended the last time. Event
        files only grow, so additions are at their ends.

        Raises:
            TransientError: the store does not answer.
        """
        for job_id in job_ids or list(self._going()):
            for artifact in list_artifacts(self._store, job_id):
                if posixpath.basename(artifact.name).startswith(_EVENTS) and is_safe_name(artifact.name):
                    self._copy(job_id, artifact)

    def _going(self) -> Iterator[str]:
        for summary in StoredJobs(self._store).summaries():
            known = {path.name for path in self._directory.iterdir()}
            is_over = summary.state in TERMINAL_STATES
            if not is_over or (summary.job_id in known and summary.job_id not in self._over):
                yield summary.job_id
            if is_over:
                self._over.add(summary.job_id)

    def _copy(self, job_id: str, artifact: Artifact) -> None:
        name = _OTHER_NODE.sub("", artifact.name, count=1)
        path = make_parents(self._directory, f"{job_id}/{name}")
        copied = self._sizes.get(artifact.key, 0)
        while copied < artifact.size:
            data = self._store.get_range(artifact.key, copied, min(BLOCK, artifact.size - copied))
            if not data:
                break
            with path.open("r+b" if path.exists() else "wb") as file:
                file.seek(copied)
                file.write(data)
            copied += len(data)
            self._sizes[artifact.key] = copied
