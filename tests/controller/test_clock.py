"""The clocks of a controller: the store's, and this host's monotonic one."""

from datetime import timedelta

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.controller.clock import clock_by
from cloudspot.jobstore.access.store_clock import utc_now


@pytest.mark.parametrize(("minutes", "side"), [(20, "behind"), (-20, "ahead of")])
def test_a_controller_goes_by_the_stores_time_and_says_that_its_own_differs(minutes, side):
    shift = timedelta(minutes=minutes)
    clock = clock_by(InMemoryStore(now=lambda: utc_now() + shift))
    assert clock.warning() == ""
    clock.compare()
    assert abs(clock.now() - utc_now() - shift) < timedelta(seconds=5)
    assert f"s {side} the store's" in clock.warning()
