import concurrent.futures

import msgspec
import pytest

from cloudspot.errors import AuthError, SpecError
from cloudspot.model import Resources
from cloudspot.plugin.cloudprovider import CloudProvider, CloudProvisioner, OfferFinder


class Options(msgspec.Struct, frozen=True, kw_only=True):
    region: str = "sky-1"


class Finder(OfferFinder):
    def offers(self, resources):
        return (self._cache.get("region", lambda: self._clients.ask(self._options.region)),)


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

    def create(self, request, *, token): ...

    def instances(self, *, job_id=None):
        return ()

    def terminate(self, instance_ids): ...


class Provider(CloudProvider):
    name = "cirrus"
    options_type = Options
    num_clients = 0

    def preemption_source(self): ...

    def node_identity(self): ...

    def boot_profile(self): ...

    def _check_options(self, options):
        if options.region == "":
            raise SpecError("providers.cirrus.region: empty")

    def _make_clients(self):
        self.num_clients += 1
        return Clients()

    def _make_provisioner(self, clients):
        return Provisioner(self._options, clients)

    def _check(self, clients, resources):
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
    assert provider.check()[0] is provider.clients
    assert provider.check(resources=Resources(cpus=3))[1].cpus == 3
    assert provider.num_clients == 1


def test_what_an_offer_needs_is_asked_for_once():
    provider = Provider()
    assert [provider.provisioner().offers(Resources()) for _ in range(2)] == [("sky-1",)] * 2
    assert provider.clients.asked == ["sky-1"]


def test_another_account_than_the_jobs_is_refused():
    provisioner = Provider().provisioner()
    provisioner._require_account("1", "1")
    with pytest.raises(AuthError) as error:
        provisioner._require_account("1", "2")
    assert str(error.value) == (
        "providers.cirrus.account: the job's machines are in account 1, and these credentials are of 2; use others"
    )
