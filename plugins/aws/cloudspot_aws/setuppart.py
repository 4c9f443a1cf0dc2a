"""A part of an AWS account's setup: the calls that make it, and those that remove it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from cloudspot.errors import AuthError
from cloudspot.interfaces import SetupPart
from cloudspot.model import PartState
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS, ignored
from cloudspot_aws.setupcalls import AwsCall

Answer = TypeVar("Answer")

FREE: Final = "no charge"
TAG: Final = "cloudspot-setup"
"""On all that a setup makes, where it can be tagged: for people, and for bills."""
TAGS: Final = ({"Key": TAG, "Value": "cloudspot"},)
_BY_AN_ADMINISTRATOR: Final = (
    "; run this as an administrator of the account, or give one what "
    "`cloudspot setup aws --print commands` prints"
)
_BY_THE_ORGANISATION: Final = (
    "; a policy of your organisation forbids it: its administrators can allow it, or make this themselves"
)
_FORBIDS: Final = ("service control policy", "permissions boundary", "resource control policy")


class AwsPart(SetupPart):
    """A part that some calls make and others remove."""

    is_store = False

    def __init__(
        self,
        clients: AwsClients,
        kind: str,
        name: str,
        purpose: str,
        *,
        making: Sequence[AwsCall],
        removing: Sequence[AwsCall],
        cost: str = FREE,
        rights: Sequence[str] = (),
    ) -> None:
        """Do no I/O."""
        self.clients = clients
        self.kind, self.name, self.purpose, self.cost = kind, name, purpose, cost
        self.rights = tuple(rights)
        self.making, self.removing = making, removing
        self.commands = tuple(call.command() for call in making)

    def look(self, *, is_own: bool) -> PartState:
        """Return what stands in its place; see SetupPart."""
        with ERRORS.translated(f"looking at {self.kind} {self.name}"):
            return self.state(is_own=is_own)

    def make(self) -> None:
        """Make the calls; see SetupPart."""
        with self.explained(f"making {self.kind} {self.name}"):
            for call in self.making:
                call.run(self.clients)

    def remove(self) -> None:
        """Make the calls that remove it; see SetupPart."""
        with self.explained(f"removing {self.kind} {self.name}"):
            for call in self.removing:
                call.run(self.clients)

    @abstractmethod
    def state(self, *, is_own: bool) -> PartState:
        """Return what ``look`` returns; the SDK's errors are translated."""

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Translate the SDK's errors, and say who can do what a right is missing for."""
        try:
            with ERRORS.translated(what):
                yield
        except AuthError as error:
            is_forbidden = any(word in str(error) for word in _FORBIDS)
            raise AuthError(
                f"{error}{_BY_THE_ORGANISATION if is_forbidden else _BY_AN_ADMINISTRATOR}"
            ) from error


def unless(code: str, ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer; None: the service says that there is none, with this code."""
    with ignored(code):
        return ask()
    return None


def sorted_state(is_own: bool, differences: Sequence[str], lacks: Sequence[str]) -> PartState:  # noqa: FBT001
    """Return the state of what exists: what another has opened is excess, and one's own is mended."""
    if is_own:
        return PartState(exists=True, lacks=(*differences, *lacks))
    return PartState(exists=True, excess=tuple(differences), lacks=tuple(lacks))
