"""Answers to the open questions about Google Cloud."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cloudspot_prove.answers import (
    Answer,
    AnswerOf,
    Seen,
    expected,
    listing_lag,
    of_steps,
    otherwise,
    refused_before,
    tokens,
    values_at,
)
from cloudspot_prove.recording import Exchange

BULK: Final = "/instances/bulkInsert"
INSTANCES: Final = "/aggregated/instances"


def _asks_for_notice(one: Exchange) -> bool:
    return any(True for _ in values_at(one.request, "body", *_SCHEDULING, "preemptionNoticeDuration"))


def _preemption_notice(seen: Seen) -> Answer | None:
    asked = [one for one in seen.calls(BULK) if _asks_for_notice(one)]
    if not asked:
        return None
    refused = [one for one in asked if one.code]
    if len(refused) == len(asked):
        return otherwise(
            "a launch that asks for it is refused",
            *(f"bulkInsert: {one.status} {one.code}" for one in refused[:3]),
        )
    return expected("it does", f"bulkInsert: accepted with preemptionNoticeDuration {len(asked)} times")


def _request_id(seen: Seen) -> Answer | None:
    found = tokens(seen)
    if found is None or found.verdict != "otherwise":
        return found
    return otherwise("it was forgotten; the names of the machines were taken", *found.evidence)


def _prices(seen: Seen) -> Answer | None:
    number = seen.fact("price", "num_offers")
    if number is None:
        return None
    types = seen.fact("price", "types") or []
    return expected("they are, for the types that were asked for", f"{number} offers of {', '.join(types)}")


def _price_of_disks(seen: Seen) -> Answer | None:
    parts = seen.fact("price", "price_parts")
    if parts is None:
        return None
    line = f"an hour of the first offer: {parts or 'no parts'}"
    lacking = [name for name in ("disk", "address") if f"{name} not counted" in parts]
    if lacking or "disk" not in parts:
        return otherwise(f"no price for: {', '.join(lacking) or 'disk'}", line)
    return expected("they are", line)


def _image_python(seen: Seen) -> Answer | None:
    found = {value for _, value in seen.witnessed("torch", "launch")}
    if not found:
        return None
    python = {value for _, value in seen.witnessed("python", "launch")}
    return expected("it has", f"Python {', '.join(sorted(python))}, PyTorch {', '.join(sorted(found))}")


def _shutdown_script(seen: Seen) -> Answer | None:
    notices = seen.notices("notice")
    if not notices:
        return None
    lines = [f"notice from {one['source']}, {one['seconds_ahead']:.0f} s ahead" for one in notices]
    if any(one["seconds_ahead"] < 0 for one in notices):
        return otherwise("a notice came after the end that it names", *lines)
    return expected("a notice reached the training before its end", *lines)


def _self_delete(seen: Seen) -> Answer | None:
    states = {
        str(name)
        for one in seen.calls(INSTANCES, "launch", "repeat", "alone")
        for name in values_at(one.answer, "items", "*", "instances", "status")
    }
    left = [
        state for step in ("launch", "repeat", "alone") for state in seen.fact(step, "left_in_state") or ()
    ]
    line = f"states in the listing: {', '.join(sorted(states)) or 'none'}"
    if "TERMINATED" in states or left:
        return otherwise("a machine shut itself down, and stayed, stopped", line)
    if seen.fact("alone", "end_seconds") is None:
        return None
    return expected("it may", line)


def _template_right(seen: Seen) -> Answer | None:
    refused = [one for one in seen.calls(BULK, "launch") if one.code == "forbidden"]
    if refused:
        return otherwise("a launch lacks a permission", f"bulkInsert: {refused[0].status} {refused[0].code}")
    return expected("it does not", "bulkInsert: not refused") if seen.passed("launch") else None


def _new_account(seen: Seen) -> Answer | None:
    calls = seen.calls(BULK)
    asked = [one for one in calls if _asks_for_notice(one)]
    if asked and all(one.code for one in asked):
        calls = [one for one in calls if one not in asked]  # These were refused because of their notice.
    number, seconds = refused_before(calls, "invalid")
    bought = [one for one in calls if not one.code]
    if seconds > 1:
        line = f"bulkInsert: {number} times invalid"
        return otherwise(f"a launch was refused for {seconds:.0f} s, and then accepted", line)
    return expected("it is", f"bulkInsert: accepted {len(bought)} times, at once") if bought else None


def _preempted_event(seen: Seen) -> Answer | None:
    seconds = seen.fact("driver", "bought_after_seconds")
    if seconds is None:
        return None
    return expected("the replacement was bought", f"{seconds:.0f} s after the reclaim was asked for")


def _quota(seen: Seen) -> Answer | None:
    codes = {
        str(code)
        for one in seen.exchanges
        for place in ((), ("items", "*", "operations"))
        for code in values_at(one.answer, *place, "error", "errors", "code")
        if "operations" in one.action
    }
    if "QUOTA_EXCEEDED" in codes:
        return otherwise("a launch was refused whole", "its operation ended with QUOTA_EXCEEDED")
    if seen.passed("two-nodes"):
        return expected("it has room for two machines", "no operation ended with QUOTA_EXCEEDED")
    return None


_SCHEDULING: Final = ("instanceProperties", "scheduling")

ANSWERS: Final[Mapping[str, AnswerOf]] = {
    "gcp-preemption-notice": _preemption_notice,
    "gcp-request-id": _request_id,
    "gcp-image": of_steps("it is: offers were found with it", "price"),
    "gcp-prices": _prices,
    "gcp-price-of-disks": _price_of_disks,
    "gcp-image-python": _image_python,
    "gcp-shutdown-script": _shutdown_script,
    "gcp-self-delete": _self_delete,
    "gcp-template-right": _template_right,
    "gcp-firewall": of_steps("it does", "two-nodes"),
    "gcp-new-account": _new_account,
    "gcp-preempted-event": _preempted_event,
    "gcp-scheduler-internal": of_steps("they may", "driver"),
    "gcp-build-account": of_steps("it does", "driver"),
    "gcp-function-memory": of_steps("they are", "driver"),
    "gcp-deployer-grants": of_steps("the deployment passed at the first try", "driver"),
    "gcp-listing": lambda seen: listing_lag(seen, BULK, INSTANCES, where=_names),
    "gcp-quota": _quota,
}


def _names(one: Exchange) -> list[str]:
    """Return the names of the machines that a bulk insert requests."""
    found = list(values_at(one.request, "body", "perInstanceProperties"))
    return [name for names in found for name in names]
