"""Read, one at a time, the consoles of machines that never came up or ended without an exit record."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from cloudspot.controller.assess.observed import ConsoleTail
from cloudspot.errors import AuthError, CloudspotError
from cloudspot.interfaces import Provisioner
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.model import EndReason, Instance, InstanceState
from cloudspot.story.outcomes import own_exit

FIRST_SECONDS = 30.0
"""Once a launch is this old, the consoles of its unclaimed machines are read: they may show the reason."""
REPEAT_SECONDS = 15.0
"""The least time between two reads of consoles, except for the last read of a machine that has ended."""
MAX_CHARS = 300
_CAUSE = re.compile(r"cloudspot: this machine cannot serve its job: (.+)")
"""The last line of the boot script or the agent, which the console may prefix."""
_LINE = re.compile(r"cloudspot: (.+)")
_UNEXPLAINED = frozenset({None, EndReason.UNKNOWN, EndReason.LOST})


def tail_of(console: str) -> ConsoleTail:
    """Return the end of the console's text, in printable characters."""
    causes, lines = _CAUSE.findall(console), _LINE.findall(console)
    line = lines[-1] if lines else console.strip().rpartition("\n")[2]
    return ConsoleTail(cause=_clean(causes[-1]) if causes else "", line=_clean(line))


def _clean(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text).strip()[:MAX_CHARS]


class Consoles:
    """Reads the consoles of machines that a job waits for. Losing this memory costs a few requests."""

    def __init__(self, provisioner: Provisioner, *, has_consoles: bool) -> None:
        self._provisioner = provisioner
        self._can_read = has_consoles
        self._read_at: dict[str, float] = {}
        """The time at which each console was last read (monotonic)."""
        self._closed: set[str] = set()
        """The machines that had ended when their consoles were read, so that no more output follows."""
        self.tails: dict[str, ConsoleTail] = {}
        """The end of each machine's console, as last read."""
        self._reported: set[tuple[str, str]] = set()

    def next_due(
        self, history: History, instances: Sequence[Instance], *, now: datetime, monotonic: float
    ) -> Instance | None:
        """Return the machine whose console should be read now, or None.

        A machine that has ended goes first and is read once, before its seat is made void or its end is
        certified. A machine whose provider already gives a reason for not starting is read at once.
        """
        if not self._can_read or history.finished is not None:
            return None
        last = max(self._read_at.values(), default=-math.inf)
        is_pause = monotonic - last < REPEAT_SECONDS
        due = []
        for launch in history.live_launches:
            is_young = (now - launch.intent.at).total_seconds() < FIRST_SECONDS
            owners = {slot.instance_id for slot in launch.claimed.values()}
            for machine in instances:
                if machine.launch != launch.number or machine.id in self._closed:
                    continue
                if machine.id in owners and _is_unexplained(machine, launch):
                    return machine
                is_open = launch.open_ranks if machine.rank is None else machine.rank in launch.open_ranks
                if not is_open or machine.id in owners:
                    continue
                if machine.state is InstanceState.ENDED:
                    return machine
                is_known = self.tails.get(machine.id, ConsoleTail()).cause
                if not ((is_young and not machine.detail) or is_pause or is_known):
                    due.append(machine)
        return min(due, key=lambda one: self._read_at.get(one.id, -math.inf), default=None)

    def read(self, instance: Instance, *, monotonic: float) -> str | None:
        """Read the machine's console; return a line for people if the console shows a new one, else None.

        A console that cannot be read is not an error.
        """
        self._read_at[instance.id] = monotonic
        if instance.state is InstanceState.ENDED:
            self._closed.add(instance.id)
        try:
            tail = replace(
                tail_of(self._provisioner.console(instance)),
                is_final=instance.state is InstanceState.ENDED,
            )
        except AuthError as error:
            self._can_read = False
            return f"the console of {instance.id} cannot be read: {error}"
        except CloudspotError:
            return None
        if not tail.line or tail == self.tails.get(instance.id):
            return None
        self.tails[instance.id] = tail
        if instance.state is InstanceState.ENDED or tail.cause:
            return None  # the record of its end includes the line
        # A provider may alternate between two lines, for example about an image that it tries to pull.
        if (instance.id, tail.line) in self._reported:
            return None
        self._reported.add((instance.id, tail.line))
        return f"the console of {instance.id} shows: {tail.line}"


def _is_unexplained(instance: Instance, launch: LaunchHistory) -> bool:
    """Return whether the machine, which owns a seat, has ended without an exit record or a certificate."""
    return (
        instance.state is InstanceState.ENDED
        and instance.end_reason in _UNEXPLAINED
        and instance.id not in launch.certificates
        and not any(
            own_exit(launch, rank) for rank, slot in launch.claimed.items() if slot.instance_id == instance.id
        )
    )
