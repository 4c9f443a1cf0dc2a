"""The emulated instances: moto keeps their state in the API, and a machine host boots and ends them."""

from __future__ import annotations

import base64
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason

from cloudspot.emulation.api_faults import Faults, LateChanges
from cloudspot.emulation.cloud import EmulatedMachine, JobHint, MachineHost, MachineStatus
from cloudspot.model import EndReason, InstanceState, Market

TERMINATED_SHOWN_SECONDS: Final = 3600.0
"""How long a terminated instance is listed: about an hour (EC2 user guide, Terminate your instance)."""
POST_SECONDS: Final = 240.0
"""How soon after a start or an end the console's output appears: "shortly" (EC2 API reference,
GetConsoleOutput).
"""
_STATES: Final = {
    InstanceState.PENDING: ("pending", 0),
    InstanceState.RUNNING: ("running", 16),
    InstanceState.SHUTTING_DOWN: ("shutting-down", 32),
    InstanceState.ENDED: ("terminated", 48),
}
_REASONS: Final = {
    EndReason.RECLAIMED: ("Server.SpotInstanceTermination", "Spot instance termination"),
    EndReason.TERMINATED: ("Client.UserInitiatedShutdown", "User initiated shutdown"),
    EndReason.SELF: ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown"),
    EndReason.LOST: ("Server.InternalError", "Internal error"),
}


@dataclass
class Machine:
    """One instance, with the details that moto does not store."""

    id: str
    region: str
    zone: str
    instance_type: str
    market: str
    num_vcpus: int
    group: str | None
    request_id: str | None
    """The id of its spot request."""
    instance: Any
    """moto's own record of the instance."""
    reservation: Any
    visible_at: float
    is_bare: bool
    """Whether its image has no cloudspot."""
    state: InstanceState = InstanceState.PENDING
    is_stopped: bool = False
    """Whether the machine was stopped: its host has ended it, but its disk still exists."""
    is_asked_to_end: bool = False
    ended_at: float | None = None
    posted: str = ""
    """The console output that became visible after the last transition."""
    launch_failure: tuple[str, str] | None = None
    """The code and the message of the failure, if the start failed."""
    post_at: float = 0.0
    """When the console's output becomes visible; 0 if it already is."""

    @property
    def is_alive(self) -> bool:
        """Return whether the machine counts towards capacity and quotas."""
        return self.state is not InstanceState.ENDED


class Machines:
    """All machines of one emulated account.

    The caller holds ``lock`` for the whole of a group of calls that belong together.
    """

    def __init__(self, host: MachineHost, faults: Faults, clock: Callable[[], float]) -> None:
        self.lock = threading.RLock()
        self.by_id: dict[str, Machine] = {}
        self._host = host
        self._faults = faults
        self._clock = clock
        self.launch_failures: list[tuple[str, str]] = []
        """The failures that end the next machines before they start, as code and message, such as those of
        ``Client.InternalError``. RunInstances succeeds, and DescribeInstances shows the failure (EC2 user
        guide, "Instance terminates immediately", checked 2026-11).
        """
        self._late_tags = LateChanges(clock)

    def adopt(
        self,
        region: str,
        instance_ids: Sequence[str],
        parameters: Mapping[str, Any],
        *,
        is_bare: bool,
        disk: str | None,
        vcpus: int,
    ) -> None:
        """Register the instances that moto has made, and boot them, from a copied disk if one is given."""
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        is_spot = parameters.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        for instance_id in instance_ids:
            instance = backend.get_instance(instance_id)
            instance.launch_time = datetime.fromtimestamp(self._clock(), timezone.utc).replace(tzinfo=None)
            instance.placement.group_name = parameters.get("Placement", {}).get("GroupName") or ""
            if "same-launch-index" in self._faults.contrary:
                instance.ami_launch_index = 0
            instance.spot_instance_request_id = f"sir-{secrets.token_hex(4)}" if is_spot else None
            machine = Machine(
                id=instance_id,
                region=region,
                zone=instance.placement.zone,
                instance_type=instance.instance_type,
                market="spot" if is_spot else "on-demand",
                num_vcpus=vcpus,
                group=parameters.get("Placement", {}).get("GroupName"),
                request_id=instance.spot_instance_request_id,
                instance=instance,
                reservation=next(one for one in backend.reservations.values() if instance in one.instances),
                visible_at=self._clock() + self._faults.describe_lag_seconds,
                is_bare=is_bare,
            )
            self._show(machine)
            self.by_id[instance_id] = machine
            if self.launch_failures:
                machine.launch_failure = self.launch_failures.pop(0)
            else:
                self._host.start(self._emulated(machine, parameters, disk=disk))

    def hide_the_young(self) -> None:
        """Hide from moto the machines that a lagging listing does not show yet."""
        for machine in self.by_id.values():
            reservations = ec2_backends[DEFAULT_ACCOUNT_ID][machine.region].reservations
            if self._clock() < machine.visible_at:
                reservations.pop(machine.reservation.id, None)
            elif self._is_shown(machine):
                reservations.setdefault(machine.reservation.id, machine.reservation)

    def show(self, instance_ids: Iterable[str]) -> None:
        """Make machines visible to moto for one answer, until ``refresh``."""
        for instance_id in instance_ids:
            machine = self.by_id[instance_id]
            reservations = ec2_backends[DEFAULT_ACCOUNT_ID][machine.region].reservations
            reservations[machine.reservation.id] = machine.reservation

    def refresh(self) -> None:
        """Make the machines' current states visible to moto, except those that a lagging listing hides."""
        statuses = self._host.states()
        for machine in self.by_id.values():
            status = statuses.get(machine.id)
            if status is not None:
                self._follow(machine, status)
            elif machine.launch_failure is not None and machine.is_alive:
                self._end(machine, *machine.launch_failure)
        self._forget_the_old()
        self.hide_the_young()
        self._late_tags.catch_up()

    def is_known(self, instance_id: str, region: str) -> bool:
        """Return whether the API knows the instance now, in the given region."""
        machine = self.by_id.get(instance_id)
        if machine is None or machine.region != region:
            return False
        return self._clock() >= machine.visible_at and self._is_shown(machine)

    def console(self, machine: Machine) -> str:
        """Return the machine's console output so far."""
        return self._host.console(machine.id)

    def alive(self) -> list[Machine]:
        """Return the machines that have not ended."""
        return [one for one in self.by_id.values() if one.is_alive]

    def terminate(self, machine: Machine) -> None:
        """Ask the host to end the machine."""
        machine.is_asked_to_end = True
        self._host.terminate(machine.id)

    def stop(self, machine: Machine) -> None:
        """Stop the machine, which continues to exist until it is terminated."""
        machine.is_stopped = True
        machine.instance._state.name, machine.instance._state.code = "stopped", 80  # noqa: SLF001 # no other way
        self._host.terminate(machine.id)

    def reclaim(self, machine: Machine, *, notice_seconds: float) -> None:
        """Reclaim the machine."""
        self._host.reclaim(machine.id, notice_seconds=notice_seconds)

    def tag(self, region: str, resource_ids: Sequence[str], values: Mapping[str, str]) -> None:
        """Set tags, which become visible at once or after the lag."""
        change = partial(self._tag, region, list(resource_ids), dict(values))
        self._late_tags.make(change, after_seconds=self._faults.tag_lag_seconds)

    def tags_of(self, machine: Machine) -> dict[str, str]:
        """Return the machine's tags."""
        return {tag["key"]: tag["value"] for tag in machine.instance.get_tags()}

    def _tag(self, region: str, resource_ids: Sequence[str], values: Mapping[str, str]) -> None:
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        for resource_id in resource_ids:
            backend.create_tags([resource_id], dict(values))
            machine = self.by_id.get(resource_id)
            if machine is not None:
                self._host.set_tags(machine.id, self.tags_of(machine))

    def _emulated(
        self, machine: Machine, parameters: Mapping[str, Any], *, disk: str | None
    ) -> EmulatedMachine:
        instance, tags = machine.instance, self.tags_of(machine)
        options = parameters.get("MetadataOptions", {})
        profile = parameters.get("IamInstanceProfile", {})
        return EmulatedMachine(
            id=machine.id,
            address=instance.private_ip,
            host_name=instance.private_dns_name.partition(".")[0],
            user_data=base64.b64decode(parameters.get("UserData", "")),
            metadata={
                "account": DEFAULT_ACCOUNT_ID,
                "ami-id": instance.image_id,
                "ami-launch-index": instance.ami_launch_index,
                "availability-zone": machine.zone,
                "hostname": instance.private_dns_name,
                "http-put-response-hop-limit": options.get("HttpPutResponseHopLimit", 1),
                "http-tokens": options.get("HttpTokens", "optional"),
                "instance-id": machine.id,
                "instance-life-cycle": machine.market,
                "instance-metadata-tags": options.get("InstanceMetadataTags", "disabled"),
                "instance-profile": profile.get("Arn", profile.get("Name", "")).rpartition("/")[2],
                "instance-type": machine.instance_type,
                "local-ipv4": instance.private_ip,
                "mac": instance.nics[0].mac_address,
                "region": machine.region,
                "reservation-id": machine.reservation.id,
                "security-groups": [group.name for group in instance.nics[0].group_set],
                "subnet-id": instance.nics[0].subnet.id,
            },
            tags=tags,
            market=Market(machine.market),
            is_bare=machine.is_bare,
            disk=disk,
            job=JobHint.of_tags(tags, rank=instance.ami_launch_index),
        )

    def _follow(self, machine: Machine, status: MachineStatus) -> None:
        if machine.post_at and self._clock() >= machine.post_at:
            machine.posted, machine.post_at = self.console(machine), 0.0
        if machine.state is InstanceState.ENDED or machine.is_stopped:
            return
        if status.state is not machine.state and status.state is not InstanceState.SHUTTING_DOWN:
            machine.post_at = self._clock() + POST_SECONDS
        if (
            "shutdown-stops" in self._faults.contrary
            and status.state is InstanceState.ENDED
            and status.end_reason is EndReason.SELF
            and not machine.is_asked_to_end
        ):
            machine.is_stopped = True
            machine.instance._state.name, machine.instance._state.code = "stopped", 80  # noqa: SLF001 # as stop
            return
        machine.state = status.state
        if status.state is InstanceState.ENDED:
            self._end(machine)
        self._show(machine)
        if status.state in {InstanceState.SHUTTING_DOWN, InstanceState.ENDED}:
            reason = status.end_reason or EndReason.LOST
            if reason is EndReason.RECLAIMED and _left_early(status):
                reason = EndReason.SELF
            code, text = _REASONS.get(reason, _REASONS[EndReason.LOST])
            machine.instance.state_reason = StateReason(f"{code}: {text}", code)
            at = datetime.fromtimestamp(self._clock(), timezone.utc)
            machine.instance._reason = (  # noqa: SLF001 # moto has no other way
                f"User initiated ({at:%Y-%m-%d %H:%M:%S} GMT)" if reason is EndReason.TERMINATED else ""
            )

    def _end(self, machine: Machine, code: str = "", text: str = "") -> None:
        machine.state, machine.ended_at = InstanceState.ENDED, self._clock()
        self.show([machine.id])  # moto looks it up by its id
        machine.instance.terminate()  # this also removes its volumes and network interfaces
        self._show(machine)
        if code:
            machine.instance.state_reason = StateReason(f"{code}: {text}", code)
            machine.instance._reason = ""  # noqa: SLF001 # moto has no other way

    def _show(self, machine: Machine) -> None:
        name, code = _STATES[machine.state]
        machine.instance._state.name = name  # noqa: SLF001 # moto has no other way
        machine.instance._state.code = code  # noqa: SLF001

    def _is_shown(self, machine: Machine) -> bool:
        return machine.ended_at is None or self._clock() - machine.ended_at < TERMINATED_SHOWN_SECONDS

    def _forget_the_old(self) -> None:
        for machine in self.by_id.values():
            if not self._is_shown(machine):
                reservations = ec2_backends[DEFAULT_ACCOUNT_ID][machine.region].reservations
                reservations.pop(machine.reservation.id, None)


def _left_early(status: MachineStatus) -> bool:
    """Return whether the machine is charged because it shut itself down before its notice was over."""
    deadline, ended = status.notice_deadline, status.ended_at
    return deadline is not None and ended is not None and ended < deadline
