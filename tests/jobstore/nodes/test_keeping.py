from support.records.made_records import Records

from cloudspot.jobstore.nodes.keeping import kept_now, kept_text

MADE = Records()


def test_a_machine_is_kept_until_its_time_is_over_somebody_stops_it_or_it_has_ended():
    history = MADE.failed_and_kept()
    assert kept_now(history, MADE.at(1899.0)) == MADE.kept()
    assert kept_now(history, MADE.at(1900.0)) is None
    assert kept_now(MADE.failed_and_kept(stop=MADE.stop()), MADE.at(200.0)) is None
    launch = MADE.change(history.launches[0], certificates={"i-1-0": MADE.certificate()})
    assert kept_now(MADE.change(history, launches=(launch,)), MADE.at(200.0)) is None


def test_a_job_that_goes_on_keeps_none():
    history = MADE.failed_and_kept()
    resumed = MADE.change(history, turns=((1, history.finished), (1, MADE.resumed())), finished=None)
    assert kept_now(resumed, MADE.at(200.0)) is None
    assert resumed.kept is None


def test_it_is_told_with_its_end():
    assert kept_text(MADE.kept()) == "node 1.0 is kept for inspection until 2026-01-01 00:31:40 UTC"
