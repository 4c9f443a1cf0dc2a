"""What is news of a job, and that its key is the same whoever looks, and whenever."""

from datetime import timezone
from pathlib import Path

from cloudspot.jobfile.notify import NewsKind
from cloudspot.story.news import STALLED_SECONDS, news


def told(records, history, seconds=300.0):
    found = list(news(history, records.at(seconds), timezone.utc))
    assert len({one.key for one in found}) == len(found)
    return {one.key: (one.kind.value, one.text) for one in found}


def test_a_job_that_trains_or_has_just_begun_is_no_news(records):
    assert told(records, records.history()) == {}
    running = records.launch(heartbeats={0: records.heartbeat(at=290.0)})
    assert told(records, records.history(running, generations=(records.generation(1),))) == {}


def test_a_machine_that_is_taken_is_news_at_its_notice_and_the_same_news_when_it_has_gone(records):
    warned = records.launch(notices={0: records.notice()})
    at_notice = told(records, records.history(warned))
    assert at_notice == {"reclaimed-1-0": ("reclaimed", "node 1.0 will be taken in 30 s (sim)")}
    gone = records.launch(outcome="reclaimed", notices={0: records.notice()})
    assert told(records, records.history(gone)) == at_notice
    silently = records.history(records.launch(outcome="reclaimed"))
    assert told(records, silently) == {
        "reclaimed-1-0": ("reclaimed", "node 1.0 (i-1-0) was taken without a notice")
    }


def test_a_launch_is_news_once_it_is_up_in_the_place_of_another(records):
    lost, refused = records.launch(outcome="lost"), records.capacity(2, at=110.0)
    up = records.launch(3, intent=records.intent(3, why="reclaimed", at=120.0))
    assert told(records, records.history(refused, records.launch(2))) == {}
    assert told(records, records.history(lost, refused)) == {}
    assert told(records, records.history(lost, refused, up)) == {
        "relaunched-3": (
            "relaunched",
            "launch 3 (reclaimed): 1 x big in a, spot at 1 USD an hour; it is up",
        )
    }


def test_what_a_job_has_told_before_it_was_resumed_is_no_news(records):
    first = records.history(records.launch(outcome="reclaimed"), finished=records.finished("failed"))
    assert list(told(records, first)) == ["reclaimed-1-0", "failed-turn-0"]
    submission = records.change(first.submission, resumption=1)
    turns = ((1, records.finished("failed")), (1, records.resumed(at=250.0)))
    again = records.change(first, finished=None, submission=submission, turns=turns)
    assert told(records, again) == {}
    ended = records.change(again, turns=(*turns, (1, records.finished())), finished=records.finished())
    assert told(records, ended) == {"finished-turn-2": ("finished", "job succeeded")}


def test_the_end_of_a_job_and_a_limit_are_news_and_a_persons_stop_is_none(records):
    history = records.history(stop=records.stop(), finished=records.finished("stopped", detail="asked for"))
    assert told(records, history) == {"finished-turn-0": ("finished", "job stopped: asked for")}
    capped = records.history(stop=records.stop("max_cost", detail="5 of 5 USD"))
    assert told(records, capped) == {
        "capped-0": ("capped", "stop requested (max_cost): the job checkpoints and ends; 5 of 5 USD")
    }
    assert told(records, records.history(finished=records.finished("failed", detail="exit 3"))) == {
        "failed-turn-0": ("failed", "job failed: exit 3")
    }


def test_a_machine_that_is_kept_is_told_with_the_failure_and_that_a_limit_ends_it_with_the_limit(records):
    failed = "job failed: broken; node 1.0 is kept for inspection until 2026-01-01 00:31:40 UTC, and paid for"
    history = records.failed_and_kept()
    assert told(records, history) == {"failed-turn-0": ("failed", failed)}
    capped = records.change(history, stop=records.stop("max_cost", at=500.0, detail="5 of 5 USD"))
    assert told(records, capped)["capped-0"] == (
        "capped",
        "stop requested (max_cost): the machine of node 1.0, which is kept for inspection, ends; 5 of 5 USD",
    )


def test_a_job_that_is_suspended_or_was_stuck_has_stalled(records):
    suspended = records.history(turns=((0, records.suspended()),))
    assert told(records, suspended, 10_000) == {"stalled-turn-0": ("stalled", "job suspended: no capacity")}
    stuck = records.history(
        records.launch(heartbeats={0: records.heartbeat(at=290.0)}),
        generations=(
            records.generation(1),
            records.generation(2, at=200.0, why="trainer-stuck", restored=(1, 50)),
        ),
    )
    assert told(records, stuck) == {
        "stalled-generation-2": ("stalled", "the training was stuck; it begins again at step 50")
    }


def test_a_job_in_which_nothing_trains_for_long_has_stalled_once(records):
    waiting = records.history(records.capacity(1, at=10.0))
    assert told(records, waiting, STALLED_SECONDS - 1) == {}
    text = "nothing has trained since 2026-01-01 00:00 UTC, because machines are missing"
    assert told(records, waiting, STALLED_SECONDS) == {"stalled-after-0-0": ("stalled", text)}
    more = records.history(records.capacity(1, at=10.0), records.capacity(2, at=1900.0))
    assert told(records, more, 2 * STALLED_SECONDS) == told(records, waiting, STALLED_SECONDS)
    lost = records.history(records.launch(outcome="lost", ended=600.0), generations=(records.generation(1),))
    assert told(records, lost, 600 + STALLED_SECONDS - 1) == {}
    assert list(told(records, lost, 600 + STALLED_SECONDS)) == ["stalled-after-0-1"]
    silent = records.history(
        records.launch(heartbeats={0: records.heartbeat(at=700.0)}), generations=(records.generation(1),)
    )
    assert told(records, silent, 700 + STALLED_SECONDS - 1) == {}
    assert told(records, silent, 700 + STALLED_SECONDS) == {
        "stalled-after-0-1": ("stalled", "no heartbeat has come from node 1.0 since 2026-01-01 00:11 UTC")
    }


def test_nodes_that_hold_for_long_have_stalled_since_the_training_ended(records):
    spec = {"name": "digits", "run": {"entrypoint": "train.py"}, "nodes": {"min": 2, "max": 2}}
    history = records.history(
        records.launch(intent=records.intent(num_nodes=2)),
        generations=(
            records.generation(1, ranks=(0, 1)),
            records.generation(2, ranks=(0,), at=500.0, why="regrouped"),
            records.generation(3, ranks=(0,), at=900.0, why="agent-restarted"),
        ),
    )
    history = records.change(history, submission=records.change(history.submission, spec=spec))
    assert told(records, history, 500 + STALLED_SECONDS - 1) == {}
    assert list(told(records, history, 500 + STALLED_SECONDS)) == ["stalled-after-0-1"]


def test_each_day_of_a_job_that_runs_has_its_cost(records):
    day = 86400.0
    beats = {0: records.heartbeat(at=3 * day)}
    running = records.history(records.launch(heartbeats=beats), generations=(records.generation(1),))
    assert told(records, running, day - 1) == {}
    assert told(records, running, day + 1) == {"cost-2026-01-02": ("cost", "")}
    over = records.history(records.launch(outcome="lost"), finished=records.finished())
    assert "cost-2026-01-02" not in told(records, over, day + 1)


def test_every_kind_is_met_above():
    source = Path(__file__).read_text(encoding="utf-8")
    assert [kind for kind in NewsKind if f'"{kind.value}"' not in source] == []
