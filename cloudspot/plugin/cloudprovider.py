"""The base of SDK-based providers and provisioners, whose clients are created at first use and then kept."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, cast

from cloudspot.calls import CheckRequest, CheckResults, OffersRequest, OffersResult
from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.interfaces import ImageHost, Provider, Provisioner
from cloudspot.interfaces import Options as Options  # noqa: PLC0414 - authors take it from here
from cloudspot.model import CheckResult, MachineImage, Market, Offer, Resources
from cloudspot.plugin.answercache import FACTS_SECONDS, AnswerCache
from cloudspot.plugin.answers import readable
from cloudspot.plugin.priceparts import price_with_extras
from cloudspot.plugin.sdkerrors import UnknownRole

Clients = TypeVar("Clients")
Answer = TypeVar("Answer")

FAILURE_SECONDS: Final = 60.0
"""How long an optional fact is not requested again after a failure."""
SETUP_IMAGE_SECONDS: Final = 60.0
"""How long it may take until a new image is used, or until a removed image is no longer used."""


class Caller(NamedTuple):
    """The owner of credentials."""

    account: str
    """The account's number."""
    arn: str


class CloudProvider(Provider[Options], Generic[Options, Clients]):
    """A provider that creates its clients and its provisioner at first use, once each. Thread-safe."""

    def __init__(self, options: Options | None = None) -> None:
        """Keep the job's options (None means the defaults); raise SpecError if an option is invalid."""
        chosen = cast("Options", self.options_type()) if options is None else options
        super().__init__(chosen)
        self._lock = threading.RLock()
        self._clients: Clients | None = None
        self._provisioner: Provisioner | None = None
        self.check_options(chosen)

    @property
    def clients(self) -> Clients:
        """Return the SDK's clients."""
        with self._lock:
            if self._clients is None:
                self._clients = self.make_clients()
            return self._clients

    def provisioner(self) -> Provisioner:
        """Return the provisioner, always the same object, because it caches its lookups."""
        clients = self.clients
        with self._lock:
            if self._provisioner is None:
                self._provisioner = self.make_provisioner(clients)
            return self._provisioner

    def check(self, request: CheckRequest) -> CheckResults:
        """Check everything that a job needs, with a remedy for each failure."""
        return CheckResults(results=tuple(self.run_checks(self.clients, request.resources or Resources())))

    @abstractmethod
    def check_options(self, options: Options) -> None:
        """Refuse invalid options, as far as this can be determined without a request."""

    @abstractmethod
    def make_clients(self) -> Clients:
        """Return the SDK's clients; this imports the SDK and does no I/O."""

    @abstractmethod
    def make_provisioner(self, clients: Clients) -> Provisioner:
        """Return the provisioner, without I/O."""

    @abstractmethod
    def run_checks(self, clients: Clients, resources: Resources) -> Sequence[CheckResult]:
        """Return the lines of ``check``."""


class OfferFinder(Generic[Options, Clients]):
    """Requests offers from a cloud, and caches facts that rarely change. Thread-safe."""

    def __init__(
        self,
        options: Options,
        clients: Clients,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do no I/O."""
        self.options = options
        self.clients = clients
        self.cache = AnswerCache(monotonic=monotonic)

    @abstractmethod
    def offers(self, resources: Resources) -> tuple[Offer, ...]:
        """Return the offers for ``Provisioner.offers``."""

    @abstractmethod
    def spot_price(self, offer: Offer) -> float | None:
        """Return the current hourly price of a spot offer's machine, or None if the cloud does not report it.

        Recent answers are cached.
        """

    def setup_image(self, host: ImageHost, key: str | None) -> MachineImage | None:
        """Return the image with the results of the job's setup, or None if no such image is ready.

        Without permission to search for the image, or after its removal, machines run the setup.
        """
        if key is None:
            return None
        found = self.if_known("setup image", lambda: host.find(key), seconds=SETUP_IMAGE_SECONDS)
        return found if found is not None and found.is_ready else None

    def if_known(
        self, key: Hashable, ask: Callable[[], Answer | None], *, seconds: float = FACTS_SECONDS
    ) -> Answer | None:
        """Return the answer, or None if it is unavailable; then it is not requested again for a minute."""

        def tried() -> Answer | None:
            try:
                return ask()
            except CloudspotError:
                return None

        answer = self.cache.get(key, tried, seconds=seconds)
        if answer is None:
            self.cache.shorten(key, seconds=FAILURE_SECONDS)
        return answer


NEW_ROLE_SECONDS = 120.0
"""How long a new role may be unknown to the service that launches machines. Clouds guarantee no upper bound.
"""


class CloudProvisioner(Provisioner, Generic[Options, Clients]):
    """The machines of one account. Thread-safe; its constructor makes no request."""

    provider: ClassVar[str]
    """The provider's name."""
    finder_type: ClassVar[type[OfferFinder[Any, Any]]]

    def __init__(
        self,
        options: Options,
        clients: Clients,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the job's options."""
        self.options = options
        self.clients = clients
        self.monotonic = monotonic
        self.finder = self.finder_type(options, clients, monotonic=monotonic)
        self._role_refused_at: float | None = None
        """When a launch was first refused because of its role (monotonic)."""

    def unless_new(self, refusal: CloudspotError) -> CloudspotError:
        """Return the refusal of a launch, as a TransientError while the machines' role may be too new."""
        if not isinstance(refusal, UnknownRole):
            return refusal
        now = self.monotonic()
        self._role_refused_at = now if self._role_refused_at is None else self._role_refused_at
        if now - self._role_refused_at >= NEW_ROLE_SECONDS:
            return refusal
        return TransientError(f"{refusal}; it may be too new to be known: trying again")

    def offers(self, request: OffersRequest) -> OffersResult:
        """Return the offers of all matching types, in all zones that sell them, on both markets.

        Raises:
            SpecError: an option names something that does not exist.
        """
        with readable("looking for offers"):
            return OffersResult(offers=self.finder.offers(request.resources))

    def current_price(self, offer: Offer) -> float | None:
        """Return the current hourly price of a node of the offer; see Provisioner."""
        if offer.market is not Market.SPOT:
            return None
        try:
            with readable(f"asking what {offer.key} costs"):
                price = self.finder.spot_price(offer)
        except (AuthError, TransientError):
            raise
        except CloudspotError as error:
            raise TransientError(str(error)) from error
        return None if price is None else price_with_extras(offer, price)

    def require_account(self, wanted: str, found: str) -> None:
        """Refuse an account other than the submitter's, because its empty listing would prove nothing."""
        if found != wanted:
            raise AuthError(
                f"providers.{self.provider}.account: the job's machines are in account {wanted}, but the "
                f"credentials are of account {found}; use credentials of {wanted}"
            )
