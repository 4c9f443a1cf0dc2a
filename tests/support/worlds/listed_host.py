"""Machines that boot nothing: they stand in a list, and a test says what becomes of each."""

import itertools
from datetime import datetime, timezone

from cloudspot.emulation.cloud import MachineHost, MachineStatus
from cloudspot.model import EndReason, InstanceState


class ListedHost(MachineHost):
    """The machine host of an emulated cloud under test."""

    network = "10.77.0.0/16"

    def __init__(self):
        self.machines = {}
        self.status = {}
        self.tags = {}
        self.terminated = []
        self.reclaimed = []
        self.consoles = {}
        self.boots_at_once = True
        self.ends_at_once = True
        self._addresses = itertools.count(1)

    def allocate_address(self):
        return f"10.77.1.{next(self._addresses)}"

    def start(self, machine):
        assert machine.id not in self.machines
        self.machines[machine.id] = machine
        self.tags[machine.id] = dict(machine.tags)
        state = InstanceState.RUNNING if self.boots_at_once else InstanceState.PENDING
        self.status[machine.id] = MachineStatus(state=state, address=machine.address)

    def terminate(self, machine_id):
        self.terminated.append(machine_id)
        self.end(machine_id, EndReason.TERMINATED, shutting_down=not self.ends_at_once)

    def reclaim(self, machine_id, *, notice_seconds):
        self.reclaimed.append((machine_id, notice_seconds))
        self.end(machine_id, EndReason.RECLAIMED)

    def warn(self, machine_id, deadline):
        """Let a notice of the machine's end stand, while it runs on."""
        self.status[machine_id] = MachineStatus(
            state=InstanceState.RUNNING,
            address=self.machines[machine_id].address,
            notice_deadline=deadline,
        )

    def set_tags(self, machine_id, tags):
        self.tags[machine_id] = dict(tags)

    def save_disk(self, machine_id):
        assert self.status[machine_id].state is InstanceState.RUNNING
        return f"/disks/{machine_id}"

    def console(self, machine_id):
        return self.consoles.get(machine_id, "")

    def states(self):
        return dict(self.status)

    def end(self, machine_id, reason, *, shutting_down=False):
        if self.status[machine_id].state is InstanceState.ENDED:
            return
        self.status[machine_id] = MachineStatus(
            state=InstanceState.SHUTTING_DOWN if shutting_down else InstanceState.ENDED,
            address=self.machines[machine_id].address,
            end_reason=reason,
            ended_at=datetime.now(timezone.utc),
        )

    @property
    def alive(self):
        return sorted(one for one, status in self.status.items() if status.state is not InstanceState.ENDED)
