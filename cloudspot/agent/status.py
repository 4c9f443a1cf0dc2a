"""The node's status, which the agent's threads write and read, and which the heartbeat reports."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from cloudspot.agent.rank_reports import read_report
from cloudspot.decoding import Metrics, convert
from cloudspot.host.names import printable
from cloudspot.jobstore.access.store_clock import utc_now
from cloudspot.jobstore.layout.records import (
    CheckpointId,
    Failed,
    Idle,
    LogStanding,
    NodeState,
    Phase,
    RankLikeness,
    SaveCost,
    StagedInput,
    Survivors,
    Transfer,
    TransferKind,
    Utilization,
)
from cloudspot.train import handoff as files

MAX_METRICS_BYTES = 1 << 20
"""The maximum size of one read of the metrics."""
MAX_PHASES = 64
"""The number of phases that are kept: enough for a dozen generations, but still a small heartbeat."""


class _Transfer:
    """The progress of a transfer that several threads carry out."""

    def __init__(self, what: TransferKind, total: int) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count


class Status:
    """The node's status; each attribute is replaced as a whole by one thread, and any thread may read it."""

    def __init__(self) -> None:
        self._state: NodeState = "setup"
        self.state_changed = threading.Event()
        """Set at each change of ``state`` and at each new phase; cleared when they are reported."""
        self.generation = 0
        self.phases: tuple[Phase, ...] = ()
        """The newest ``MAX_PHASES`` phases of the node, for the job's timeline."""
        self.handoff: Path | None = None
        """The hand-off directory of the newest generation; None before the first generation."""
        self.ranks: tuple[int, ...] = ()
        """The global ranks that this node runs."""
        self.restored_step = 0
        self.num_live = 1
        """The number of live members and newcomers that this node knows of, including itself."""
        self.hears_others = False
        """Whether this node listens to other nodes, which report all news to it."""
        self.hears_calls = False
        """Whether this node sees calls to run a command here when it lists the other nodes."""
        self.committed: CheckpointId | None = None
        self.stall_seconds: float | None = None
        self.save_cost: SaveCost | None = None
        self.upload_seconds: float | None = None
        self.notice_seconds: float | None = None
        """How long before a reclaim the provider gives notice."""
        self.is_at_risk = False
        """Whether the provider has hinted that it may reclaim the machine."""
        self.staged: tuple[StagedInput, ...] = ()
        """The inputs that are on the disk."""
        self.utilization: Utilization | None = None
        """The utilization in the last half minute of the training."""
        self.log_standing: Callable[[], LogStanding | None] = lambda: None
        """Returns the state of the log's delivery."""
        self.moved_bytes: Callable[[], int] = lambda: 0
        """Returns how many bytes this agent has transferred between the machine and the job's bucket."""
        self.now: Callable[[], datetime] = utc_now
        """Returns the time at which a new phase begins."""
        self._warnings: dict[str, str] = {}
        self._warning = threading.Lock()
        self._transfer: _Transfer | None = None
        self._failed: Failed | None = None
        self._survivors: Survivors | None = None
        self._idle: Idle | None = None
        self._is_regrouping = False
        self._metrics = Metrics()
        self._metrics_read = (Path(), 0)

    @property
    def state(self) -> NodeState:
        """The node's activity: see ``records.Heartbeat.state``."""
        return self._state

    @state.setter
    def state(self, state: NodeState) -> None:
        self._state = state
        self.note_phase(state)
        self.state_changed.set()

    def note_phase(self, state: NodeState | Literal["training"]) -> None:
        """Record a new phase for the job's timeline."""
        phase = Phase(
            state=state,
            generation=self.generation,
            reached_step=self.reached_step if state == "uploading" else None,
            at=self.now(),
        )
        last = self.phases[-1] if self.phases else None
        if last is not None and (last.state, last.generation) == (phase.state, phase.generation):
            return
        self.phases = (*self.phases, phase)[-MAX_PHASES:]
        self.state_changed.set()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The current warnings about this node."""
        return tuple(self._warnings.values())

    def warn(self, subject: str, text: str | None) -> None:
        """Replace the warning about a subject; None clears it. The text may contain names not in UTF-8."""
        text = None if text is None else printable(text)
        with self._warning:
            warnings = {name: warning for name, warning in self._warnings.items() if name != subject}
            self._warnings = warnings if text is None else {**warnings, subject: text}

    @property
    def is_regrouping(self) -> bool:
        """Whether the nodes are agreeing on the next generation; heartbeats are faster then."""
        return self._is_regrouping

    @is_regrouping.setter
    def is_regrouping(self, is_regrouping: bool) -> None:
        self._is_regrouping = is_regrouping
        if is_regrouping:
            self.state_changed.set()

    @property
    def failed(self) -> Failed | None:
        """The newest failure of a training run on this node; a heartbeat reports it at once."""
        return self._failed

    @failed.setter
    def failed(self, failed: Failed) -> None:
        self._failed = failed
        self.state_changed.set()

    @property
    def likeness(self) -> tuple[RankLikeness, ...]:
        """The likenesses that this node's ranks have reported."""
        paths = () if self.handoff is None else [files.likeness_path(self.handoff, r) for r in self.ranks]
        reports = (read_report(path, RankLikeness) for path in paths)
        return tuple(each for each in reports if each is not None)

    @property
    def survivors(self) -> Survivors | None:
        """The state that this node's ranks hold after others were lost; a heartbeat reports it at once."""
        return self._survivors

    @survivors.setter
    def survivors(self, survivors: Survivors) -> None:
        self._survivors = survivors
        self.state_changed.set()

    @property
    def idle(self) -> Idle | None:
        """How long the training has left its machine idle, or None if not for too long.

        A heartbeat reports the beginning and the end of this at once.
        """
        return self._idle if self._state == "running" else None

    @idle.setter
    def idle(self, idle: Idle | None) -> None:
        has_changed = (idle is None) != (self._idle is None)
        self._idle = idle
        if has_changed:
            self.state_changed.set()

    @contextmanager
    def transferring(self, what: TransferKind, total: int) -> Iterator[Callable[[int], None]]:
        """Report a transfer of ``total`` bytes while the block runs.

        Yield a function with which any thread adds newly transferred bytes.
        """
        transfer = _Transfer(what, total)
        self._transfer = transfer
        try:
            yield transfer.add
        finally:
            if self._transfer is transfer:  # only the newest transfer is reported
                self._transfer = None

    @property
    def transfer(self) -> Transfer | None:
        """The progress of the newest transfer, or None if it has ended."""
        transfer = self._transfer
        if transfer is None:
            return None
        return Transfer(what=transfer.what, done=min(transfer.done, transfer.total), total=transfer.total)

    def progress(self) -> tuple[int, int | None]:
        """Return the newest step begun here, or else restored, and the total number of steps if known."""
        step, total = self.restored_step, None
        if self.handoff is not None:
            for rank in self.ranks:
                found = files.read_progress(self.handoff, rank)
                if found is not None:
                    step, total = max(step, found.step), found.total
        return step, total

    def data_waits(self) -> Mapping[int, int]:
        """Return how long each local rank has waited for batches (ns), for the ranks where this is known."""
        handoff = self.handoff
        found = {} if handoff is None else {rank: files.read_data_wait(handoff, rank) for rank in self.ranks}
        return {rank: waited for rank, waited in found.items() if waited is not None}

    @property
    def reached_step(self) -> int:
        """Return the step after the newest step that a local rank has begun in this generation."""
        handoff = self.handoff
        found = [] if handoff is None else [files.read_progress(handoff, rank) for rank in self.ranks]
        return max([self.restored_step, *(one.reached_step for one in found if one is not None)])

    @property
    def has_session(self) -> bool:
        """Whether the script of this generation has opened a session."""
        handoff = self.handoff
        return handoff is not None and any(files.progress_path(handoff, r).exists() for r in self.ranks)

    def metrics(self) -> Metrics:
        """Return the newest value of each metric that rank 0 has logged, if rank 0 is here."""
        handoff = self.handoff
        if handoff is None or 0 not in self.ranks:
            return Metrics()
        path = files.metrics_path(handoff, 0)
        offset = self._metrics_read[1] if self._metrics_read[0] == path else 0
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(MAX_METRICS_BYTES)
        except FileNotFoundError:
            return self._metrics
        end = data.rfind(b"\n") + 1
        if len(data) == MAX_METRICS_BYTES and end == 0:
            end = len(data)  # the session never writes such a long line: skip it
        for line in data[:end].splitlines():
            # The trainer wrote the line: an invalid one must not break the agent or its heartbeat.
            with suppress(ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError):
                self._metrics.update(convert(json.loads(line)["values"], Metrics))
        self._metrics_read = (path, offset + end)
        return Metrics(self._metrics)
