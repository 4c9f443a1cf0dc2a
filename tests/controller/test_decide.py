import copy

import pytest

from cloudspot.controller.actions import (
    Announce,
    CleanUp,
    CloseLaunch,
    Create,
    FetchOffers,
    Finish,
    OpenLaunch,
    Release,
    RequestStop,
    Terminate,
    VoidSlot,
    Wait,
)
from cloudspot.controller.decide import BOOT_LIMIT_SECONDS, decide
from cloudspot.controller.observed import CreateFailure
from cloudspot.jobstore.delivering import (
    BEATING_SECONDS,
    DELIVERY_GRACE_SECONDS,
    SILENT_LIMIT_SECONDS,
    STOP_GRACE_SECONDS,
    SURVIVOR_GRACE_SECONDS,
)
from cloudspot.jobstore.records import Ending


def act(records, history, observed=None, *, at=100.0, **tables):
    observed = records.observed() if observed is None else observed
    actions = decide(records.spec(**tables), history, observed, records.at(at))
    return tuple(one for one in actions if not isinstance(one, Announce))  # test_announcing.py has those


# --- before a launch ------------------------------------------------------------------------------


def test_a_new_job_asks_for_offers_before_it_opens_a_launch(records):
    assert act(records, records.history(), records.observed(offers=None)) == (FetchOffers(),)


def test_a_new_job_opens_its_first_launch_at_the_first_record(records):
    assert act(records, records.history()) == (OpenLaunch(1, 1, records.offer(), "first"),)


def test_nothing_is_launched_while_the_provider_cannot_list(records):
    assert act(records, records.history(), records.observed(instances=None)) == ()


def test_a_stop_before_the_first_launch_finishes_the_job(records):
    history = records.history(stop=records.stop())
    assert act(records, history) == (Finish(1, "stopped", "asked for with cloudspot stop", 0),)


# --- an open launch whose machines are not there yet ----------------------------------------------


def test_an_open_launch_without_a_machine_is_replayed(records):
    history = records.history(records.launch(claimed=False))
    assert act(records, history) == (Create(1),)


def test_a_machine_that_only_our_own_create_has_returned_is_not_created_again(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(created=(records.instance(),), absent_seconds={"i-1-0": 59.0})
    assert act(records, history, observed) == ()


def test_nothing_is_replayed_while_the_listing_fails(records):
    history = records.history(records.launch(claimed=False))
    assert act(records, history, records.observed(instances=None)) == ()


def test_a_token_that_is_too_old_is_not_replayed_but_void(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(token_age_seconds=600.0)
    (action,) = act(records, history, observed)
    assert isinstance(action, VoidSlot)
    assert (action.launch, action.rank, action.outcome) == (1, 0, "voided")


@pytest.mark.parametrize("age", [0.0, 600.0])
def test_a_launch_with_a_claimed_slot_is_neither_replayed_nor_void_for_its_token(records, age):
    """Its machines have come, though no listing shows them yet."""
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    observed = records.observed(token_age_seconds=age, absent_seconds={"i-1-0": 1.0})
    assert act(records, records.history(launch), observed) == ()


@pytest.mark.parametrize("outcome", ["capacity", "quota", "refused"])
def test_a_refusal_becomes_a_void_and_not_yet_a_closed_launch(records, outcome):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(create_failure=CreateFailure(1, outcome, "no big in a"))
    assert act(records, history, observed) == (VoidSlot(1, 0, outcome, "no big in a"),)


def test_a_refusal_of_an_earlier_launch_says_nothing_of_this_one(records):
    history = records.history(records.capacity(1, at=0), records.launch(2, claimed=False))
    observed = records.observed(create_failure=CreateFailure(1, "capacity", ""))
    assert act(records, history, observed) == (Create(2),)


def test_a_launch_goes_on_when_another_controllers_create_succeeded(records):
    history = records.history(records.launch())
    observed = records.observed(records.instance(), create_failure=CreateFailure(1, "capacity", ""))
    assert act(records, history, observed) == ()


def test_the_void_goes_to_a_rank_that_nobody_has_claimed(records):
    launch = records.launch(intent=records.intent(num_nodes=3), slots={0: records.slot("i-1-0")})
    observed = records.observed(
        records.instance(), create_failure=CreateFailure(1, "capacity", "only one came")
    )
    assert act(records, records.history(launch), observed) == (VoidSlot(1, 1, "capacity", "only one came"),)


def test_a_launch_is_closed_with_what_its_void_says(records):
    launch = records.launch(slots={0: records.slot(None, detail="quota: 8 vCPUs: all used")})
    assert act(records, records.history(launch)) == (CloseLaunch(2, 1, "quota", "8 vCPUs: all used", ()),)


def test_a_void_launch_is_not_closed_while_the_listing_fails(records):
    launch = records.launch(slots={0: records.slot(None, detail="capacity: none")})
    assert act(records, records.history(launch), records.observed(instances=None)) == ()


def test_a_machine_that_ended_before_its_claim_makes_the_launch_void(records):
    history = records.history(records.launch(claimed=False))
    ended = records.instance(state="ended", end_reason="reclaimed")
    (action,) = act(records, history, records.observed(ended))
    assert action == VoidSlot(1, 0, "voided", "i-1-0 ended before it claimed its rank (reclaimed)")


def test_a_dead_double_does_not_void_the_launch_of_a_machine_that_still_boots(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(records.instance("i-x", "ended"), records.instance("i-y"))
    assert act(records, history, observed) == ()


@pytest.mark.parametrize("state", ["pending", "running", "shutting-down"])
def test_a_machine_that_boots_is_waited_for(records, state):
    history = records.history(records.launch(claimed=False))
    assert act(records, history, records.observed(records.instance(state=state))) == ()


def test_a_machine_that_hangs_in_its_boot_makes_the_launch_void(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(records.instance(launched=0.0))
    assert act(records, history, observed, at=BOOT_LIMIT_SECONDS - 1) == ()
    (action,) = act(records, history, observed, at=BOOT_LIMIT_SECONDS)
    assert isinstance(action, VoidSlot)


def test_the_boot_limit_also_counts_by_the_controllers_own_clock(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(records.instance(launched=None), known_seconds={"i-1-0": BOOT_LIMIT_SECONDS})
    (action,) = act(records, history, observed)
    assert isinstance(action, VoidSlot)


def test_a_node_that_died_after_its_claim_voids_the_rank_that_is_left(records):
    launch = records.launch(intent=records.intent(num_nodes=2), slots={0: records.slot("i-1-0")})
    observed = records.observed(records.instance(state="ended"), records.instance("i-1-1", rank=1))
    (action,) = act(records, records.history(launch), observed)
    assert isinstance(action, VoidSlot)
    assert action.rank == 1


def test_a_stop_voids_a_launch_that_is_not_claimed(records):
    history = records.history(records.launch(claimed=False), stop=records.stop())
    (action,) = act(records, history, records.observed(records.instance()))
    assert action == VoidSlot(1, 0, "voided", "stop requested (user)")


# --- an attempt -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "running", "shutting-down"])
def test_a_machine_that_is_shutting_down_is_alive(records, state):
    history = records.history(records.launch())
    assert act(records, history, records.observed(records.instance(state=state))) == ()


def test_a_machine_that_ended_closes_its_launch(records):
    history = records.history(records.launch())
    ended = records.instance(state="ended", end_reason="reclaimed", ended_at=records.at(90))
    (action,) = act(records, history, records.observed(ended))
    assert (action.number, action.launch, action.outcome) == (2, 1, "reclaimed")
    assert action.machines == (
        records.machine("i-1-0", started=5.0, ended=90.0, end_reason="reclaimed", rank=0),
    )


def test_absence_proves_death_only_after_the_providers_figure(records):
    history = records.history(records.launch())
    assert act(records, history, records.observed(absent_seconds={"i-1-0": 59.9})) == ()
    (action,) = act(records, history, records.observed(absent_seconds={"i-1-0": 60.0}))
    assert (action.outcome, action.detail) == ("lost", "node 0 (i-1-0) vanished")
    assert action.machines[0].ended_at == records.at(40)


def test_silence_is_not_death(records):
    history = records.history(records.launch())
    observed = records.observed(
        records.instance(), silent_seconds={(1, 0): SILENT_LIMIT_SECONDS - 1}, absent_seconds={}
    )
    assert act(records, history, observed) == ()


def test_a_machine_silent_for_very_long_is_terminated_and_its_launch_stays_open(records):
    history = records.history(records.launch())
    observed = records.observed(records.instance(), silent_seconds={(1, 0): SILENT_LIMIT_SECONDS})
    assert act(records, history, observed) == (Terminate(("i-1-0",), "no heartbeat for 60 minutes"),)


@pytest.mark.parametrize(
    ("outcome", "closed"),
    [("drained", "reclaimed"), ("failed", "failed"), ("stopped", "stopped"), ("superseded", "lost")],
)
def test_a_nodes_last_word_closes_its_launch_though_the_machine_still_runs(records, outcome, closed):
    history = records.history(records.launch(exits={0: records.exit(outcome)}))
    (action,) = act(records, history, records.observed(records.instance()))
    assert (type(action), action.outcome) == (CloseLaunch, closed)


def test_the_last_word_of_a_machine_that_does_not_own_the_rank_proves_nothing(records):
    history = records.history(records.launch(exits={0: records.exit("failed", instance_id="i-other")}))
    assert act(records, history, records.observed(records.instance())) == ()


def test_a_launch_with_fewer_than_min_nodes_left_is_closed_after_the_survivors_grace(records):
    launch = records.launch(intent=records.intent(num_nodes=2))
    history = records.history(launch)
    machines = (
        records.instance(state="ended", ended_at=records.at(100)),
        records.instance("i-1-1", rank=1),
    )

    def after(seconds):
        observed = records.observed(*machines, ending_seconds={Ending(1, 0): seconds})
        return act(records, history, observed, at=9000.0, nodes=2)

    assert after(SURVIVOR_GRACE_SECONDS - 1) == ()
    (action,) = after(SURVIVOR_GRACE_SECONDS)
    assert isinstance(action, CloseLaunch)


@pytest.mark.parametrize("state", ["draining", "uploading", "ending"])
def test_a_survivor_that_says_it_delivers_has_an_hour(records, state):
    """Rank 0 is reclaimed, and its share of the drain is with rank 1: nobody else has it."""
    launch = records.launch(
        intent=records.intent(num_nodes=2),
        exits={0: records.exit("drained", at=100)},
        heartbeats={1: records.heartbeat(instance_id="i-1-1", state=state)},
    )
    machines = (records.instance(state="ended"), records.instance("i-1-1", rank=1))

    def after(seconds, silent=0.0):
        observed = records.observed(
            *machines, ending_seconds={Ending(1, 0): seconds}, silent_seconds={(1, 1): silent}
        )
        return act(records, records.history(launch), observed, at=9000.0, nodes=2)

    assert after(DELIVERY_GRACE_SECONDS - 1) == ()
    assert after(DELIVERY_GRACE_SECONDS - 1, silent=BEATING_SECONDS - 1) == ()
    (action,) = after(SURVIVOR_GRACE_SECONDS, silent=BEATING_SECONDS)
    assert (type(action), action.outcome) == (CloseLaunch, "reclaimed")
    (action,) = after(DELIVERY_GRACE_SECONDS)
    assert (type(action), action.outcome) == (CloseLaunch, "reclaimed")


def test_the_survivors_grace_begins_anew_with_each_death(records):
    launch = records.launch(intent=records.intent(num_nodes=3))
    machines = (
        records.instance(state="ended"),
        records.instance("i-1-1", rank=1),
        records.instance("i-1-2", rank=2),
    )
    history = records.history(launch)

    def close(**changes):
        return act(records, history, records.observed(*machines, **changes), at=9000.0, nodes=3)

    long_ago, now = Ending(1, 0), Ending(1, 1)
    assert close(ending_seconds={long_ago: 9000.0}) != ()
    machines = (machines[0], records.instance("i-1-1", "ended", rank=1), machines[2])
    assert close(ending_seconds={long_ago: 9000.0, now: SURVIVOR_GRACE_SECONDS - 1}) == ()
    machines = (machines[0], machines[2])
    absence = records.absence_seconds + SURVIVOR_GRACE_SECONDS
    gone = {"ending_seconds": {long_ago: 9000.0}}
    assert close(**gone, absent_seconds={"i-1-1": absence - 1}) == ()
    assert close(**gone, absent_seconds={"i-1-1": absence}) != ()


def test_survivors_that_have_said_their_last_word_are_not_waited_for(records):
    launch = records.launch(
        intent=records.intent(num_nodes=2), exits={1: records.exit("drained", instance_id="i-1-1", rank=1)}
    )
    observed = records.observed(
        records.instance(state="ended", ended_at=records.at(100)), records.instance("i-1-1", rank=1)
    )
    (action,) = act(records, records.history(launch), observed, at=101.0, nodes=2)
    assert (type(action), action.outcome) == (CloseLaunch, "reclaimed")


def test_a_launch_with_min_nodes_left_goes_on(records):
    launch = records.launch(intent=records.intent(num_nodes=2))
    observed = records.observed(records.instance(state="ended"), records.instance("i-1-1", rank=1))
    nodes = {"nodes": {"min": 1, "max": 2}}
    assert act(records, records.history(launch), observed, at=9000.0, **nodes) == ()


def test_success_of_the_newest_generations_members_is_success(records):
    launch = records.launch(
        intent=records.intent(num_nodes=2), exits={1: records.exit("succeeded", instance_id="i-1-1", rank=1)}
    )
    generations = (records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(1,)))
    history = records.history(launch, generations=generations)
    nodes = {"nodes": {"min": 1, "max": 2}}
    (action,) = act(records, history, records.observed(records.instance()), **nodes)
    assert (type(action), action.outcome) == (CloseLaunch, "succeeded")


def test_success_of_some_nodes_is_not_success(records):
    launch = records.launch(
        intent=records.intent(num_nodes=2), exits={1: records.exit("succeeded", instance_id="i-1-1", rank=1)}
    )
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1)),))
    observed = records.observed(records.instance(), records.instance("i-1-1", rank=1))
    assert act(records, history, observed, nodes={"min": 1, "max": 2}) == ()


def test_a_reclaim_explains_the_failure_of_a_peer(records):
    launch = records.launch(
        intent=records.intent(num_nodes=2),
        exits={1: records.exit("failed", instance_id="i-1-1", rank=1, exit_code=1)},
    )
    observed = records.observed(records.instance(state="ended", end_reason="reclaimed"))
    (action,) = act(records, records.history(launch), observed, nodes=2)
    assert action.outcome == "reclaimed"


def test_a_stopped_job_waits_for_its_nodes_and_ends_them_after_the_grace(records):
    history = records.history(records.launch(), stop=records.stop(at=100))

    def after(seconds):
        observed = records.observed(records.instance(), ending_seconds={Ending(): seconds})
        return act(records, history, observed)

    assert after(STOP_GRACE_SECONDS - 1) == ()
    assert after(STOP_GRACE_SECONDS) == (Terminate(("i-1-0",), "still running 10 minutes after the stop"),)


@pytest.mark.parametrize("said_at", [-86400.0, -660.0, 100.0, 86400.0])
def test_a_wrong_clock_of_whoever_says_stop_or_exits_or_closes_ends_no_machine(records, said_at):
    launch = records.launch(
        intent=records.intent(num_nodes=3),
        exits={1: records.exit("drained", instance_id="i-1-1", rank=1, at=said_at)},
    )
    closed = records.launch(2, outcome="reclaimed", closed_at=said_at)
    machines = [records.instance(f"i-1-{rank}", rank=rank) for rank in range(3)]
    history = records.history(launch, stop=records.stop(at=said_at))
    nodes = {"nodes": {"min": 1, "max": 3}}
    assert act(records, history, records.observed(*machines), **nodes) == ()
    assert act(records, history, records.observed(*machines), nodes=3) == ()
    history = records.history(records.capacity(1, at=0), closed, finished=records.finished(at=said_at))
    assert act(records, history, records.observed(records.instance("i-2-0", launch=2))) == (CleanUp(),)


@pytest.mark.parametrize("state", ["draining", "uploading", "ending"])
def test_a_stopping_node_that_still_delivers_its_checkpoint_has_an_hour(records, state):
    beats = {0: records.heartbeat(state=state), 1: records.heartbeat(instance_id="i-1-1", state="running")}
    launch = records.launch(intent=records.intent(num_nodes=2), heartbeats=beats)
    history = records.history(launch, stop=records.stop(at=100))
    machines = [records.instance(), records.instance("i-1-1", rank=1)]
    silent = {(1, 0): BEATING_SECONDS - 1}
    after = {
        seconds: act(
            records,
            history,
            records.observed(*machines, silent_seconds=silent, ending_seconds={Ending(): float(seconds)}),
            nodes=2,
        )
        for seconds in (599, 600, 3599, int(DELIVERY_GRACE_SECONDS))
    }
    assert after == {
        599: (),
        600: (Terminate(("i-1-1",), "still running 10 minutes after the stop"),),
        3599: (Terminate(("i-1-1",), "still running 59 minutes after the stop"),),
        3600: (Terminate(("i-1-0", "i-1-1"), "still running 60 minutes after the stop"),),
    }


def test_a_stopping_node_that_fell_silent_has_no_longer_grace(records):
    launch = records.launch(heartbeats={0: records.heartbeat(state="uploading")})
    history = records.history(launch, stop=records.stop(at=100))
    observed = records.observed(
        records.instance(),
        silent_seconds={(1, 0): BEATING_SECONDS},
        ending_seconds={Ending(): STOP_GRACE_SECONDS},
    )
    assert act(records, history, observed) == (
        Terminate(("i-1-0",), "still running 10 minutes after the stop"),
    )


# --- after a launch -------------------------------------------------------------------------------


def test_a_reclaimed_job_is_launched_again_at_once(records):
    history = records.history(records.launch(outcome="reclaimed"))
    assert act(records, history) == (OpenLaunch(3, 2, records.offer(), "reclaimed"),)


def test_a_failed_job_waits_before_it_is_launched_again(records):
    history = records.history(records.launch(outcome="failed", detail="exit status 1"))
    assert act(records, history, at=101.0) == (Wait(9.0, "failed; trying again"),)
    assert act(records, history, at=110.0) == (OpenLaunch(3, 2, records.offer(), "failed"),)


def test_a_succeeded_job_is_finished_with_status_0(records):
    launch = records.launch(outcome="succeeded", exits={0: records.exit("succeeded")})
    assert act(records, records.history(launch)) == (Finish(3, "succeeded", "", 0),)


def test_success_outranks_a_stop(records):
    launch = records.launch(outcome="succeeded", exits={0: records.exit("succeeded")})
    history = records.history(launch, stop=records.stop())
    assert act(records, history) == (Finish(3, "succeeded", "", 0),)


def test_a_stop_by_a_limit_finishes_with_status_1(records):
    history = records.history(records.launch(outcome="stopped"), stop=records.stop("max_cost"))
    assert act(records, history) == (Finish(3, "stopped", "limits.max_cost was reached", 1),)


def test_a_finished_job_ends_what_still_runs_and_is_cleaned_up(records):
    history = records.history(records.launch(outcome="succeeded"), finished=records.finished())
    observed = records.observed(records.instance("i-late"))
    assert act(records, history, observed, at=101.0) == (
        Terminate(("i-late",), "launch 1 is closed"),
        CleanUp(),
    )


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


# --- limits ---------------------------------------------------------------------------------------


def test_a_job_that_has_spent_its_money_is_asked_to_stop(records):
    history = records.history(records.launch())
    observed = records.observed(records.instance(launched=0.0))
    limits = {"limits": {"max_cost": 1.0}}
    assert act(records, history, observed, at=3599.0, **limits) == ()
    assert act(records, history, observed, at=3600.0, **limits) == (RequestStop("max_cost"),)


def test_money_in_another_currency_is_not_compared(records):
    offer = records.offer(currency="CNY")
    history = records.history(records.launch(intent=records.intent(offer=offer)))
    observed = records.observed(records.instance(launched=0.0))
    limits = {"limits": {"max_cost": 1.0, "currency": "USD"}}
    assert act(records, history, observed, at=7200.0, **limits) == ()


def test_a_job_that_has_used_its_time_is_asked_to_stop_and_not_launched_again(records):
    machines = (records.machine(started=0.0, ended=600.0),)
    history = records.history(records.launch(outcome="reclaimed", machines=machines))
    limits = {"limits": {"max_runtime": 600.0}}
    assert act(records, history, at=700.0, **limits) == (RequestStop("max_runtime"),)


def test_a_job_that_has_succeeded_is_not_asked_to_stop(records):
    history = records.history(records.launch(exits={0: records.exit("succeeded", at=90)}))
    observed = records.observed(records.instance(launched=0.0))
    (action,) = act(records, history, observed, at=100.0, limits={"max_cost": 0.001})
    assert isinstance(action, CloseLaunch)


def test_decide_is_a_function_of_its_arguments(records):
    history = records.history(records.launch(claimed=False))
    observed = records.observed(records.instance("i-z"), records.instance("i-1-0", launch=7))
    before = (copy.deepcopy(history), copy.deepcopy(observed))
    first = act(records, history, observed)
    assert first == act(records, *before)
    assert (history, observed) == before
