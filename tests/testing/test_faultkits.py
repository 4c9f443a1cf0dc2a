"""The kits of failures: what is broken on purpose fails the tests meant for it, alone."""

from __future__ import annotations

import pytest
from support.stores.memorybucket import MemoryLogAccount, MemoryStoreAccount
from support.stores.memorystore import NOT_SHARED
from support.worlds import (
    broken_machines,
    broken_notices,
    broken_offers,
    broken_providers,
    broken_purchases,
    broken_stores,
)
from support.worlds.kitruns import failures

from cloudspot.testing.logfaultkit import LogFaultTests
from cloudspot.testing.storefaultkit import StoreFaultTests
from cloudspot.testing.storekit import ObjectStoreTests


@pytest.mark.full
class TestMemoryBucketsFaults(StoreFaultTests):
    @pytest.fixture
    def place(self):
        return MemoryStoreAccount()


@pytest.mark.full
class TestMemoryBucket(ObjectStoreTests):
    deviations = NOT_SHARED
    stream_bytes = 1 << 16

    @pytest.fixture
    def store(self):
        return MemoryStoreAccount().open()


class TestMemoryLogsFaults(LogFaultTests):
    @pytest.fixture
    def logs(self):
        return MemoryLogAccount()


class OddNames(TestMemoryBucket):
    """Those of the tests that names and pages are for; the others say nothing of them, and race."""

    __test__ = False
    wanted = frozenset(
        {
            "test_a_key_is_any_printable_ascii",
            "test_a_key_is_the_same_for_every_call",
            "test_a_key_that_is_none_is_a_callers_bug",
            "test_a_large_listing_is_complete",
            "test_a_listing_is_in_the_order_of_the_keys_bytes",
            "test_a_presigned_url_is_read_without_other_credentials",
            "test_pages_of_a_random_tree_are_its_sorted_keys",
        }
    )


def of_kinds(kinds):
    return pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.__name__) for kind in kinds])


def names(kind):
    return {f"test_{promise}" for promise in kind.broken}


@pytest.mark.full
@of_kinds([one for one in broken_stores.STORES if one not in broken_stores.ODD])
def test_a_store_that_is_broken_where_its_service_fails_fails_the_tests_meant_for_it(kind):
    assert failures(StoreFaultTests, place=lambda: MemoryStoreAccount(kind)) == names(kind)


@pytest.mark.full
@of_kinds(broken_stores.ODD)
def test_a_store_that_is_broken_where_names_are_odd_fails_the_tests_meant_for_it(kind):
    found = failures(OddNames, only=OddNames.wanted, store=lambda: MemoryStoreAccount(kind).open())
    assert found == names(kind)


@of_kinds(broken_stores.SINKS)
def test_a_sink_that_is_broken_where_its_service_fails_fails_the_tests_meant_for_it(kind):
    assert failures(LogFaultTests, logs=lambda: MemoryLogAccount(kind)) == names(kind)


def test_there_are_many_broken_plugins_and_each_fails_something():
    """Further stores and sinks are broken in test_storekit.py and test_logkit.py."""
    kinds = [
        *broken_machines.PROVISIONERS,
        *broken_purchases.PURCHASES,
        *broken_offers.OFFERS,
        *broken_notices.SOURCES,
        *broken_notices.IDENTITIES,
        *broken_providers.PROVIDERS,
        *broken_stores.STORES,
        *broken_stores.SINKS,
    ]
    assert len({kind.__name__ for kind in kinds}) >= 180
    assert [kind.__name__ for kind in kinds if not kind.broken] == []
    told = [kind.__doc__ for kind in kinds]
    assert sorted({one for one in told if told.count(one) > 1 or "\n" in one}) == []
