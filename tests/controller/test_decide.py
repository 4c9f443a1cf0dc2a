import copy

import pytest

from cloudspot.controller.actions import (
    UNSIGNED,
    Announce,
    Append,
    Certify,
    CleanUp,
    Create,
    FetchOffers,
    OpenLaunch,
    Postpone,
    Release,
    RequestStop,
    Terminate,
    VoidSeat,
)
from cloudspot.controller.assess.observed import ConsoleTail, CreateFailure
from cloudspot.controller.deaths import certificates
from cloudspot.controller.decide import BOOT_LIMIT_SECONDS, decide
from cloudspot.jobstore.layout.records import Ending, Finished, Repriced, Seat
from cloudspot.model import Billing, EndReason
from cloudspot.story.outcomes import how_it_ended


def act(records, history, observed=None, *, at=100.0, **tables):
    observed = records.observed() if observed is None else observed
    actions = decide(records.assess(history, observed.instances, at=at, **tables), observed)
    return tuple(one for one in actions if not isinstance(one, Announce))  # test_announcing.py has those


def opened(records, number, launch, why, **changes):
    fields = {"num_nodes": 1, "min_nodes": 1, "offer": records.offer(), **changes}
    return OpenLaunch(number=number, launch=launch, why=why, **fields)


def ended(records, number, outcome, detail, exit_code):
    record = records.finished(outcome, at=100.0, detail=detail, exit_code=exit_code)
    return Append(number, records.change(record, writer=UNSIGNED))


# --- before a launch ------------------------------------------------------------------------------


def test_a_new_job_asks_for_offers_before_it_opens_a_launch(records):
    assert act(records, records.history(), records.observed(offers=None)) == (FetchOffers(),)


def test_a_new_job_opens_its_first_launch_at_the_first_record(records):
    assert act(records, records.history()) == (opened(records, 1, 1, "first"),)


def test_a_first_launch_asks_for_all_nodes_and_is_content_with_the_fewest_that_train(records):
    expected = opened(records, 1, 1, "first", num_nodes=4, min_nodes=2)
    assert act(records, records.history(), nodes={"min": 2, "max": 4}) == (expected,)


def test_nothing_is_launched_while_the_provider_cannot_list(records):
    assert act(records, records.history(), records.observed(instances=None)) == ()


def test_a_market_policy_that_is_not_installed_buys_nothing_and_the_rest_goes_on(records):
    cheap = {"spot": {"policy": "cheap"}}
    (wait,) = act(records, records.history(), **cheap)
    assert wait.why.startswith('no machine is bought: no market policy "cheap" is installed; ')
    wrong = {"spot": {"policy": "capped", "options": {"max_share": "half"}}}
    (wait,) = act(records, records.history(), **wrong)
    assert wait.why.startswith("no machine is bought: spot.options.max_share: expected a number")
    stray = records.instance("i-9-0", launch=9)
    terminate, _ = act(records, records.history(), records.observed(stray), **cheap)
    assert terminate.instance_ids == ("i-9-0",)


def test_a_stop_before_the_first_launch_finishes_the_job(records):
    history = records.history(stop=records.stop())
    assert act(records, history) == (ended(records, 1, "stopped", "asked for with cloudspot stop", 0),)


# --- seats that nobody has claimed yet ------------------------------------------------------------


def test_a_launch_without_a_machine_is_replayed(records):
    history = records.history(records.launch(claimed=False))
    assert act(records, history) == (Create(1),)


def test_each_launch_without_a_machine_is_replayed(records):
    history = records.history(records.launch(claimed=False), records.launch(2, claimed=False))
    assert act(records, history, nodes=2) == (Create(1), Create(2))


def test_a_machine_that_only_our_own_create_has_returned_is_not_created_again(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(created={1: (records.instance(),)}, absent_seconds={"i-1-0": 59.0})
    assert act(records, history, observed) == ()


def test_nothing_is_replayed_while_the_listing_fails(records):
    history = records.history(records.launch(claimed=False))
    assert act(records, history, records.observed(instances=None)) == ()


def test_a_token_that_is_too_old_is_not_replayed_but_void(records):
    history = records.history(records.launch(claimed=False))
    actions = act(records, history, records.observed(intent_seconds={1: 600.0}))
    assert isinstance(actions[0], VoidSeat)
    assert (actions[0].seat, actions[0].outcome) == (Seat(1, 0), "voided")
    assert not any(isinstance(one, Create) for one in actions)


def test_nothing_is_created_once_a_stop_is_requested_or_a_limit_is_reached(records):
    """A replacement was intended just before."""
    coming = records.launch(2, claimed=False, intent=records.intent(2, at=90))
    launches, generation = (records.launch(), coming), records.generation(1)
    for stop, limits in ((records.stop(), {}), (None, {"max_runtime": "50s"})):
        history = records.history(*launches, generations=(generation,), stop=stop)
        actions = act(
            records, history, records.observed(records.instance()), nodes={"min": 1, "max": 2}, limits=limits
        )
        assert not any(isinstance(one, Create) for one in actions)


def test_only_what_the_job_needs_is_bought_on_demand_where_spot_is_wanted(records):
    on_demand = records.offer(market="on-demand", price=3.0)
    observed = records.observed(offers=(on_demand,))
    for policy, num_nodes in (("spot-then-on-demand", 2), ("on-demand", 4)):
        spot = {"policy": policy}
        [opened] = act(records, records.history(), observed, at=10, nodes={"min": 2, "max": 4}, spot=spot)
        assert (opened.offer, opened.num_nodes, opened.min_nodes) == (on_demand, num_nodes, 2)
    # It trains with one node, and would gain by more.
    beat = records.heartbeat(step=60, generation=1)
    launch = records.launch(intent=records.intent(offer=on_demand), heartbeats={0: beat})
    history = records.history(launch, generations=(records.generation(1),), commits=(records.commit(),))
    observed = records.observed(records.instance(), offers=(on_demand,))
    for policy, is_bought in (("spot-then-on-demand", False), ("on-demand", True)):
        spot = {"policy": policy}
        actions = act(records, history, observed, at=3000, nodes={"min": 1, "max": 3}, spot=spot)
        assert any(isinstance(one, OpenLaunch) for one in actions) == is_bought


@pytest.mark.parametrize("age", [0.0, 600.0])
def test_a_launch_with_a_claimed_seat_is_neither_replayed_nor_void_for_its_token(records, age):
    """Its machines have come, though no listing shows them yet."""
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    observed = records.observed(intent_seconds={1: age}, absent_seconds={"i-1-0": 1.0})
    assert act(records, records.history(launch), observed, nodes=2) == ()


@pytest.mark.parametrize("outcome", ["capacity", "quota", "refused"])
def test_a_refusal_makes_each_seat_void_and_buys_nothing_before_that_stands(records, outcome):
    history = records.history(records.launch(intent=records.intent(num_nodes=2), claimed=False))
    observed = records.observed(create_failures={1: CreateFailure(1, outcome, "no big in a")})
    voids = tuple(VoidSeat(Seat(1, rank), outcome, "no big in a") for rank in (0, 1))
    assert act(records, history, observed, nodes=2) == voids


def test_a_refusal_of_an_earlier_launch_says_nothing_of_this_one(records):
    history = records.history(records.capacity(1, at=0), records.launch(2, claimed=False))
    observed = records.observed(create_failures={1: CreateFailure(1, "capacity", "")})
    assert act(records, history, observed) == (Create(2),)


def test_a_launch_goes_on_when_another_controllers_create_succeeded(records):
    history = records.history(records.launch(claimed=False))
    failures = {1: CreateFailure(1, "capacity", "")}
    assert act(records, history, records.observed(records.instance(), create_failures=failures)) == ()


def test_machines_that_a_refused_create_ends_again_keep_no_seat(records):
    history = records.history(records.launch(claimed=False))
    failures = {1: CreateFailure(1, "capacity", "sold out")}
    for state in ("shutting-down", "ended"):
        found = act(
            records, history, records.observed(records.instance(state=state), create_failures=failures)
        )
        assert VoidSeat(Seat(1, 0), "capacity", "sold out", ("i-1-0",)) in found


def test_the_seats_of_a_launch_that_got_fewer_machines_are_void_and_the_others_go_on(records):
    history = records.history(records.launch(intent=records.intent(num_nodes=3), claimed=False))
    came = (records.instance(), records.instance("i-1-1", rank=1))
    found = act(records, history, records.observed(*came, created={1: came}), nodes={"min": 2, "max": 3})
    assert found == (VoidSeat(Seat(1, 2), "capacity", "only 2 of 3 machines came"),)


def test_a_seat_without_a_machine_is_void_once_the_listing_has_had_time_to_show_it(records):
    """Another controller had the answer of ``create``."""
    history = records.history(records.launch(intent=records.intent(num_nodes=2), claimed=False))

    def after(seconds):
        observed = records.observed(records.instance(), known_seconds={"i-1-0": seconds})
        return act(records, history, observed, nodes={"min": 1, "max": 2})

    assert after(records.absence_seconds - 1) == ()
    assert after(records.absence_seconds) == (
        VoidSeat(Seat(1, 1), "capacity", "no machine came for this seat"),
    )


def test_a_machine_that_ended_before_its_claim_leaves_a_void_seat_and_a_certificate(records):
    history = records.history(records.launch(claimed=False))
    ended = records.instance(state="ended", end_reason="reclaimed", ended_at=records.at(90))
    proof, void = act(records, history, records.observed(ended))
    certificate = proof.certificate
    assert (certificate.instance_id, certificate.end_reason) == ("i-1-0", EndReason.RECLAIMED)
    why = "i-1-0 ended before it claimed its seat (reclaimed)"
    assert void == VoidSeat(Seat(1, 0), "voided", why, ("i-1-0",))


def test_why_a_machine_ended_is_kept_with_its_seat_and_its_certificate(records):
    why = "killed for memory; ask for more"
    ended = records.instance(state="ended", end_reason="unknown", detail=why)
    words = {"i-1-0": ConsoleTail(line="step 7", is_final=True)}
    whole = f"{why}; its console ends with: step 7"
    (certificate,) = certified(
        records, records.history(records.launch()), records.observed(ended, console_tails=words)
    )
    assert certificate.detail == whole
    unclaimed = records.history(records.launch(claimed=False))
    proof, void = act(records, unclaimed, records.observed(ended, console_tails=words))
    assert proof.certificate.detail == whole
    assert void.detail == f"i-1-0 ended before it claimed its seat ({whole})"


def test_a_line_that_a_console_showed_before_its_machine_ended_does_not_say_why(records):
    ended = records.instance(state="ended", end_reason="reclaimed")
    words = {"i-1-0": ConsoleTail(line="waiting for the network")}
    (certificate,) = certified(
        records, records.history(records.launch()), records.observed(ended, console_tails=words)
    )
    assert certificate.detail == ""
    assert how_it_ended(records.certificate(end_reason="reclaimed")) == "ended: reclaimed"
    assert how_it_ended(records.certificate(end_reason="eviction-by-policy")) == "ended: eviction-by-policy"


@pytest.mark.parametrize(
    ("reason", "outcome", "cause"),
    [
        ("unstartable", "voided", "Client.InternalError: its key"),
        ("quota", "quota", ""),
        ("capacity", "capacity", ""),
        ("lost", "voided", ""),
    ],
)
def test_a_machine_that_never_ran_is_taken_as_the_refusal_that_it_is(records, reason, outcome, cause):
    """More machines were bought without knowing why: for a reason that they share, two end the job."""
    history = records.history(records.launch(claimed=False))
    ended = records.instance(state="ended", end_reason=reason, detail="Client.InternalError: its key")
    _, void = act(records, history, records.observed(ended))
    why = "i-1-0 ended before it claimed its seat (Client.InternalError: its key)"
    assert void == VoidSeat(Seat(1, 0), outcome, why, ("i-1-0",), cause)


@pytest.mark.parametrize("shift", [-86400.0, -3600.0, 3600.0, 86400.0])
def test_a_nodes_clock_does_not_reach_the_certificate_of_its_machine(records, shift):
    """Where the provider told no end, one a day ahead was billed a day more, and one a day behind nothing."""
    launch = records.launch(
        slots={0: records.slot("i-1-0", at=10 + shift)},
        heartbeats={0: records.heartbeat(at=580 + shift)},
        beats_listed={0: (records.at(580), 700)},
        exits={0: records.exit("drained", at=584 + shift)},
    )
    ended = records.instance(state="ended", launched=None)
    (proof,) = certificates(records.history(launch), records.observed(ended), records.at(600))
    certificate = proof.certificate
    assert records.at(0) <= certificate.started_at <= records.at(600)
    assert records.at(580) <= certificate.ended_at <= records.at(600)


def test_a_machine_that_says_why_it_cannot_run_the_agent_is_not_waited_for(records):
    """It was paid for until it had ended itself, and nobody learned why."""
    history = records.history(records.launch(claimed=False))
    said = {"i-1-0": ConsoleTail(cause="the image has no python3", line="this machine cannot serve its job")}
    (void,) = act(records, history, records.observed(records.instance(), console_tails=said))
    assert void == VoidSeat(
        Seat(1, 0),
        "voided",
        "i-1-0 cannot run the agent: the image has no python3",
        ("i-1-0",),
        "the image has no python3",
    )


def test_a_machine_that_hangs_is_given_up_with_the_last_line_of_its_console(records):
    history = records.history(records.launch(claimed=False))
    said = {"i-1-0": ConsoleTail(line="Starting network...")}
    known = {"known_seconds": {"i-1-0": 1200.0}, "console_tails": said}
    (void,) = act(records, history, records.observed(records.instance(), **known))
    why = "the machine did not come up within 20 minutes; its console ends with: Starting network..."
    assert (void.detail, void.cause) == (why, "")


def test_a_machine_has_its_time_to_boot_although_its_providers_clock_is_behind_the_stores(records):
    """``local`` dates its machines by a computer's clock: six machines were bought and given up in a row."""
    history = records.history(records.launch(claimed=False))
    old = records.instance(launched=-1300.0)
    assert act(records, history, records.observed(old), at=10.0) == ()
    assert [type(one) for one in act(records, history, records.observed(old), at=1210.0)] == [VoidSeat]


def test_a_dead_double_does_not_void_the_seat_of_a_machine_that_still_boots(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(records.instance("i-x", "ended"), records.instance("i-y"))
    assert [type(one) for one in act(records, history, observed)] == [Certify]


def test_a_seat_waits_for_a_machine_whose_own_was_taken_by_another_with_the_same_index(records):
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    history, long = records.history(launch), {"i-1-0": 3600.0, "i-other": 600.0}
    other = records.instance("i-other", launched=None)
    observed = records.observed(records.instance(), other, known_seconds=long)
    assert act(records, history, observed) == ()
    assert [
        type(one) for one in act(records, history, records.observed(records.instance(), known_seconds=long))
    ] == [VoidSeat]


@pytest.mark.parametrize("state", ["pending", "running", "shutting-down"])
def test_a_machine_that_boots_is_waited_for(records, state):
    history = records.history(records.launch(claimed=False))
    assert act(records, history, records.observed(records.instance(state=state))) == ()


def test_the_seat_of_a_machine_that_hangs_in_its_boot_is_void(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(records.instance(launched=0.0))
    assert act(records, history, observed, at=BOOT_LIMIT_SECONDS - 1) == ()
    (void,) = act(records, history, observed, at=BOOT_LIMIT_SECONDS)
    assert isinstance(void, VoidSeat)


def test_the_boot_limit_also_counts_by_the_controllers_own_clock(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(records.instance(launched=None), known_seconds={"i-1-0": BOOT_LIMIT_SECONDS})
    (void,) = act(records, history, observed)
    assert isinstance(void, VoidSeat)


def test_a_stop_voids_seats_that_are_not_claimed(records):
    history = records.history(records.launch(claimed=False), stop=records.stop())
    void, finish = act(records, history, records.observed(records.instance()))
    assert void == VoidSeat(Seat(1, 0), "voided", "stop requested (user)", ("i-1-0",))
    assert isinstance(finish.record, Finished)


# --- who has ended --------------------------------------------------------------------------------


def certified(records, history, observed, **tables):
    actions = act(records, history, observed, **tables)
    return [one.certificate for one in actions if isinstance(one, Certify)]


def test_a_machine_whose_seat_is_void_is_on_the_bill_until_its_end_is_proven(records):
    slot = records.slot(at=1300, detail="voided: slow")
    void = records.launch(claimed=False, slots={0: records.change(slot, machines=("i-1-0",))})
    assert not void.is_settled
    absent = records.observed(absent_seconds={"i-1-0": 1e6})
    for observed in (records.observed(records.instance(state="ended", ended_at=records.at(1400))), absent):
        (proof,) = certified(records, records.history(void), observed)
        assert (proof.instance_id, proof.rank) == ("i-1-0", 0)
    proven = records.change(void, certificates={"i-1-0": records.certificate()})
    assert proven.is_settled


def test_an_end_that_the_provider_tells_counts_for_more_than_a_start_by_a_clock_that_runs_ahead(records):
    history = records.history(records.launch(intent=records.intent(at=50), claimed=False))
    ended = records.instance(state="ended", launched=None, ended_at=records.at(40))
    (proof,) = certified(records, history, records.observed(ended))
    assert (proof.started_at, proof.ended_at) == (records.at(40), records.at(40))


def test_a_machine_that_ended_is_certified_and_not_yet_replaced(records):
    history = records.history(records.launch())
    ended = records.instance(state="ended", end_reason="reclaimed", ended_at=records.at(90))
    expected = records.certificate(ended=90.0, end_reason="reclaimed")
    (found,) = act(records, history, records.observed(ended))
    assert found == Certify(records.change(expected, at=records.at(100), writer=UNSIGNED))


@pytest.mark.parametrize("state", ["pending", "running", "shutting-down"])
def test_a_machine_that_is_shutting_down_is_alive(records, state):
    history = records.history(records.launch())
    assert act(records, history, records.observed(records.instance(state=state))) == ()


def test_absence_proves_death_only_after_the_providers_figure(records):
    history = records.history(records.launch())
    seen = (records.instance(),)
    assert act(records, history, records.observed(vanished=seen, absent_seconds={"i-1-0": 59.9})) == ()
    (one,) = certified(records, history, records.observed(vanished=seen, absent_seconds={"i-1-0": 60.0}))
    assert (one.ended_at, one.end_reason) == (records.at(40), EndReason.UNKNOWN)


def test_a_machine_that_was_gone_before_anybody_looked_has_ended_with_its_last_heartbeat(records):
    observed = records.observed(absent_seconds={"i-1-0": 60.0})
    for heartbeats, end in (
        ({}, 10),
        ({0: records.heartbeat(at=30)}, 30),
        ({0: records.heartbeat(at=90)}, 90),
    ):
        history = records.history(records.launch(heartbeats=heartbeats))
        (one,) = certified(records, history, observed)
        assert one.ended_at == records.at(end)


def test_a_machine_lived_while_it_was_heard_of_though_no_listing_had_it(records):
    heard = records.history(records.launch(heartbeats={0: records.heartbeat(at=90)}))
    absent = {"i-1-0": 60.0}
    (one,) = certified(
        records, heard, records.observed(vanished=(records.instance(),), absent_seconds=absent)
    )
    assert one.ended_at == records.at(90)


@pytest.mark.parametrize(("left", "ended"), [(110, 100), (160, 100), (161, 40)])
def test_a_last_word_by_a_clock_that_is_a_little_ahead_says_when_the_machine_ended(records, left, ended):
    history = records.history(records.launch(exits={0: records.exit("succeeded", at=left)}))
    absent = {"i-1-0": 60.0}
    (one,) = certified(
        records, history, records.observed(vanished=(records.instance(),), absent_seconds=absent)
    )
    assert (one.ended_at, one.end_reason) == (records.at(ended), EndReason.SELF)


def test_a_last_word_says_when_a_machine_ended_that_is_gone_and_makes_its_absence_a_proof_sooner(records):
    """Its shutdown may hang, so the last word alone is none. A cloud that forgets machines kept users waiting."""
    history = records.history(records.launch(exits={0: records.exit("succeeded", at=90)}))
    assert certified(records, history, records.observed(records.instance())) == []
    assert certified(records, history, records.observed(absent_seconds={"i-1-0": 29.0})) == []
    (one,) = certified(records, history, records.observed(absent_seconds={"i-1-0": 30.0}))
    assert (one.ended_at, one.end_reason) == (records.at(90), EndReason.SELF)
    silent = records.history(records.launch())
    assert certified(records, silent, records.observed(absent_seconds={"i-1-0": 59.0})) == []


def test_silence_is_not_death(records):
    history = records.history(records.launch())
    observed = records.observed(records.instance(), silent_seconds={Seat(1, 0): 9000.0})
    assert certified(records, history, observed) == []


def test_a_machine_of_no_seat_is_certified_for_its_bill(records):
    history = records.history(records.launch())
    double = records.instance("i-x", "ended", launched=7.0, ended_at=records.at(30))
    (one,) = certified(records, history, records.observed(records.instance(), double))
    assert (one.instance_id, one.started_at, one.ended_at) == ("i-x", records.at(7), records.at(30))


def test_a_machine_that_vanished_before_its_claim_is_certified_too(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(vanished=(records.instance(),), absent_seconds={"i-1-0": 60.0})
    (one,) = certified(records, history, observed)
    assert (one.instance_id, one.started_at) == ("i-1-0", records.at(5))


def test_no_machine_is_certified_twice_or_while_the_listing_fails(records):
    history = records.history(records.launch(outcome="lost"))
    assert certified(records, history, records.observed(records.instance(state="ended"))) == []
    history = records.history(records.launch())
    observed = records.observed(instances=None, absent_seconds={"i-1-0": 9000.0})
    assert certified(records, history, observed) == []


# --- the end of the job ---------------------------------------------------------------------------


def test_a_job_whose_nodes_have_all_succeeded_is_finished_with_status_0(records):
    launch = records.launch(exits={0: records.exit("succeeded")})
    history = records.history(launch, generations=(records.generation(1),))
    assert act(records, history, records.observed(records.instance())) == (
        ended(records, 3, "succeeded", "", 0),
    )


def test_success_of_the_newest_generations_members_is_success(records):
    launch = records.launch(
        intent=records.intent(num_nodes=2), exits={1: records.exit("succeeded", instance_id="i-1-1", rank=1)}
    )
    generations = (records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(1,)))
    history = records.history(launch, generations=generations)
    machines = (records.instance(), records.instance("i-1-1", rank=1))
    (finish,) = act(records, history, records.observed(*machines), nodes={"min": 1, "max": 2})
    assert finish == ended(records, 4, "succeeded", "", 0)


def test_success_of_some_nodes_is_not_success_and_buys_nobody(records):
    launch = records.launch(
        intent=records.intent(num_nodes=2), exits={1: records.exit("succeeded", instance_id="i-1-1", rank=1)}
    )
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))
    observed = records.observed(records.instance(), records.instance("i-1-1", rank=1))
    assert act(records, history, observed, nodes=2) == ()


def test_success_outranks_a_stop(records):
    launch = records.launch(outcome="succeeded", exits={0: records.exit("succeeded")})
    history = records.history(launch, stop=records.stop(), generations=(records.generation(1),))
    assert act(records, history) == (ended(records, 3, "succeeded", "", 0),)


def test_a_stop_is_the_end_once_no_claimed_seat_is_live(records):
    history = records.history(records.launch(), stop=records.stop())
    assert act(records, history, records.observed(records.instance())) == ()
    history = records.history(records.launch(outcome="stopped"), stop=records.stop("max_cost"))
    assert act(records, history) == (ended(records, 2, "stopped", "limits.max_cost was reached", 1),)


def test_a_failure_that_no_machine_mends_is_the_end_once_the_others_have_left(records):
    exits = {0: records.exit("failed", permanent=True, exit_code=3, detail="ValueError")}
    launch = records.launch(intent=records.intent(num_nodes=2), exits=exits)
    others = records.instance("i-1-1", rank=1)
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))
    assert act(records, history, records.observed(records.instance(), others), nodes=2) == ()
    gone = {1: records.exit("failed", instance_id="i-1-1", rank=1)}
    history = records.history(
        records.change(launch, exits={**exits, **gone}), generations=history.generations
    )
    observed = records.observed(records.instance(), others)
    assert act(records, history, observed, nodes=2) == (ended(records, 3, "failed", "ValueError", 3),)


def test_a_finished_job_ends_what_still_runs_and_is_cleaned_up(records):
    history = records.history(records.launch(outcome="succeeded"), finished=records.finished())
    observed = records.observed(records.instance("i-late"))
    (late, clean) = act(records, history, observed, at=101.0)
    assert late == Terminate(("i-late",), "all seats of launch 1 are void or belong to other machines")
    assert clean == CleanUp()


def test_a_finished_job_leaves_no_seat_that_a_late_machine_could_claim(records):
    history = records.history(
        records.launch(outcome="succeeded"), records.launch(2, claimed=False), finished=records.finished()
    )
    assert act(records, history)[0] == VoidSeat(Seat(2, 0), "voided", "the job is over")


def test_what_was_made_for_a_finished_job_is_released_when_its_last_machine_has_ended(records):
    history = records.history(records.launch(outcome="succeeded"), finished=records.finished())
    ending = records.observed(records.instance(state="shutting-down"))
    assert Release() not in act(records, history, ending, at=101.0)
    ended = records.observed(records.instance(state="ended"))
    assert act(records, history, ended, at=101.0) == (CleanUp(), Release())


def test_without_a_listing_nothing_is_released(records):
    history = records.history(records.launch(outcome="succeeded"), finished=records.finished())
    observed = records.observed(instances=None)
    assert act(records, history, observed, at=101.0) == (CleanUp(),)


@pytest.mark.parametrize("said_at", [-86400.0, -660.0, 100.0, 86400.0])
def test_a_wrong_clock_of_whoever_says_stop_or_exits_or_finishes_ends_no_machine(records, said_at):
    exits = {1: records.exit("drained", instance_id="i-1-1", rank=1, at=said_at)}
    launch = records.launch(intent=records.intent(num_nodes=3), exits=exits)
    machines = [records.instance(f"i-1-{rank}", rank=rank) for rank in range(3)]
    stopped = records.history(launch, stop=records.stop(at=said_at))
    assert act(records, stopped, records.observed(*machines), nodes=3) == ()
    over = records.history(launch, finished=records.finished(at=said_at))
    assert act(records, over, records.observed(*machines), nodes=3) == (CleanUp(),)


# --- after a loss ---------------------------------------------------------------------------------


def test_a_reclaimed_job_is_launched_again_at_once(records):
    history = records.history(records.launch(outcome="reclaimed"))
    assert act(records, history) == (opened(records, 2, 2, "reclaimed"),)


def test_a_failed_job_waits_before_it_is_launched_again(records):
    history = records.history(records.launch(outcome="failed", detail="exit status 1"))
    assert act(records, history, at=101.0) == (Postpone(9.0, "failed; trying again"),)
    assert act(records, history, at=110.0) == (opened(records, 2, 2, "failed"),)


def test_a_node_that_is_proven_dead_is_replaced_alone_like_those_that_stay(records):
    """Of three nodes only the lost one is bought again, in the others' zone and of their type."""
    home = records.offer("b", price=1.0)
    launch = records.launch(
        intent=records.intent(num_nodes=3, offer=home),
        certificates={"i-1-1": records.certificate("i-1-1", rank=1, end_reason="reclaimed")},
    )
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1, 2)),))
    offers = (records.offer("a", price=0.5), home, records.offer("b", price=0.1, instance_type="other"))
    machines = [records.instance(f"i-1-{rank}", rank=rank) for rank in (0, 2)]
    found = act(records, history, records.observed(*machines, offers=offers), nodes=3)
    assert found == (opened(records, 3, 2, "reclaimed", offer=home),)


def test_a_replacement_that_cannot_be_had_leaves_the_others_alone(records):
    launch = records.launch(
        intent=records.intent(num_nodes=2), exits={1: records.exit("drained", instance_id="i-1-1", rank=1)}
    )
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))
    machines = (records.instance(), records.instance("i-1-1", rank=1))
    (wait,) = act(records, history, records.observed(*machines, offers=()), nodes=2)
    assert (type(wait), wait.why.partition(":")[0]) == (Postpone, "no machine is bought")
    enough = {"min": 1, "max": 2}
    assert act(records, history, records.observed(*machines, offers=()), nodes=enough) == ()


def test_a_stand_in_for_a_machine_at_risk_is_bought_where_no_machine_is_at_risk(records):
    home, other = records.offer("a", price=0.5), records.offer("b", price=1.0)
    beat = records.heartbeat(at_risk=True)
    launch = records.launch(intent=records.intent(offer=home), heartbeats={0: beat})
    history = records.history(launch, generations=(records.generation(1),))
    found = act(records, history, records.observed(records.instance(), offers=(home, other)))
    assert found == (opened(records, 3, 2, "rebalance", offer=other, stands_in_for=(Seat(1, 0),)),)
    assert act(records, history, records.observed(records.instance(), offers=(home,))) == ()


def test_a_job_that_failed_too_often_ends_only_when_its_last_nodes_have_left(records):
    exits = {0: records.exit("failed", generation=1)}
    failed = records.launch(intent=records.intent(num_nodes=2), exits=exits)
    history = records.history(failed, generations=(records.generation(1, ranks=(0, 1)),))
    limits = {"limits": {"max_restarts": 0}, "nodes": 2}
    machines = (records.instance(), records.instance("i-1-1", rank=1))
    (wait,) = act(records, history, records.observed(*machines), **limits)
    assert (type(wait), wait.why) == (Postpone, "no machine is bought: failed 1 times in a row: failed")


# --- a machine that is kept for inspection --------------------------------------------------------

KEEPS = {"limits": {"keep_failed": 1800}}


def test_a_machine_that_is_kept_is_left_alone_with_what_it_uses_until_its_time_is_over(records):
    history = records.failed_and_kept()
    machine = records.observed(records.instance(), ending_seconds={Ending("over", Seat(1, 0)): 9999.0})
    assert act(records, history, machine, at=1899.0, **KEEPS) == ()
    # It ends itself then; a driver that has to do it comes a minute later.
    assert act(records, history, machine, at=1901.0, **KEEPS) == (CleanUp(),)
    late, clean = act(records, history, machine, at=1961.0, **KEEPS)
    assert late == Terminate(("i-1-0",), "the time to inspect node 1.0 is over")
    assert clean == CleanUp()


def test_a_machine_that_is_kept_is_ended_at_once_when_somebody_asks_the_job_to_stop(records):
    history = records.failed_and_kept(stop=records.stop(at=300.0))
    end, clean = act(records, history, records.observed(records.instance()), at=301.0, **KEEPS)
    assert end == Terminate(("i-1-0",), "stop requested (user): node 1.0 is not kept any longer")
    assert clean == CleanUp()


def test_a_machine_that_is_kept_ends_before_the_limit_on_cost_is_passed(records):
    # A stop costs the look, and what it takes a machine to end: 150 s, as nothing was measured.
    tables = {"limits": {"keep_failed": 1800, "max_cost": 0.4}}
    history, machine = records.failed_and_kept(beat=1200.0), records.observed(records.instance(launched=0.0))
    assert act(records, history, machine, at=1289.0, **tables) == ()
    (stop,) = act(records, history, machine, at=1291.0, **tables)
    assert (type(stop), stop.reason) == (RequestStop, "max_cost")
    gone = records.observed(records.instance(state="ended", ended_at=records.at(1295.0), launched=0.0))
    certified = next(
        one for one in act(records, history, gone, at=1300.0, **tables) if isinstance(one, Certify)
    )
    assert certified.certificate.ended_at == records.at(1295.0)


def test_a_listing_that_misses_it_for_half_a_minute_proves_no_end_of_a_machine_that_is_kept(records):
    history = records.failed_and_kept(beat=290.0)
    absent = records.observed(absent_seconds={"i-1-0": 45.0})
    assert act(records, history, absent, at=300.0, **KEEPS) == ()
    absent = records.observed(absent_seconds={"i-1-0": records.absence_seconds})
    (proof,) = act(records, history, absent, at=400.0, **KEEPS)
    assert proof.certificate.ended_at == records.at(290.0)


def test_a_job_whose_machine_is_kept_has_failed_and_buys_nothing_whoever_stops_it(records):
    launch = records.launch(
        exits={0: records.exit("failed", permanent=True, exit_code=3)}, kept=records.kept()
    )
    for stop in (None, records.stop(at=105.0)):
        history = records.history(launch, num_records=2, stop=stop)
        found = act(records, history, at=100.0, **KEEPS)
        assert ended(records, 3, "failed", "broken", 1) in found
    waiting = records.launch(intent=records.intent(num_nodes=2), exits=launch.exits, kept=records.kept())
    history = records.history(waiting, num_records=2, generations=(records.generation(1, ranks=(0, 1)),))
    machines = records.observed(records.instance(), records.instance("i-1-1", rank=1))
    assert act(records, history, machines, nodes=2, **KEEPS) == ()
    # Nor are the machines of a launch requested that was opened before: its seats are void.
    opened = records.launch(2, intent=records.intent(2), claimed=False)
    generations = (records.generation(1, ranks=(0, 1)),)
    history = records.history(waiting, opened, num_records=3, generations=generations)
    (void,) = act(records, history, machines, nodes=2, **KEEPS)
    assert void == VoidSeat(Seat(2, 0), "voided", "the job has failed")


def test_a_driver_that_ends_the_job_keeps_the_node_that_failed_first_of_those_that_wait(records):
    waits = {"waits_until": records.at(180.0), "generation": 1}
    exits = {
        0: records.exit("failed", at=95.0, **waits),
        1: records.exit("failed", instance_id="i-1-1", rank=1, at=92.0, **waits),
    }
    launch = records.launch(intent=records.intent(num_nodes=2), exits=exits)
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))
    tables = {"limits": {"keep_failed": 1800, "max_restarts": 0}, "nodes": 2}
    (kept,) = act(records, history, at=100.0, **tables)
    assert (kept.record.seat, kept.record.until) == (Seat(1, 1), records.at(1900.0))
    assert kept.record.detail == "failed 1 times in a row: failed"
    # Too late for both, or the job has gone on since, and no machine is kept.
    (end,) = act(records, history, at=181.0, **tables)
    assert isinstance(end.record, Finished)
    later = records.launch(2, intent=records.intent(2, at=98.0), outcome="voided", ended=99.0)
    history = records.history(launch, later, generations=history.generations)
    (end,) = act(records, history, at=100.0, **tables)
    assert isinstance(end.record, Finished)


# --- limits ---------------------------------------------------------------------------------------


def test_a_job_that_has_spent_its_money_is_asked_to_stop(records):
    history = records.history(records.launch())
    observed = records.observed(records.instance(launched=0.0))
    limits = {"limits": {"max_cost": 1.0}}
    assert act(records, history, observed, at=3299.0, **limits) == ()
    (action,) = act(records, history, observed, at=3300.0, **limits)
    figures = "0.9167 USD of 1.0000 USD spent, and the stop, which takes up to 300 s, may cost 0.0833 USD"
    assert action == RequestStop("max_cost", figures)


def test_what_cannot_start_and_stop_below_the_limit_is_not_bought_and_the_job_ends(records):
    proof = {"i-1-0": records.certificate(started=0.0, ended=2400.0, end_reason="reclaimed")}
    history = records.history(records.launch(certificates=proof))
    assert isinstance(act(records, history, limits={"max_cost": 0.84})[0], OpenLaunch)
    (action,) = act(records, history, limits={"max_cost": 0.83})
    assert (action.reason, action.detail) == (
        "max_cost",
        (
            "0.6667 USD of 0.8300 USD spent; limits.max_cost of 0.8300 USD has no room for 1 x big (spot), "
            "whose start and stop alone cost 0.1667 USD"
        ),
    )


def test_a_least_time_counts_for_what_may_be_bought(records):
    dear = records.offer(billing=Billing(minimum_seconds=3600.0))
    observed = records.observed(offers=(dear,))
    assert isinstance(act(records, records.history(), observed, limits={"max_cost": 1.01})[0], OpenLaunch)
    assert isinstance(act(records, records.history(), observed, limits={"max_cost": 1.0})[0], RequestStop)


def test_a_dearer_offer_is_not_bought_where_a_cheaper_one_is_only_cooling_down(records):
    cheap, dear = records.offer("a", price=1.0), records.offer("b", price=9.0)
    history = records.history(records.capacity(1, at=90.0, offer=cheap))
    observed = records.observed(offers=(cheap, dear))
    assert act(records, history, observed)[0].offer == dear
    (wait,) = act(records, history, observed, limits={"max_cost": 1.0})
    assert (type(wait), wait.why) == (Postpone, "no offer has capacity now")


def test_as_many_nodes_are_bought_as_the_limit_has_room_for(records):
    nodes = {"min": 1, "max": 4}
    (launch,) = act(records, records.history(), nodes=nodes, limits={"max_cost": 0.4})
    assert (launch.num_nodes, launch.min_nodes) == (2, 1)


def test_those_that_hold_are_told_that_the_limit_has_no_room_for_another(records):
    """Nobody asks for offers at each look: another costs no less than those that are there."""
    exits = {1: records.exit("drained", instance_id="i-1-1", rank=1)}
    launch = records.launch(intent=records.intent(num_nodes=2), exits=exits)
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))
    observed = records.observed(records.instance(), offers=None)
    assert act(records, history, observed, nodes=2, limits={"max_cost": 0.4}) == (FetchOffers(),)
    (wait,) = act(records, history, observed, nodes=2, limits={"max_cost": 0.2})
    assert isinstance(wait, Postpone)
    assert wait.why == (
        "no machine is bought: limits.max_cost of 0.2000 USD has no room for 1 x big (spot), whose "
        "start and stop alone cost 0.0889 USD"
    )


def test_money_in_another_currency_is_not_compared(records):
    offer = records.offer(currency="CNY")
    history = records.history(records.launch(intent=records.intent(offer=offer)))
    observed = records.observed(records.instance(launched=0.0))
    limits = {"limits": {"max_cost": 1.0, "currency": "USD"}}
    assert act(records, history, observed, at=7200.0, **limits) == ()


def test_a_job_that_has_used_its_time_is_asked_to_stop_and_not_launched_again(records):
    proof = {"i-1-0": records.certificate(started=0.0, ended=600.0, end_reason="reclaimed")}
    history = records.history(records.launch(certificates=proof))
    limits = {"limits": {"max_runtime": 600.0}}
    assert act(records, history, at=700.0, **limits) == (RequestStop("max_runtime"),)


def test_a_job_that_has_succeeded_is_not_asked_to_stop(records):
    launch = records.launch(exits={0: records.exit("succeeded", at=90)})
    history = records.history(launch, generations=(records.generation(1),))
    observed = records.observed(records.instance(launched=0.0))
    (action,) = act(records, history, observed, at=100.0, limits={"max_cost": 0.001})
    assert isinstance(action.record, Finished)


def test_decide_is_a_function_of_its_arguments(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(
        records.instance("i-z", "ended"),
        records.instance("i-1-0", launch=7),
        ending_seconds={Ending("stop"): 1.0},
    )
    before = (copy.deepcopy(history), copy.deepcopy(observed))
    first = act(records, history, observed)
    assert first == act(records, *before)
    assert (history, observed) == before


def test_the_price_that_the_market_asks_now_is_written_down_and_counts_for_the_limit(records):
    launch = records.launch()
    history = records.history(launch)
    same = records.observed(records.instance(), prices={1: 1.005})
    assert not [one for one in act(records, history, same) if isinstance(one, Append)]
    dearer = records.observed(records.instance(), prices={1: 2.0})
    price = Repriced(launch=1, price_per_hour=2.0, at=records.at(100), writer=UNSIGNED)
    assert Append(history.num_records + 1, price) in act(records, history, dearer)
    known = records.history(records.change(launch, prices=(records.repriced(2.0, at=600.0),)))
    assert not [one for one in act(records, known, dearer) if isinstance(one, Append)]
    limits = {"limits": {"max_cost": 1.5}}
    observed = records.observed(records.instance(launched=0.0))
    assert act(records, history, observed, at=3600.0, **limits) == ()
    assert [one.reason for one in act(records, known, observed, at=3600.0, **limits)] == ["max_cost"]
