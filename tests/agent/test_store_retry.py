"""How the agent waits out an outage."""

import time

import pytest
from faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.agent.store_retry import insist


def test_insisting_tries_until_the_very_deadline(bench):
    """It gave up when the next pause would have been longer than the time left: up to 15 s too early."""
    store = FaultyStore(bench.store, FaultPlan(outages=(Outage(start=0.0, end=1e12),)), bench.root / "state")
    began = time.monotonic()
    with pytest.raises(Exception, match="outage"):
        insist(lambda: store.get("x"), deadline=began + 0.4)
    assert time.monotonic() >= began + 0.4
    assert store.calls["get"] >= 3
