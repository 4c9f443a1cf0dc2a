"""Answers to the open questions about AWS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cloudspot_prove.answers import (
    Answer,
    AnswerOf,
    Seen,
    creates_once,
    denials,
    expected,
    listing_lag,
    of_checks,
    of_steps,
    otherwise,
    quota,
    refused_before,
    tokens,
    unanswered,
    values_at,
)

NOTICE_SECONDS: Final = range(90, 131)
"""The remaining seconds when a notice is read, if its length is two minutes."""


def _launch_index(seen: Seen) -> Answer | None:
    by_rank = dict(seen.witnessed("launch-index", "two-nodes"))
    if len(by_rank) < 2:
        return None
    lines = [f"rank {rank}: ami-launch-index {index}" for rank, index in sorted(by_rank.items())]
    if len(set(by_rank.values())) == len(by_rank):
        return expected("they differ", *lines)
    return otherwise("two machines of one request have the same", *lines)


def _price_of_disks(seen: Seen) -> Answer | None:
    parts = seen.fact("price", "price_parts")
    if parts is None:
        return None
    if "disk" in parts and "disk not counted" not in parts:
        return expected("it does", f"an hour of the first offer: {parts}")
    return otherwise("the disk has no price", f"an hour of the first offer: {parts}")


def _systemd(seen: Seen) -> Answer | None:
    units = {value for _, value in seen.witnessed("agent-unit", "launch")}
    if "active" in units:
        return expected("it does", "systemctl is-active cloudspot-agent: active")
    if units == {""} and seen.passed("launch"):
        return unanswered("the machine has no service manager; the boot script ran the agent itself")
    return otherwise("the unit is not active", *sorted(units)) if units else None


def _new_profile(seen: Seen) -> Answer | None:
    calls = [one for one in seen.calls("RunInstances") if one.code != "DryRunOperation"]
    number, seconds = refused_before(calls, "InvalidParameterValue")
    bought = [one for one in calls if not one.code]
    if number:
        line = f"RunInstances: {number} times InvalidParameterValue"
        return otherwise(f"a launch was refused for {seconds:.0f} s, and then accepted", line)
    return expected("it does", f"RunInstances: accepted {len(bought)} times, at once") if bought else None


def _notice(seen: Seen) -> Answer | None:
    has_time = [value for _, value in seen.witnessed("notice-has-time", "notice")]
    if not has_time:
        return None
    seconds = [value for _, value in seen.witnessed("notice-seconds", "notice")]
    lines = [f"spot/instance-action was read {one} s before its time" for one in seconds if one is not None]
    if not all(has_time):
        return otherwise("the notice names no time", "spot/instance-action has no field `time`")
    if all(one in NOTICE_SECONDS for one in seconds):
        return expected("it is", *lines)
    return otherwise("its time is another", *lines)


def _shutdown(seen: Seen) -> Answer | None:
    described = seen.calls("DescribeInstances", "launch", "alone", "repeat")
    states = {
        str(name)
        for one in described
        for name in values_at(one.answer, "Reservations", "Instances", "State", "Name")
    }
    line = f"states in the listing: {', '.join(sorted(states))}"
    if states & {"stopped", "stopping"}:
        return otherwise("a machine that shut itself down was stopped, and not terminated", line)
    left = [
        state for step in ("launch", "repeat", "alone") for state in seen.fact(step, "left_in_state") or ()
    ]
    if left:
        return otherwise("a machine that shut itself down ran on", *left)
    if "terminated" not in states and seen.fact("alone", "end_seconds") is None:
        return None
    return expected("it does", line)


def _policies(seen: Seen) -> Answer | None:
    lines = denials(seen)
    if lines:
        return otherwise("a permission is missing", *lines)
    if not seen.passed("launch"):
        return None
    number = len(seen.exchanges)
    return expected("no request was refused for lack of a permission", f"{number} requests were recorded")


def _metadata_tags(seen: Seen) -> Answer | None:
    names = [value for _, value in seen.witnessed("tags", "two-nodes")]
    if not names:
        return None
    last = names[-1]
    line = f"the last look showed: {', '.join(last) or 'none'}"
    if "MASTER_ADDR" in last:
        return expected("it is", line)
    return otherwise("what was set after the launch did not show in it", line)


def _role(seen: Seen) -> Answer | None:
    refused = seen.refusals("CreateFunction", "driver")
    made = [one for one in seen.calls("CreateFunction", "driver") if not one.code]
    roles = [one for one in seen.calls("CreateRole", "driver") if not one.code]
    if not made or not roles:
        return None
    seconds = made[0].at - roles[0].at
    lines = [f"CreateFunction: {len(calls)} times {code}" for code, calls in refused.items()]
    return expected(f"the function was made {seconds:.0f} s after its role", *lines)


def _partitions(seen: Seen) -> Answer | None:
    zones = {
        str(job["launches"][0]["zone"]) for job in seen.fact("launch", "jobs") or () if job.get("launches")
    }
    if seen.passed("launch") and any(one.startswith(("cn-", "us-gov-")) for one in zones):
        return expected("they do", *sorted(zones))
    return unanswered("this run was in neither") if zones else None


ANSWERS: Final[Mapping[str, AnswerOf]] = {
    "aws-launch-index": _launch_index,
    "aws-client-token": tokens,
    "aws-partitions": _partitions,
    "aws-image": of_checks("both are there", "image"),
    "aws-price-of-disks": _price_of_disks,
    "aws-systemd": _systemd,
    "aws-new-profile": _new_profile,
    "aws-notice": _notice,
    "aws-shutdown": _shutdown,
    "aws-policies": _policies,
    "aws-create-once": creates_once,
    "aws-metadata-tags": _metadata_tags,
    "aws-other-region": of_steps("it does; the bill shows the rest a day later", "other-region"),
    "aws-lambda-glibc": of_steps("they do", "driver"),
    "aws-lambda-role": _role,
    "aws-listing": lambda seen: listing_lag(
        seen,
        "RunInstances",
        "DescribeInstances",
        where=lambda one: list(values_at(one.answer, "Instances", "InstanceId")),
    ),
    "aws-quota": quota(
        "a launch was refused whole", "RunInstances", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"
    ),
}
