"""Several regions of a cloud whose API serves one region: one provisioner per region, and one for all."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from cloudspot.calls import (
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    OffersRequest,
    OffersResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.errors import CloudspotError, ProvisionError, SpecError, TransientError, reason_of
from cloudspot.interfaces import ImageHost, Inventory, Provisioner
from cloudspot.model import CheckResult, Instance, InstanceGroup, LaunchRequest, Offer, Resources
from cloudspot.plugin.cloudprovider import Clients, CloudProvider, Options
from cloudspot.plugin.terminating import result_of


class RegionalProvider(CloudProvider[Options, Clients]):
    """A provider with an option ``regions``; without it, everything is in its clients' region."""

    @property
    @abstractmethod
    def regions(self) -> Sequence[str]:
        """Return the regions that the option names."""

    @abstractmethod
    def in_region(self, region: str) -> tuple[Options, Clients]:
        """Return the options and the clients for one of the regions, without I/O."""

    @abstractmethod
    def transfer_price(self, offer: Offer) -> float:
        """Return ``Offer.transfer_price_per_gib`` for an offer in one of the regions."""

    @abstractmethod
    def make_provisioner_of(self, options: Options, clients: Clients) -> Provisioner:
        """Return the provisioner for the clients' region."""

    @abstractmethod
    def check_region(self, options: Options, clients: Clients, resources: Resources) -> Sequence[CheckResult]:
        """Return the lines of ``check`` for the clients' region."""

    def image_host_of(self, options: Options, clients: Clients) -> ImageHost:
        """Return the image host for the clients' region; by default there is none."""
        return super().image_host()

    @abstractmethod
    def account_regions(self) -> Sequence[str]:
        """Return all regions that the account can use."""

    @abstractmethod
    def inventories_of(self, options: Options, clients: Clients) -> Sequence[Inventory]:
        """Return the inventories for the clients' region."""

    def inventories(self, *, all_regions: bool) -> Sequence[Inventory]:
        """Return the inventories for the options' regions, or for all regions; see Provider."""
        regions = self.account_regions() if all_regions else self.regions
        if not regions:
            return self.inventories_of(self.options, self.clients)
        return [one for region in regions for one in self.inventories_of(*self.in_region(region))]

    def image_host(self) -> ImageHost:
        """Return the image host; each region has its own images.

        Raises:
            SpecError: the option ``regions`` is set.
        """
        if self.regions:
            option = f"providers.{self.name}.region={self.regions[0]}"
            raise SpecError(
                f"providers.{self.name}.regions: each region has its own images; choose one region, as with "
                f"--set providers.{self.name}.regions=[] --set {option}"
            )
        return self.image_host_of(self.options, self.clients)

    def make_provisioner(self, clients: Clients) -> Provisioner:
        """Return the provisioner for the only region, or for all regions in the options."""
        if not self.regions:
            return self.make_provisioner_of(self.options, clients)
        each = {region: self.make_provisioner_of(*self.in_region(region)) for region in self.regions}
        return RegionalProvisioner(each, self.transfer_price)

    def run_checks(self, clients: Clients, resources: Resources) -> Sequence[CheckResult]:
        """Return the lines for each region, preceded by its name."""
        if not self.regions:
            return self.check_region(self.options, clients, resources)
        return [
            msgspec.structs.replace(one, name=f"{region}: {one.name}")
            for region in self.regions
            for one in self.check_region(*self.in_region(region), resources)
        ]


class RegionalProvisioner(Provisioner):
    """The machines of several regions. Thread-safe.

    Each region's offers name their ``region``, and its requests contain the region in their bodies.
    """

    def __init__(
        self, each: Mapping[str, Provisioner], transfer_price: Callable[[Offer], float] = lambda _: 0.0
    ) -> None:
        """Take a provisioner per region, and a function that returns ``Offer.transfer_price_per_gib``."""
        self._each = dict(each)
        self._transfer_price = transfer_price
        self.token_seconds = min(one.token_seconds for one in each.values())
        self.absence_proves_after_seconds = max(one.absence_proves_after_seconds for one in each.values())
        self._lock = threading.Lock()
        self._seen_in: dict[str, str] = {}
        """The region in which each machine was seen, by its id."""

    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return the request for the region of the group's offer."""
        return self._of(group.offer).render(group)

    def create(self, request: CreateRequest) -> CreateResult:
        """Create the machines in the region that the request names."""
        region = str(request.request.body.get("region"))
        if region not in self._each:
            raise ProvisionError(f"the launch is for {region}, but the job's regions are {self._names}")
        created = self._each[region].create(request)
        self._note(region, created.instances)
        return created

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Publish the facts to the machines of each region, even if this fails in another region."""
        groups: dict[str, list[Instance]] = defaultdict(list)
        for one in instances:
            groups[self._found(one.id)].append(one)
        _each_of(groups, lambda region: self._each[region].announce(groups[region], facts))

    def instances(self, request: InstancesRequest) -> InstancesResult:
        """Return the machines of all regions.

        Raises:
            TransientError: a region did not answer, so a machine's absence from the others proves nothing.
        """
        found: list[Instance] = []
        for region, one in self._each.items():
            machines = one.instances(request).instances
            self._note(region, machines)
            found += machines
        return InstancesResult(instances=tuple(found))

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        """End the machines, each in its region, or in all regions if its region is unknown.

        The regions are called in parallel, so that a region that fails or hangs does not affect the others.
        """
        groups: dict[str, list[str]] = defaultdict(list)
        with self._lock:
            for instance_id in request.instance_ids:
                seen_in = self._seen_in.get(instance_id)
                for region in self._each if seen_in is None else (seen_in,):
                    groups[region].append(instance_id)
        errors: dict[str, CloudspotError] = {}

        def end(region: str, ids: Sequence[str]) -> None:
            own = msgspec.structs.replace(request, instance_ids=tuple(ids))
            try:
                refused = self._each[region].terminate(own).refused
            except CloudspotError as error:
                errors.update(dict.fromkeys(ids, error))
            except Exception as error:  # noqa: BLE001 - a bug, which is reported with the region's machines
                errors.update(dict.fromkeys(ids, CloudspotError(reason_of(error))))
            else:
                errors.update({one.instance_id: CloudspotError(one.reason) for one in refused})

        threads = [threading.Thread(target=end, args=group, daemon=True) for group in groups.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return result_of(errors, len(set(request.instance_ids)))

    def console(self, instance: Instance) -> str:
        """Return the machine's output; raise TransientError if no region lists it."""
        return self._each[self._found(instance.id)].console(instance)

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Remove the resources that were created for the job in any region."""
        _each_of(self._each, lambda region: self._each[region].release(job_id, store_url=store_url))

    def offers(self, request: OffersRequest) -> OffersResult:
        """Return the offers of all regions, including the cost of moving checkpoints to and from each region.

        Raises:
            SpecError: an option names something that does not exist in a region.
            TransientError: a region did not answer; without its offers, a job might be given up wrongly.
        """
        found = [offer for one in self._each.values() for offer in one.offers(request).offers]
        return OffersResult(
            offers=tuple(
                msgspec.structs.replace(one, transfer_price_per_gib=self._transfer_price(one))
                for one in found
            )
        )

    def current_price(self, offer: Offer) -> float | None:
        """Return the current hourly price of a node of the offer, from its region."""
        return self._of(offer).current_price(offer)

    def region_of(self, instance_id: str) -> str | None:
        """Return the region of a machine, or None if no region lists it."""
        with self._lock:
            region = self._seen_in.get(instance_id)
        if region is None:
            self.instances(InstancesRequest())
            with self._lock:
                region = self._seen_in.get(instance_id)
        return region

    def _found(self, instance_id: str) -> str:
        region = self.region_of(instance_id)
        if region is None:
            raise TransientError(f"{instance_id} is listed in none of {self._names}")
        return region

    def _of(self, offer: Offer) -> Provisioner:
        if offer.region not in self._each:
            raise ProvisionError(f"{offer.key} is in none of the job's regions, {self._names}")
        return self._each[offer.region]

    def _note(self, region: str, machines: Sequence[Instance]) -> None:
        with self._lock:
            self._seen_in.update((one.id, region) for one in machines)

    @property
    def _names(self) -> str:
        return ", ".join(self._each)


def _each_of(regions: Iterable[str], call: Callable[[str], None]) -> None:
    """Make the call for each region, then raise the first error, preferably one that is not transient."""
    errors: list[CloudspotError] = []
    for region in regions:
        try:
            call(region)
        except CloudspotError as error:
            errors.append(error)
    if errors:
        raise next((one for one in errors if not isinstance(one, TransientError)), errors[0])
