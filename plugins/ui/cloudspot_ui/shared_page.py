"""The page that `share --live` has uploaded to the bucket; the job's driver keeps it up to date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from cloudspot.calls import TaskRequest, TaskResult
from cloudspot.errors import CorruptData
from cloudspot.interfaces import DriverTask, ObjectStore
from cloudspot.jobstore.access.stored_records import find_bytes
from cloudspot.jobstore.layout import keys

LOG_SECONDS = 10.0
"""The maximum time for which a refresh reads the log; the next refresh continues from there."""


@dataclass(frozen=True)
class LiveShares:
    """The live links to a job's pages, which are the record of the task ``shared-page``."""

    ends: Mapping[str, datetime] = field(default_factory=dict)
    """Maps the word in each page's key to the end of the page's links."""

    @classmethod
    def read(cls, store: ObjectStore, job_id: str) -> LiveShares:
        """Return the links in the store; they are empty if there is no record."""
        data = find_bytes(store, keys.task(job_id, SharedPage.name))
        return cls() if data is None else cls.parse(data)

    @classmethod
    def parse(cls, data: bytes) -> LiveShares:
        """Return the links in a record.

        Raises:
            CorruptData: the record is malformed.
        """
        try:
            value = json.loads(data)["pages"]
            ends = {str(token): datetime.fromisoformat(end) for token, end in value.items()}
            if not all(token.isalnum() and end.tzinfo is not None for token, end in ends.items()):
                raise ValueError(value)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptData("the record of the shared page is malformed; `unshare` deletes it") from error
        return cls(ends)

    def to_bytes(self) -> bytes:
        """Return the record."""
        return json.dumps({"pages": {token: end.isoformat() for token, end in self.ends.items()}}).encode()


class SharedPage(DriverTask):
    """Replaces a shared page with the job's current page, until the page's last link ends."""

    name = "shared-page"
    every_seconds = 60.0

    def __init__(self) -> None:
        self._reading: object | None = None

    def run(self, store: ObjectStore, request: TaskRequest) -> TaskResult:
        """Read the changes of the job, and upload the page."""
        now = datetime.now(timezone.utc)
        ends = {token: end for token, end in LiveShares.parse(request.asked).ends.items() if end > now}
        if not ends:
            return TaskResult(is_finished=True)
        from cloudspot.cli.jobs import Job
        from cloudspot_ui.page.rendering import job_page
        from cloudspot_ui.page.story import JobReading

        if not isinstance(self._reading, JobReading):
            self._reading = JobReading(Job(store, request.job_id))
        story = self._reading.read(now, log_seconds=LOG_SECONDS)
        page = job_page(story, is_live=not request.is_over).encode(errors="replace")
        pages = [keys.shared_page(request.job_id, token) for token in ends]
        for key in pages:
            store.put(key, page)
        # `unshare` deletes the record first, and then the pages that it finds.
        if find_bytes(store, keys.task(request.job_id, self.name)) is None:
            store.delete_many(pages)
        return TaskResult()
