"""The base of the parts of a cloud's account setup, including the translation of errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

from cloudspot.errors import AuthError
from cloudspot.interfaces import SetupPart
from cloudspot.model import PartState
from cloudspot.plugin.sdkerrors import SdkErrors

FREE: Final = "no charge"
_BY_THE_ORGANISATION: Final = (
    "; a policy of your organisation forbids it: its administrators can allow it, or make this themselves"
)


class CloudPart(SetupPart):
    """A part that a subclass inspects, creates and removes, raising its SDK's own errors."""

    provider: ClassVar[str]
    """The provider's name."""
    errors: ClassVar[SdkErrors]
    forbids: ClassVar[tuple[str, ...]] = ()
    """Words in the cloud's message which mean that a policy forbids the action for every caller."""
    is_store = False

    def __init__(
        self,
        kind: str,
        name: str,
        purpose: str,
        *,
        cost: str = FREE,
        rights: Sequence[str] = (),
        commands: Sequence[str] = (),
    ) -> None:
        """Do no I/O."""
        self.kind, self.name, self.purpose, self.cost = kind, name, purpose, cost
        self.rights, self.commands = tuple(rights), tuple(commands)

    def look(self, *, is_own: bool) -> PartState:
        """Return the present state of the part; see SetupPart."""
        with self.errors.translated(f"looking at {self.kind} {self.name}"):
            return self.state(is_own=is_own)

    def make(self) -> None:
        """Create the part; see SetupPart."""
        with self.explained(f"making {self.kind} {self.name}"):
            self.create()

    def remove(self) -> str | None:
        """Remove the part; see SetupPart."""
        with self.explained(f"removing {self.kind} {self.name}"):
            return self.delete()

    @abstractmethod
    def state(self, *, is_own: bool) -> PartState:
        """Return the result of ``look``."""

    @abstractmethod
    def create(self) -> None:
        """Create the part, for ``make``."""

    @abstractmethod
    def delete(self) -> str | None:
        """Remove the part, for ``remove``."""

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Translate the SDK's errors; if a permission is missing, name who can do it."""
        try:
            with self.errors.translated(what):
                yield
        except AuthError as error:
            by_an_administrator = (
                "; run this as an administrator of the account, or give one what "
                f"`cloudspot setup {self.provider} --print commands` prints"
            )
            is_forbidden = any(sign in str(error) for sign in self.forbids)
            raise AuthError(
                f"{error}{_BY_THE_ORGANISATION if is_forbidden else by_an_administrator}"
            ) from error


def state_of(*, is_own: bool, differences: Sequence[str], lacks: Sequence[str] = ()) -> PartState:
    """Return the state of an existing part; differences can be repaired only if this setup created it."""
    if is_own:
        return PartState(exists=True, lacks=(*differences, *lacks))
    return PartState(exists=True, excess=tuple(differences), lacks=tuple(lacks))
