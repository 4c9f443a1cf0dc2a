import concurrent.futures

import msgspec
import pytest

from cloudspot.errors import AuthError, CloudspotError, SpecError, TransientError
from cloudspot.model import Market, Offer, Resources
from cloudspot.plugin.cloudprovider import CloudProvider, CloudProvisioner, OfferFinder
from cloudspot.plugin.priceparts import with_extras
from cloudspot.testing import plaincalls


class Options(msgspec.Struct, frozen=True, kw_only=True):
    region: str = "sky-1"


class Finder(OfferFinder):
    def offers(self, resources):
        zone = self.cache.get("region", lambda: self.clients.ask(self.options.region))
        return (offer(zone=zone),)

    def spot_price(self, offer):
        if offer.zone == "hail":
            raise CloudspotError("the answer cannot be read")
        if offer.zone == "fog":
            raise AuthError("the right sky:Prices is missing")
        return self.cache.get(("price", offer.zone), lambda: 0.25, seconds=60.0)


class Clients:
    def __init__(self):
        self.asked = []

    def ask(self, text):
        self.asked.append(text)
        return text


class Provisioner(CloudProvisioner):
    provider = "cirrus"
    finder_type = Finder

    def render(self, group): ...

    def create(self, request): ...

    def instances(self, request): ...

    def terminate(self, request): ...


class Provider(CloudProvider):
    name = "cirrus"
    options_type = Options
    num_clients = 0

    def preemption_source(self): ...

    def node_identity(self): ...

    def boot_profile(self): ...

    def check_options(self, options):
        if options.region == "":
            raise SpecError("providers.cirrus.region: empty")

    def make_clients(self):
        self.num_clients += 1
        return Clients()

    def make_provisioner(self, clients):
        return Provisioner(self.options, clients)

    def run_checks(self, clients, resources):
        return (clients, resources)


def test_options_are_the_defaults_if_there_are_none_and_wrong_ones_are_refused_at_once():
    assert Provider().options == Options()
    assert Provider(Options(region="sea-1")).options.region == "sea-1"
    with pytest.raises(SpecError, match="empty"):
        Provider(Options(region=""))


def test_clients_and_provisioner_are_made_when_first_used_and_once():
    provider = Provider()
    assert provider.num_clients == 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: provider.provisioner(), range(16)))
    assert len(made) == 1
    assert plaincalls.check(provider)[0] is provider.clients
    assert plaincalls.check(provider, resources=Resources(cpus=3))[1].cpus == 3
    assert provider.num_clients == 1


def test_what_an_offer_needs_is_asked_for_once():
    provider = Provider()
    found = [plaincalls.offers(provider.provisioner(), Resources()) for _ in range(2)]
    assert found == [(offer(zone="sky-1"),)] * 2
    assert provider.clients.asked == ["sky-1"]


def offer(market=Market.SPOT, zone="sky-1a"):
    return Offer(
        instance_type="c", zone=zone, market=market, price_per_hour=0.5, on_demand_price_per_hour=1.0
    )


def test_a_spot_machines_price_is_the_markets_and_another_stays():
    provisioner = Provider().provisioner()
    assert provisioner.current_price(offer()) == 0.25
    assert provisioner.current_price(offer(Market.ON_DEMAND)) is None
    assert provisioner.current_price(with_extras(offer(), {"disk": 0.125})) == 0.375


def test_a_price_that_cannot_be_told_is_asked_for_again_unless_a_right_is_missing():
    provisioner = Provider().provisioner()
    with pytest.raises(TransientError, match=r"^the answer cannot be read$"):
        provisioner.current_price(offer(zone="hail"))
    with pytest.raises(AuthError, match="sky:Prices"):
        provisioner.current_price(offer(zone="fog"))


def test_another_account_than_the_jobs_is_refused():
    provisioner = Provider().provisioner()
    provisioner.require_account("1", "1")
    with pytest.raises(AuthError) as error:
        provisioner.require_account("1", "2")
    assert str(error.value) == (
        "providers.cirrus.account: the job's machines are in account 1, but the credentials are of account 2; "
        "use credentials of 1"
    )
