"""How the agent waits out an outage."""

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.agent import store_retry
from cloudspot.agent.store_retry import retry_until
from cloudspot.errors import AuthError, TransientError


@pytest.fixture
def naps(monkeypatch):
    """The waits, which take no time but move the clock."""
    made = []
    monkeypatch.setattr(store_retry.time, "monotonic", lambda: 1000.0 + sum(made))
    monkeypatch.setattr(store_retry.time, "sleep", made.append)
    return made


def test_insisting_tries_until_the_very_deadline(bench, naps):
    """It gave up when the next pause would have been longer than the time left: up to 15 s too early."""
    store = FaultyStore(bench.store, FaultPlan(outages=(Outage(start=0.0, end=1e12),)), bench.root / "state")
    with pytest.raises(Exception, match="outage"):
        retry_until(lambda: store.get("x"), deadline=1000.0 + 20.0)
    assert sum(naps) == 20.0
    assert store.calls["get"] == len(naps) + 1 > 3


def failing(*errors):
    left = list(errors)

    def call():
        if left:
            raise left.pop(0)
        return "done"

    return call


def test_a_right_that_was_just_granted_is_waited_for(naps):
    """The agent ended at the first refusal, and was started again ten times within seconds."""
    assert retry_until(failing(*[AuthError("403")] * 5)) == "done"
    assert naps == [0.25, 0.5, 1.0, 2.0, 4.0]


def test_a_right_that_stays_missing_is_not_waited_for_longer_than_two_minutes(naps):
    with pytest.raises(AuthError, match="403"):
        retry_until(failing(*[AuthError("403")] * 99))
    assert 120.0 <= sum(naps) < 135.0


def test_only_refusals_in_a_row_count(naps):
    errors = [*[AuthError("403")] * 8, TransientError("503")] * 3
    assert retry_until(failing(*errors)) == "done"
    assert sum(naps) > 240.0


def test_a_deadline_that_comes_nearer_counts(naps):
    """As where a notice comes while the last artifacts wait for the store."""
    with pytest.raises(TransientError, match="out"):
        retry_until(
            failing(*[TransientError("out")] * 100),
            deadline=lambda: 1000.0 + (60.0 if sum(naps) < 5.0 else 10.0),
        )
    assert sum(naps) == 10.0
