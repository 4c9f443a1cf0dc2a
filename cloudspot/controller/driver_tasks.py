"""Runs the periodic tasks that a job's records request, which plugins carry out beside the driver."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from cloudspot.calls import TaskRequest
from cloudspot.controller.clock import Clock
from cloudspot.controller.outbox import Outbox
from cloudspot.errors import CloudspotError, as_cloudspot_error
from cloudspot.interfaces import DriverTask, ObjectStore
from cloudspot.jobstore.access.stored_records import find_bytes
from cloudspot.jobstore.layout import keys
from cloudspot.registry import open_driver_task

LEEWAY_SECONDS = 5.0
"""A task may begin this long before it is due, because drivers look at fixed intervals of their own."""


class DriverTasks:
    """Runs the tasks of one job in another thread. Call the methods from one thread at a time."""

    def __init__(self, store: ObjectStore, job_id: str, outbox: Outbox, *, clock: Clock) -> None:
        self._store = store
        self._job_id = job_id
        self._outbox = outbox
        self._clock = clock
        self._begun: dict[str, float] = {}
        """The time at which this driver last began each task (monotonic)."""
        self._has_seen_end = False
        self._busy: set[str] = set()
        self._tasks: dict[str, DriverTask] = {}
        self._problems: dict[str, str] = {}
        """The error of each task whose last run failed."""

    def look(self, times: Mapping[tuple[str, bool], datetime], *, is_over: bool) -> None:
        """Begin the tasks that are due; when the job has ended, begin all tasks once more.

        ``times`` is ``HistoryReader.task_times``.
        """
        is_last = is_over and not self._has_seen_end
        asked = [name for name, is_done in times if not is_done]
        waiting = self._busy.intersection(asked)
        for name in asked:
            if name not in waiting:
                self._begin(name, times.get((name, True)), is_over=is_over, is_last=is_last)
        for name in self._problems.keys() - {*asked}:
            del self._problems[name]
        self._has_seen_end = is_over and not waiting

    def problem(self) -> str:
        """Return the tasks whose last run failed, with the reasons, or an empty string."""
        return "; ".join(f"{name}: {why}" for name, why in sorted(self._problems.copy().items()))

    def _begin(self, name: str, done_at: datetime | None, *, is_over: bool, is_last: bool) -> None:
        try:
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks[name] = open_driver_task(name)
        except CloudspotError as error:
            self._problems[name] = str(error)
            return
        now = self._clock.monotonic()
        age = now - self._begun.get(name, -math.inf)
        if done_at is not None:
            age = min(age, (self._clock.now() - done_at).total_seconds())
        if is_last or age >= task.every_seconds - LEEWAY_SECONDS:
            self._begun[name] = now
            self._busy.add(name)
            self._outbox.run_beside(lambda: self._do(name, task, is_over=is_over))

    def _do(self, name: str, task: DriverTask, *, is_over: bool) -> None:
        try:
            asked = find_bytes(self._store, keys.task(self._job_id, name))
            if asked is None:
                return
            self._store.put(keys.task_done(self._job_id, name), b"")
            request = TaskRequest(job_id=self._job_id, asked=asked, is_over=is_over)
            if task.run(self._store, request).is_finished:
                self._store.delete_many([form(self._job_id, name) for form in (keys.task, keys.task_done)])
            self._problems.pop(name, None)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job is driven on
            self._problems[name] = str(as_cloudspot_error(error))
        finally:
            self._busy.discard(name)
