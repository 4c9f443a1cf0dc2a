"""Makes the requests of a recording again, in an emulation, and pairs the answers."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from cloudspot.calls import InstancesRequest, TerminateRequest
from cloudspot.model import InstanceState
from cloudspot.plugin.apirecording import ApiExchange, observe
from cloudspot.registry import open_provider
from cloudspot_prove.clouds import Cloud
from cloudspot_prove.differences import Pair, shown_part
from cloudspot_prove.masking import BYTES, MARK, NUMBER, TIME, Mask
from cloudspot_prove.recording import Exchange

_MADE_UP: Final = re.compile(r"r[0-9a-f]{12}")
_MASKS: Final = (BYTES, NUMBER, TIME)


def replay(cloud: Cloud, exchanges: Sequence[Exchange]) -> Iterator[Pair]:
    """Make each request again, in the order of the recording, and yield it with its answer.

    If a name in a request came from an earlier answer, it is replaced by the name in the same place of the
    emulation's answer. Other names are invented. Of identical requests in a row with the same answer, only
    the first is made.
    """
    mask = Mask(secrets.token_bytes(32), cloud.allowed())
    known = _Names()
    observed: list[ApiExchange] = []
    observe(observed.append)
    before: tuple[str, Any, Any] | None = None
    for exchange in exchanges:
        key = (exchange.action, exchange.request, exchange.answer)
        if key == before:
            continue
        before = key
        made_up: list[tuple[str, ...]] = []
        request = known.put_in(exchange.request, (), made_up)
        action = known.put_in_action(exchange.action, made_up, cloud.own)
        observed.clear()
        completed = cloud.completed(exchange.action, request)
        cloud.repeat(msgspec.structs.replace(exchange, action=action, request=completed))
        if not observed:  # for example, the SDK itself refuses a parameter
            continue
        answered = observed[-1]
        pair = Pair(
            recorded=exchange,
            status=answered.status,
            code=mask.code(answered.code),
            answer=mask.tree(answered.answer, exchange.service),
            seconds=answered.seconds,
            is_same_request=all(path and path[-1] in cloud.free for path in made_up),
            names={one: mask.pseudonym(other) for one, other in known.by_pseudonym.items()},
        )
        yield pair
        if not exchange.code and not answered.code:
            known.learn(exchange.answer, pair.answer, answered.answer)


def end_machines(provider: str) -> None:
    """End the machines that replays have bought, which are recognised by their jobs' invented names."""
    provisioner = open_provider(provider, None).provisioner()
    found = [
        one.id
        for one in provisioner.instances(InstancesRequest()).instances
        if _MADE_UP.fullmatch(one.job_id) and one.state is not InstanceState.ENDED
    ]
    provisioner.terminate(TerminateRequest(instance_ids=tuple(found)))


class _Names:
    """The emulation's names for the recording's pseudonyms."""

    def __init__(self) -> None:
        self.by_pseudonym: dict[str, str] = {}
        # Without a new salt, a token would be that of an earlier replay, and return its machines.
        self._salt = secrets.token_bytes(8)

    def learn(self, recorded: Any, masked: Any, answer: Any) -> None:
        """Note the names in the same places of two answers; ``masked`` is the masked form of ``answer``."""
        if isinstance(recorded, Mapping) and isinstance(answer, Mapping):
            for (name, one), (replayed, other) in zip(masked.items(), answer.items(), strict=True):
                same = name if name in recorded else replayed
                if same in recorded:
                    self.learn(recorded[same], one, other)
        elif isinstance(recorded, list) and isinstance(answer, (list, tuple)):
            for one, place in zip(recorded, _places(recorded, masked), strict=False):
                self.learn(one, masked[place], answer[place])
        elif _is_pseudonym(recorded) and isinstance(answer, str):
            is_url = answer.startswith(("http://", "https://"))
            last = answer.rstrip("/").rpartition("/")[2] if is_url else answer
            self.by_pseudonym.setdefault(recorded, last)

    def put_in(self, value: Any, path: tuple[str, ...], made_up: list[tuple[str, ...]]) -> Any:
        """Return a request's value with its pseudonyms replaced; note the paths of invented names."""
        if isinstance(value, Mapping):
            return {
                self._name(str(name)): self.put_in(one, (*path, str(name)), made_up)
                for name, one in value.items()
            }
        if isinstance(value, list):
            return [self.put_in(one, path, made_up) for one in value]
        if not isinstance(value, str) or not value.startswith(MARK):
            return value
        if value in self.by_pseudonym:
            return self.by_pseudonym[value]
        made_up.append(path)
        if value == NUMBER:
            return 1
        return "2026-01-01T00:00:00Z" if value == TIME else self._made_up(value)

    def put_in_action(
        self, action: str, made_up: list[tuple[str, ...]], own: Callable[[str], str | None]
    ) -> str:
        """Return a method and a path with names for its pseudonyms."""
        method, space, path = action.partition(" ")
        if not space:
            return action
        parts: list[str] = []
        for part in path.split("/"):
            name, colon, verb = part.partition(":")
            only = own(parts[-1]) if parts and _is_pseudonym(name) else None
            if only is not None:
                self.by_pseudonym.setdefault(name, only)
            parts.append(str(self.put_in(name, ("path",), made_up)) + colon + verb)
        return f"{method} {'/'.join(parts)}"

    def _name(self, name: str) -> str:
        return self.by_pseudonym.get(name, self._made_up(name)) if _is_pseudonym(name) else name

    def _made_up(self, pseudonym: str) -> str:
        """Return a name that is valid nearly everywhere, the same for the same pseudonym in one replay."""
        return f"r{hashlib.sha256(self._salt + pseudonym.encode()).hexdigest()[:12]}"


def _places(recorded: Sequence[Any], masked: Sequence[Any]) -> Sequence[int]:
    """Return each recorded item's index in the other list, by its visible content or else its place."""
    ours, others = ([shown_part(one, {}) for one in some] for some in (recorded, masked))
    if len(set(ours)) == len(ours) and sorted(ours) == sorted(others):
        return [others.index(one) for one in ours]
    return range(len(others))


def _is_pseudonym(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(MARK) and value not in _MASKS
