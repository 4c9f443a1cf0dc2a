"""What jobs have paid: by day and purpose, and several jobs' together."""

from datetime import date

import pytest

from cloudspot.jobstore.layout import codec
from cloudspot.jobstore.layout.records import Phase, Summary
from cloudspot.model import Billing, Market
from cloudspot.story.ledger import bill, purposes
from cloudspot.story.outlays import JobOutlays, of_summary, outlays, rows, totals
from cloudspot.story.report import summarise

DAY = 86400.0
FIRST, SECOND = date(2026, 1, 1), date(2026, 1, 2)


@pytest.fixture
def history(records):
    """From six in the evening to six in the morning at 2 an hour, reclaimed; then two hours on demand."""
    beat = records.heartbeat(
        phases=(Phase(state="training", generation=1, at=records.at(0.75 * DAY + 3600)),),
        at=1.25 * DAY,
        step=100,
    )
    first = records.launch(
        intent=records.intent(offer=records.offer(price=2.0)),
        heartbeats={0: beat},
        certificates={
            "i-1-0": records.certificate(started=0.75 * DAY, ended=1.25 * DAY, end_reason="reclaimed")
        },
    )
    second = records.launch(
        2,
        intent=records.intent(2, offer=records.offer("b", "on-demand", 3.0), at=1.25 * DAY),
        certificates={
            "i-2-0": records.certificate("i-2-0", launch=2, started=1.25 * DAY, ended=1.25 * DAY + 7200)
        },
    )
    generations = (
        records.generation(1, at=0.75 * DAY + 3600),
        records.generation(2, launch=2, at=1.25 * DAY + 3600, restored=(1, 50)),
    )
    return records.history(
        first,
        second,
        generations=generations,
        commits=(records.commit(at=1.2 * DAY, sealed=DAY + 3600),),
        finished=records.finished(at=1.25 * DAY + 7200),
    )


def paid(history, now):
    return outlays(history, bill(history, now), now)


def test_each_machines_money_belongs_to_the_days_on_which_it_ran(records, history):
    found = paid(history, records.at(9 * DAY))
    assert [(one.day, one.provider, one.market, one.zone, one.currency) for one in found] == [
        (FIRST, "sim", Market.SPOT, "a", "USD"),
        (SECOND, "sim", Market.ON_DEMAND, "b", "USD"),
        (SECOND, "sim", Market.SPOT, "a", "USD"),
    ]
    assert [one.purposes for one in found] == [
        {"starting": (3600.0, 2.0, 3.0), "training": (18000.0, 10.0, 15.0)},
        {"starting": (3600.0, 3.0, 3.0), "training": (3600.0, 3.0, 3.0)},
        {"training": (3600.0, 2.0, 3.0), "lost": (18000.0, 10.0, 15.0)},
    ]


def test_together_they_are_the_ledger_and_its_purposes(records, history):
    now = records.at(9 * DAY)
    ledger = bill(history, now)
    (total,) = totals([JobOutlays("j", {}, paid(history, now))], since=None, until=None)
    assert (total.seconds, total.spent, total.on_demand_equivalent) == pytest.approx(
        (ledger.machine_seconds, ledger.spent, ledger.on_demand_equivalent)
    )
    by_purpose = purposes(history, ledger, now)
    for name, spent in total.purposes.items():
        assert spent == pytest.approx(sum(one[name].spent for one in by_purpose))
    assert total.saved == pytest.approx(ledger.on_demand_equivalent - ledger.spent)


def test_a_machine_that_was_free_costs_nothing_and_saves_everything(records):
    offer = records.offer(billing=Billing(free_if_reclaimed_seconds=3600.0))
    proof = {"i-1-0": records.certificate(started=0.0, ended=1800.0, end_reason="reclaimed")}
    history = records.history(records.launch(intent=records.intent(offer=offer), certificates=proof))
    (found,) = paid(history, records.at(DAY))
    assert found.purposes == {"starting": (1800.0, 0.0, 1.5)}


def test_the_summary_of_a_job_that_has_ended_tells_and_survives_the_store(records, history):
    now = records.at(9 * DAY)
    summary = codec.decode(codec.encode(summarise(history, now)), Summary)
    assert of_summary(summary) == JobOutlays("digits-1", {}, paid(history, now))


def test_the_summary_of_a_job_that_goes_on_or_of_an_older_cloudspot_does_not_tell(records, history):
    going = records.change(history, finished=None, turns=())
    assert of_summary(summarise(going, records.at(9 * DAY))) is None


def test_the_labels_of_the_newest_submission_count(records):
    spec = {"name": "digits", "run": {"entrypoint": "train.py"}, "labels": {"team": "vision"}}
    submission = records.change(records.history().submission, spec=spec)
    history = records.history(submission=submission, finished=records.finished())
    assert of_summary(summarise(history, records.at(1))).labels == {"team": "vision"}


# --- several jobs ---------------------------------------------------------------------------------


@pytest.fixture
def jobs(records, history):
    now = records.at(9 * DAY)
    euros = records.launch(
        intent=records.intent(offer=records.offer(currency="EUR")),
        certificates={"i-1-0": records.certificate(started=0.0, ended=3600.0)},
    )
    return [
        JobOutlays("big", {"team": "vision", "user": "ann"}, paid(history, now)),
        JobOutlays("other", {"team": "speech"}, paid(records.history(euros), now)),
        JobOutlays("bare", {}, paid(records.history(euros), now)),
    ]


def table(jobs, by, since=None, until=None):
    found = rows(jobs, by, since=since, until=until)
    return [(one.key, one.currency, one.num_jobs, round(one.spent, 6)) for one in found]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("job", [("bare", "EUR", 1, 1.0), ("other", "EUR", 1, 1.0), ("big", "USD", 1, 30.0)]),
        (
            "day",
            [("2026-01-02", "USD", 1, 18.0), ("2026-01-01", "EUR", 2, 2.0), ("2026-01-01", "USD", 1, 12.0)],
        ),
        ("provider", [("sim", "EUR", 2, 2.0), ("sim", "USD", 1, 30.0)]),
        ("market", [("spot", "EUR", 2, 2.0), ("spot", "USD", 1, 24.0), ("on-demand", "USD", 1, 6.0)]),
        ("zone", [("sim a", "EUR", 2, 2.0), ("sim a", "USD", 1, 24.0), ("sim b", "USD", 1, 6.0)]),
        (
            "purpose",
            [
                ("starting", "EUR", 2, 2.0),
                ("starting", "USD", 1, 5.0),
                ("training", "USD", 1, 15.0),
                ("lost", "USD", 1, 10.0),
            ],
        ),
        (
            "label",
            [("-", "EUR", 1, 1.0), ("team=speech", "EUR", 1, 1.0), ("team=vision, user=ann", "USD", 1, 30.0)],
        ),
        ("label.team", [("-", "EUR", 1, 1.0), ("speech", "EUR", 1, 1.0), ("vision", "USD", 1, 30.0)]),
        ("label.user", [("-", "EUR", 2, 2.0), ("ann", "USD", 1, 30.0)]),
    ],
)
def test_every_choice_counts_each_amount_once_and_adds_up_no_two_currencies(jobs, by, expected):
    assert table(jobs, by) == expected


def test_the_first_and_the_last_day_are_counted(jobs):
    assert table(jobs, "day", since=SECOND) == [("2026-01-02", "USD", 1, 18.0)]
    assert table(jobs, "job", until=FIRST) == [
        ("bare", "EUR", 1, 1.0),
        ("other", "EUR", 1, 1.0),
        ("big", "USD", 1, 12.0),
    ]
    assert table(jobs, "job", since=date(2026, 1, 3)) == []
    assert [(one.currency, one.num_jobs) for one in totals(jobs, since=FIRST, until=FIRST)] == [
        ("EUR", 2),
        ("USD", 1),
    ]
