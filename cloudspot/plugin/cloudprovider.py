"""What providers and provisioners on an SDK have in common: what is made when first used, and then kept."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import msgspec

from cloudspot.errors import AuthError
from cloudspot.interfaces import Provider, Provisioner
from cloudspot.model import CheckResult, Offer, Resources
from cloudspot.plugin.answercache import AnswerCache

Options = TypeVar("Options", bound=msgspec.Struct)
Clients = TypeVar("Clients")


class Caller(NamedTuple):
    """Whom credentials belong to."""

    account: str
    """Its number."""
    arn: str


class CloudProvider(Provider, Generic[Options, Clients]):
    """A provider whose clients and provisioner are made when first used, once each. Thread-safe."""

    def __init__(self, options: Options | None = None) -> None:
        """Keep the job's options (None: the defaults); raise SpecError if one can be seen to be wrong."""
        chosen = cast("Options", self.options_type()) if options is None else options
        super().__init__(chosen)
        self._options = chosen
        self._lock = threading.Lock()
        self._clients: Clients | None = None
        self._provisioner: Provisioner | None = None
        self._check_options(chosen)

    @property
    def clients(self) -> Clients:
        """Return the SDK's clients."""
        with self._lock:
            if self._clients is None:
                self._clients = self._make_clients()
            return self._clients

    def provisioner(self) -> Provisioner:
        """Return the provisioner; the same one each time, since it keeps what it has looked up."""
        clients = self.clients
        with self._lock:
            if self._provisioner is None:
                self._provisioner = self._make_provisioner(clients)
            return self._provisioner

    def check(self, *, resources: Resources | None = None) -> Sequence[CheckResult]:
        """Try what a job needs, and say for each thing what is missing and how to mend it."""
        return self._check(self.clients, resources or Resources())

    @abstractmethod
    def _check_options(self, options: Options) -> None:
        """Refuse what can be seen to be wrong without a request."""

    @abstractmethod
    def _make_clients(self) -> Clients:
        """Return the SDK's clients; this imports it, and does no I/O."""

    @abstractmethod
    def _make_provisioner(self, clients: Clients) -> Provisioner: ...

    @abstractmethod
    def _check(self, clients: Clients, resources: Resources) -> Sequence[CheckResult]: ...


class OfferFinder(Generic[Options, Clients]):
    """Asks a cloud for offers, and keeps for a while what does not change. Thread-safe."""

    def __init__(
        self,
        options: Options,
        clients: Clients,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do no I/O."""
        self._options = options
        self._clients = clients
        self._cache = AnswerCache(monotonic=monotonic)

    @abstractmethod
    def offers(self, resources: Resources) -> tuple[Offer, ...]:
        """Return the offers, as ``Provisioner.offers``."""


class CloudProvisioner(Provisioner, Generic[Options, Clients]):
    """The machines of one account. Thread-safe; asks nothing before it is asked."""

    provider: ClassVar[str]
    """The provider's name."""
    finder_type: ClassVar[type[OfferFinder[Any, Any]]]

    def __init__(self, options: Options, clients: Clients) -> None:
        """Keep the job's options."""
        self._options = options
        self._clients = clients
        self._finder = self.finder_type(options, clients)

    def offers(self, resources: Resources) -> Sequence[Offer]:
        """Return the types that fit, wherever they are sold, on both markets.

        Raises:
            SpecError: an option names what does not exist.
        """
        return self._finder.offers(resources)

    def _require_account(self, wanted: str, found: str) -> None:
        """Refuse another account than the submitter's: its empty listing would prove nothing."""
        if found != wanted:
            raise AuthError(
                f"providers.{self.provider}.account: the job's machines are in account {wanted}, and these "
                f"credentials are of {found}; use others"
            )
