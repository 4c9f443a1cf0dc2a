"""Answers to the open questions about Alibaba Cloud."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cloudspot_prove.answers import (
    Answer,
    AnswerOf,
    Seen,
    creates_once,
    expected,
    listing_lag,
    of_steps,
    otherwise,
    quota,
    tokens,
    unanswered,
    values_at,
)

NOTICE_SECONDS: Final = range(240, 331)
"""The remaining seconds when a notice is read, if its length is five minutes."""


def _host_names(seen: Seen) -> Answer | None:
    by_rank = dict(seen.witnessed("host-index", "two-nodes"))
    if len(by_rank) < 2:
        return None
    found = sorted(one for one in by_rank.values() if one is not None)
    line = f"the host names of two machines end with {', '.join(map(str, found))}"
    if found == list(range(len(found))):
        return expected("it does; both machines came, so fewer were not seen", line)
    return otherwise("there is a gap", line)


def _self_release(seen: Seen) -> Answer | None:
    states = {
        str(name)
        for one in seen.calls("DescribeInstances", "launch", "repeat", "alone")
        for name in values_at(one.answer, "Instances", "Instance", "Status")
    }
    left = [
        state for step in ("launch", "repeat", "alone") for state in seen.fact(step, "left_in_state") or ()
    ]
    line = f"states in the listing: {', '.join(sorted(states)) or 'none'}"
    if "Stopped" in states or left:
        return otherwise("a machine shut itself down, and stayed, stopped", line)
    if seen.fact("alone", "end_seconds") is None:
        return None
    return expected("it may; AutoReleaseTime was not waited for", line)


def _notice(seen: Seen) -> Answer | None:
    seconds = [value for _, value in seen.witnessed("notice-seconds") if value is not None]
    if not seconds:
        if seen.fact("notice", "released_by_hand"):
            return unanswered("a machine that a person releases gets no notice; a reclaim did not happen")
        return None
    lines = [f"termination-time was read {one} s before its time" for one in seconds]
    if all(one in NOTICE_SECONDS for one in seconds):
        return expected("it does", *lines)
    return otherwise("its time is another", *lines)


def _metadata_tags(seen: Seen) -> Answer | None:
    asked = seen.calls("ModifyInstanceMetadataOptions")
    refused = [one for one in asked if one.code]
    if not asked:
        return None
    if refused:
        return otherwise("it does not", f"ModifyInstanceMetadataOptions: {refused[0].code}")
    return expected("it does", f"ModifyInstanceMetadataOptions: accepted {len(asked)} times")


ANSWERS: Final[Mapping[str, AnswerOf]] = {
    "aliyun-host-names": _host_names,
    "aliyun-client-token": tokens,
    "aliyun-listing": lambda seen: listing_lag(
        seen,
        "RunInstances",
        "DescribeInstances",
        where=lambda one: list(values_at(one.answer, "InstanceIdSets", "InstanceIdSet")),
    ),
    "aliyun-self-release": _self_release,
    "aliyun-notice": _notice,
    "aliyun-metadata-tags": _metadata_tags,
    "aliyun-group-members": of_steps("they do", "two-nodes"),
    "aliyun-internal-endpoint": of_steps("it does", "driver"),
    "aliyun-create-once": creates_once,
    "aliyun-other-region": of_steps("it does", "other-region"),
    "aliyun-function-code": of_steps("it does", "driver"),
    "aliyun-function-role": of_steps("the deployment passed at the first try", "driver"),
    "aliyun-eventbridge": of_steps("they do", "driver"),
    "aliyun-image-driver": of_steps("they do", "gpu"),
    "aliyun-quota": quota("a launch was refused whole", "RunInstances", "QuotaExceed.AfterpayInstance"),
}
