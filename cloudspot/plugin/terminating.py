"""End many machines independently of one another, and report those that were refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cloudspot.calls import Refused, TerminateResult
from cloudspot.errors import AuthError, CloudspotError, TransientError

_OF_THE_ACCOUNT: Final = (AuthError, TransientError)
"""Errors that do not concern a single machine; if no machine could be ended, one of them is raised."""


def end_all(
    instance_ids: Sequence[str], end: Callable[[Sequence[str]], None], *, at_once: int = 1
) -> TerminateResult:
    """End each machine once; ``end`` accepts up to ``at_once`` of them.

    If ``end`` refuses several machines, perhaps because of one of them, each is tried separately, unless the
    service did not answer.

    Raises:
        AuthError: none of the machines could be ended, and a permission was missing at least once.
        TransientError: none of the machines could be ended; call again.
    """
    ids = list(dict.fromkeys(instance_ids))
    parts = [ids[start : start + at_once] for start in range(0, len(ids), at_once)]
    errors: dict[str, CloudspotError] = {}
    for part in parts:
        errors |= _refusals(part, end)
    return result_of(errors, len(ids))


def result_of(errors: dict[str, CloudspotError], num_machines: int) -> TerminateResult:
    """Return the result with these errors by machine, or raise an error in the same cases as ``end_all``."""
    if errors and len(errors) == num_machines:
        found = list(errors.values())
        if all(isinstance(one, _OF_THE_ACCOUNT) for one in found):
            raise next((one for one in found if isinstance(one, AuthError)), found[0])
    return TerminateResult(
        refused=tuple(Refused(instance_id=one, reason=str(error)) for one, error in errors.items())
    )


def _refusals(part: Sequence[str], end: Callable[[Sequence[str]], None]) -> dict[str, CloudspotError]:
    try:
        end(part)
    except TransientError as error:
        return dict.fromkeys(part, error)
    except CloudspotError as error:
        if len(part) == 1:
            return {part[0]: error}
        return {one: refusal for each in part for one, refusal in _refusals([each], end).items()}
    return {}
