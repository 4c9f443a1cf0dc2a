"""The kits of provisioners, notices and identity: what is broken on purpose fails the tests meant for it, alone."""

from __future__ import annotations

import os
import sys

import pytest
from support.worlds import broken_machines, broken_notices, broken_offers, broken_providers, broken_purchases
from support.worlds.kitruns import failures
from support.worlds.memorycloud import MemoryAccount, MemoryMachine, MemoryProvider

from cloudspot.testing import nodekit, providerkit
from cloudspot.testing.jobkit import JobCloud, WholeJobTests
from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests
from cloudspot.testing.offerkit import OfferTests
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot.testing.purchasekit import PurchaseTests


class TestMemoryCloud(ProvisionerTests, PurchaseTests, OfferTests):
    @pytest.fixture
    def account(self):
        return MemoryAccount()


class TestMemoryMachine(PreemptionSourceTests, NodeIdentityTests):
    @pytest.fixture
    def machine(self):
        return MemoryMachine()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install the providers, the sound one and the broken ones, for this process and those that it starts."""
    info = tmp_path / "broken_providers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-providers\nVersion: 1.0\n")
    names = [kind.name for kind in (broken_providers.Sound, *broken_providers.PROVIDERS)]
    points = "".join(f"{name} = support.worlds.broken_providers\n" for name in names)
    (info / "entry_points.txt").write_text(f"[cloudspot.providers]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    # Where much else runs, 50 ms are soon over.
    monkeypatch.setattr(providerkit, "MOST_IMPORT_SECONDS", 0.8 * broken_providers.SLOW_SECONDS)


def provider_tests(kind):
    options = {
        "name": kind.name,
        "packages": ("support.worlds.memorycloud", "support.worlds.broken_machines"),
    }
    return type("Tests", (providerkit.ProviderTests,), options)


class ProvisionerKits(ProvisionerTests, PurchaseTests, OfferTests):
    pass


def broken(part, kind):
    return type("Broken", (MemoryProvider,), {part: kind})


def names(kind):
    return {f"test_{promise}" for promise in kind.broken}


PROVISIONERS = [*broken_machines.PROVISIONERS, *broken_purchases.PURCHASES, *broken_offers.OFFERS]
SAMPLE = PROVISIONERS[::8]


def of_kinds(kinds):
    """Parametrize by them; a sample is quick, and the others, which wait more than they work, are not."""
    table = [
        pytest.param(kind, id=kind.__name__, marks=() if kind in SAMPLE else pytest.mark.full)
        for kind in kinds
    ]
    return pytest.mark.parametrize("kind", table)


@of_kinds(PROVISIONERS)
def test_a_broken_provisioner_fails_the_tests_meant_for_it(kind):
    provider = broken("provisioner_type", kind)
    assert failures(ProvisionerKits, account=lambda: MemoryAccount(provider)) == names(kind)


@of_kinds(broken_notices.SOURCES)
def test_a_broken_source_fails_the_tests_meant_for_it(kind, monkeypatch):
    monkeypatch.setattr(nodekit, "ANSWER_SECONDS", 1.5)
    provider = broken("source_type", kind)
    assert failures(PreemptionSourceTests, machine=lambda: MemoryMachine(provider)) == names(kind)


@of_kinds(broken_notices.IDENTITIES)
def test_a_machine_that_does_not_know_itself_fails_the_tests_meant_for_it(kind, monkeypatch):
    monkeypatch.setattr(nodekit, "ANSWER_SECONDS", 1.5)
    assert failures(NodeIdentityTests, machine=lambda: MemoryMachine(kind)) == names(kind)


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", [broken_providers.Sound, *broken_providers.PROVIDERS], ids=lambda kind: kind.__name__
)
def test_a_broken_provider_fails_the_tests_meant_for_it(kind, installed):
    kit = provider_tests(kind)
    expected = names(kind) if kind is not broken_providers.Sound else set()
    assert failures(kit, provider=lambda: kit()._open()) == expected


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_machine_that_is_taken_without_a_word_fails_the_whole_job(tmp_path):
    (promise,) = (name for name in vars(WholeJobTests) if name.startswith("test_"))
    with pytest.raises(AssertionError, match="the node did not get the notice"):
        getattr(WholeJobTests(), promise)(JobCloud(provider="local", notice="0s"), 1, tmp_path)


def test_a_test_of_a_kit_cannot_be_overridden_unseen():
    promise = "test_terminating_nothing_is_no_error"
    with pytest.raises(TypeError, match=f"Mine overrides {promise}: declare it in deviations"):
        type("Mine", (ProvisionerTests,), {promise: lambda self: None})
    with pytest.raises(TypeError, match="'test_other' is not a test of this kit, or has no reason"):
        type("Mine", (ProvisionerTests,), {"deviations": {"test_other": "because"}})
    with pytest.raises(TypeError, match="has no reason"):
        type("Mine", (ProvisionerTests,), {"deviations": {promise: ""}})


def test_what_is_left_out_is_skipped_with_its_reason():
    promise = "test_terminating_nothing_is_no_error"
    kind = type("Mine", (ProvisionerTests,), {"left_out": {promise: "another class runs it"}})
    (mark,) = getattr(kind, promise).pytestmark
    assert (mark.name, mark.kwargs) == ("skip", {"reason": "another class runs it"})


def test_a_case_of_a_test_deviates_alone():
    test, case = "test_a_listing_that_fails_tells_nothing", "denied"
    kind = type("Mine", (ProvisionerTests,), {"deviations": {f"{test}[{case}]": "for this reason"}})
    (mark,) = getattr(kind, test).pytestmark
    marks = {one.id: [mark.name for mark in one.marks] for one in mark.args[1]}
    assert marks == {"unwell": [], "throttled": [], "denied": ["xfail"]}
    (mark,) = getattr(ProvisionerTests, test).pytestmark
    assert [one.marks for one in mark.args[1]] == [()] * 3
    with pytest.raises(TypeError, match=r"'.*nothing\[other\]' is not a test of this kit, or has no reason"):
        type("Mine", (ProvisionerTests,), {"deviations": {f"{test}[other]": "because"}})


def test_a_deviation_is_an_expected_failure_with_its_reason_and_the_kits_own_test_is_as_before():
    promise = "test_terminating_nothing_is_no_error"
    kind = type("Mine", (ProvisionerTests,), {"deviations": {promise: "for this reason"}})
    (mark,) = getattr(kind, promise).pytestmark
    assert (mark.name, mark.kwargs["strict"], mark.kwargs["reason"]) == ("xfail", True, "for this reason")
    # A mistake in the account or the machine is no deviation, and shows.
    assert not issubclass(TypeError, mark.kwargs["raises"])
    assert issubclass(NotImplementedError, mark.kwargs["raises"])
    assert not hasattr(getattr(ProvisionerTests, promise), "pytestmark")
