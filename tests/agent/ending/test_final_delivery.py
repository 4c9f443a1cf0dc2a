"""What becomes of a training that has finished, by what of it is in the bucket."""

import threading
import time
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from cloudspot.agent.delivery.artifact_sync import ArtifactSync
from cloudspot.agent.ending import final_delivery
from cloudspot.agent.ending.final_delivery import FinalDelivery
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.orders import Orders
from cloudspot.agent.reclaim import understand
from cloudspot.agent.store_retry import retry_until
from cloudspot.errors import AuthError, TransientError
from cloudspot.jobstore.layout.records import Final, Seat
from cloudspot.model import PreemptionNotice


@pytest.fixture
def context():
    """As far as the last delivery asks for it, in a store that does not answer."""

    def fail(*_args, **_options):
        raise TransientError("the store is down")

    return SimpleNamespace(
        orders=Orders(),
        retry_until=retry_until,
        status=SimpleNamespace(state="", restored_step=50, generation=1, ranks=(0,), committed=None),
        journal=SimpleNamespace(known=(), read=fail),
        store=SimpleNamespace(put=fail, list_objects=fail, list_pages=fail, get=fail),
        node=None,
        job=SimpleNamespace(identity=None),
        job_id="j-1",
        known_parts={},
    )


def delivery(context, artifacts=None):
    return FinalDelivery(
        context,
        courier=SimpleNamespace(finish=lambda until: True),
        artifacts=artifacts,
        logs=SimpleNamespace(finish=lambda deadline: True),
        stop_heartbeat=lambda: None,
        end_pass=lambda seconds: None,
    )


@pytest.mark.parametrize("error", [TransientError("the store is down"), AuthError("a right was taken away")])
def test_a_success_whose_last_state_nobody_knows_to_be_committed_is_tried_again(context, monkeypatch, error):
    monkeypatch.setattr(final_delivery, "EXIT_RECORD_SECONDS", 0.2)

    def fail():
        raise error

    context.journal.read = fail
    final = Final(step=100, weights_sha256="x", metrics={})
    leaving = Leaving("succeeded", "the training finished", saved_step=100, final=final)
    found = delivery(context)._without_loss(leaving, uploaded=True, synced=True)
    assert (found.outcome, found.permanent, found.final) == ("failed", False, None)
    assert found.detail == "the training finished, but its last checkpoint could not be delivered"


@pytest.mark.full
def test_a_notice_while_the_artifacts_wait_for_the_store_leaves_time_for_the_last_word(
    context, monkeypatch, tmp_path
):
    said = []
    monkeypatch.setattr(final_delivery, "EXIT_RECORD_SECONDS", 60.0)
    monkeypatch.setattr(final_delivery, "write_exit_record", lambda *_: said.append(time.monotonic()))
    (tmp_path / "artifact").write_bytes(b"x")

    def notice():
        given = PreemptionNotice(deadline=None, action="terminate", source="test")
        context.orders.give(
            reclaim=understand(
                given, notice_seconds=4.0, now=time.monotonic(), wall=datetime.now(timezone.utc)
            )
        )

    threading.Timer(0.3, notice).start()
    artifacts = ArtifactSync(context.store, "j-1", tmp_path, seat=Seat(1, 0))
    delivery(context, artifacts).leave(Leaving("stopped", "as asked"))
    assert said[0] <= context.orders.reclaim.deadline
