"""Answers to the open questions about Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cloudspot_prove.answers import (
    Answer,
    AnswerOf,
    Seen,
    expected,
    of_checks,
    of_steps,
    otherwise,
    values_at,
)

LEAST_GRACE_SECONDS: Final = 15.0
"""The seconds of notice for a pod that gets its whole grace period."""


def _versions(seen: Seen) -> Answer | None:
    pods = [one for one in seen.calls("/pods") if one.action.startswith("POST ")]
    refused = sorted({f"{one.status} {one.code}" for one in pods if one.code})
    if refused:
        return otherwise("a pod was refused", *(f"POST pods: {one}" for one in refused))
    return expected("it accepts each pod", f"POST pods: accepted {len(pods)} times") if pods else None


def _kubelet(seen: Seen) -> Answer | None:
    reasons = {
        (str(ended.get("reason")), ended.get("exitCode"))
        for one in seen.calls("/pods", "launch", "alone", "repeat")
        for ended in values_at(one.answer, "items", "status", "containerStatuses", "state", "terminated")
    }
    lines = [f"a container ended: {reason}, exit code {code}" for reason, code in sorted(reasons, key=str)]
    if any(reason == "ContainerStatusUnknown" or code not in {0, None} for reason, code in reasons):
        return otherwise("it does not tell the exit code", *lines)
    if not seen.passed("launch"):
        return None
    return expected("it does", *(lines or ["the job succeeded, and its log was delivered"]))


def _grace(seen: Seen) -> Answer | None:
    ended = seen.ended.get("notice")
    notices = seen.notices("notice")
    lost = seen.fact("notice", "steps_lost")
    if ended is None or lost is None:
        return None
    if not notices:
        return otherwise("the pod ended without a notice", f"{lost} steps lost")
    lines = [f"the notice named {one['seconds_ahead']:.0f} s" for one in notices]
    saved = [one["commit_seconds"] for one in notices]
    lines += [f"a checkpoint was committed {one:.0f} s after it" for one in saved if one is not None]
    if lost or all(one is None for one in saved):
        return otherwise("the pod ended before its checkpoint was committed", *lines, f"{lost} steps lost")
    return expected("it had time to save", *lines)


ANSWERS: Final[Mapping[str, AnswerOf]] = {
    "kubernetes-versions": _versions,
    "kubernetes-restricted": of_checks("it does", "launch"),
    "kubernetes-network-policy": of_steps("pods of a job can reach one another", "two-nodes"),
    "kubernetes-kubelet": _kubelet,
    "kubernetes-grace": _grace,
    "kubernetes-gpu": of_steps("it does", "gpu"),
}
