"""Inspect, create and remove the parts of an account's setup; each step is recorded first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from cloudspot.calls import SetupRequest
from cloudspot.cli.account.record import INTENDED, MADE, REMOVED, SetupRecord
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import AccountSetup, SetupPart
from cloudspot.jobstore.layout import keys
from cloudspot.model import PartState
from cloudspot.registry import open_store


class Plan(Enum):
    """How a setup handles a part."""

    MAKE = "make"
    COMPLETE = "complete"
    """This setup created the part, or began to, but the part is incomplete."""
    KEEP = "keep"
    """This setup created the part, and the part is complete."""
    ADOPT = "adopt"
    """Someone else created the resource, and it allows no more than the part, so it is used unchanged."""
    REFUSE = "refuse"


@dataclass(frozen=True)
class Found:
    """A part, with its current state in the account."""

    part: SetupPart
    state: PartState
    plan: Plan


def look_at(parts: Sequence[SetupPart], record: SetupRecord) -> list[Found]:
    """Return the plan for each part, without changing anything."""
    found = []
    for part in parts:
        is_own = record.has(part)
        state = part.look(is_own=is_own)
        if state.excess:
            plan = Plan.REFUSE
        elif not state.exists:
            plan = Plan.MAKE
        elif not is_own:
            plan = Plan.ADOPT
        else:
            plan = Plan.COMPLETE if state.lacks else Plan.KEEP
        found.append(Found(part, state, plan))
    return found


def make(found: Sequence[Found], request: SetupRequest, record: SetupRecord) -> Iterator[SetupPart]:
    """Create the missing parts, and yield each one once it exists; safe to repeat after a kill."""
    record.ask(request)
    for one in found:
        if one.plan in {Plan.MAKE, Plan.COMPLETE}:
            record.note(one.part, INTENDED)
            one.part.make()
            record.note(one.part, MADE)
            yield one.part


def completed(request: SetupRequest, record: SetupRecord) -> SetupRequest:
    """Return the request, with omitted choices filled in from earlier requests for this account."""
    for earlier in reversed(record.requests):
        chosen = {
            name: getattr(earlier, name)
            for name in ("store_url", "monthly_limit", "warn")
            if getattr(request, name) is None
        }
        people = dict.fromkeys((*request.grant_to, *earlier.grant_to))
        request = msgspec.structs.replace(request, **chosen, grant_to=tuple(people))
    return request


def recorded_parts(setup: AccountSetup, record: SetupRecord) -> list[SetupPart]:
    """Return the parts that this setup has created or begun to create, in the order of their removal.

    The bucket comes first, because its removal may be refused.

    Raises:
        CloudspotError: this version of cloudspot does not know one of the parts.
    """
    known: dict[tuple[str, str], SetupPart] = {}
    for request in record.requests:
        known.update({(part.kind, part.name): part for part in setup.parts(request)})
    unknown = [f"{kind} {name}" for kind, name in record.parts if (kind, name) not in known]
    if unknown:
        raise CloudspotError(
            f"{', '.join(unknown)}: made by another version of cloudspot; remove it by hand, then delete "
            f"{record.path}"
        )
    ours = [known[name] for name in reversed(record.parts)]
    return sorted(ours, key=lambda part: not part.is_store)


def remove(
    parts: Sequence[SetupPart], store_url: str | None, record: SetupRecord
) -> Iterator[tuple[SetupPart, str | None]]:
    """Remove the parts; yield each part once it is removed, or with the reason why it stays. Safe to repeat.

    Raises:
        CloudspotError: the bucket still contains a job, or an object that is not cloudspot's. Nothing is
            removed in that case.
    """
    for part in parts:
        if part.is_store and store_url is not None and part.look(is_own=True).exists:
            _empty(part, store_url)
        stays = part.remove()
        record.note(part, REMOVED)
        yield part, stays
    record.close()


def _empty(part: SetupPart, store_url: str) -> None:
    """Delete everything that a store keeps for no particular job, if the bucket contains nothing else."""
    scheme, _, rest = store_url.partition("://")
    name, _, prefix = rest.partition("/")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    bucket = open_store(f"{scheme}://{name}")  # others may have put objects beside the jobs
    found = [meta.key for meta in bucket.list_objects("")]
    own = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
    jobs = sorted({match[0] for key in own if (match := keys.index.match(key)) is not None})
    if jobs:
        more = f" and {len(jobs) - 1} more" if jobs[1:] else ""
        raise CloudspotError(
            f"{part.kind} {part.name} holds the job {jobs[0]}{more}; remove it first: cloudspot rm {jobs[0]}"
        )
    passing = {prefix + key for key in own if keys.is_passing(key)}
    others = [key for key in found if key not in passing]
    if others:
        raise CloudspotError(
            f"{part.kind} {part.name} holds {len(others)} objects that do not belong to cloudspot, such as "
            f"{others[0]}; move or delete them first"
        )
    bucket.delete_many(found)
    for upload in list(bucket.unfinished_uploads()):
        bucket.abort_upload(upload)
