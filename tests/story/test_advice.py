"""What a job's user is warned of."""

from cloudspot.jobfile.spec import spec_from_json, spec_to_json
from cloudspot.jobstore.layout.records import Idle, Phase
from cloudspot.story.advice import silence, warnings
from cloudspot.story.report import show_json, summarise


def test_nodes_of_which_nothing_was_heard_for_long_are_warned_of(records):
    beats = {rank: records.heartbeat(instance_id=f"i-1-{rank}", at=at) for rank, at in ((0, 60), (1, 90))}
    launch = records.launch(intent=records.intent(num_nodes=3), heartbeats=beats)
    history = records.history(launch, generations=(records.generation(1, ranks=(0, 1, 2)),))

    def warned(history, at):
        return list(silence(history, records.at(at)))

    assert warned(history, 300) == []
    [told] = warned(history, 380)
    assert told == (
        "no heartbeat came from nodes 1.0 and 1.2 for 5 minutes; each is billed until a driver "
        "(attach, reconcile) finds out that it has ended"
    )
    assert warned(history, 90 + 9 * 3600)[0].startswith("no heartbeat came from nodes 1.0-2 for 9 hours;")
    # One that is gone is not waited for: the others go on without it.
    regrouped = (records.generation(1, ranks=(0, 1, 2)), records.generation(2, ranks=(1,)))
    assert warned(records.change(history, generations=regrouped), 380) == []
    over = records.change(launch, exits={0: records.exit("drained")}, slots={0: records.slot("i-1-0")})
    assert warned(records.history(records.change(over, intent=records.intent())), 9999) == []


def test_of_many_silent_nodes_the_number_is_said_before_what_they_said_last(records):
    beats = {rank: records.heartbeat(instance_id=f"i-1-{rank}", warnings=("old",)) for rank in range(64)}
    launch = records.launch(intent=records.intent(num_nodes=64), heartbeats=beats)
    silent, said = show_json(records.history(launch), records.at(9999))["warnings"]
    assert silent.startswith("no heartbeat came from 64 nodes for 3 hours;")
    assert said == "old"


def test_newcomers_are_waited_for_and_those_that_were_left_out_are_not(records):
    one, two = records.launch(1, intent=records.intent(num_nodes=2)), records.launch(2)
    generations = (records.generation(1, ranks=(0, 1)), records.generation(2, ranks=(1,)))
    [told] = silence(records.history(one, two, generations=generations), records.at(999))
    assert told.startswith("no heartbeat came from nodes 1.1 and 2.0 for 16 minutes;")


def test_nodes_that_idle_are_named_with_how_long_they_do_at_least(records):
    def history(*seconds):
        idle = [None if one is None else Idle(seconds=one, cause="GPUs at 0 %") for one in seconds]
        beats = {
            rank: records.heartbeat(instance_id=f"i-1-{rank}", idle=one) for rank, one in enumerate(idle)
        }
        launch = records.launch(intent=records.intent(num_nodes=len(idle)), heartbeats=beats)
        return records.history(launch, generations=(records.generation(1, ranks=range(len(idle))),))

    assert warnings(history(None, None)) == ()
    assert warnings(history(None, 90.0)) == ("node 1.1: idle for 90 s (GPUs at 0 %)",)
    found = history(7300.0, 1800.0)
    assert warnings(found) == ("nodes 1.0 and 1.1: idle for 30 min (GPUs at 0 %)",)
    assert summarise(found, records.at(99)).idle == warnings(found)[0]
    assert warnings(history(*[9000.0] * 5)) == ("5 nodes: idle for 2.5 h (GPUs at 0 %)",)


def test_a_training_whose_saves_do_not_come_is_warned_of(records):
    """A full disk cost each save, and only the log told of it."""
    hour = 3600.0

    def warned(at, *, interval=None, commits=(), step=700, state="running", **beat):
        phases = (Phase(state="training", generation=1, at=records.at(100.0)),)
        changes = {"state": state, "generation": 1, "step": step, "phases": phases, **beat}
        launch = records.launch(heartbeats={0: records.heartbeat(at=at, **changes)})
        spec = {"name": "x", "run": {"entrypoint": "t.py"}, "checkpoint": {"interval": interval}}
        history = records.history(launch, generations=(records.generation(1),), commits=commits)
        submission = records.change(history.submission, spec=spec_to_json(spec_from_json(spec)))
        return warnings(records.change(history, submission=submission))

    assert warned(100.0 + 1.4 * hour) == ()
    [told] = warned(100.0 + 1.6 * hour)
    assert told == (
        "no checkpoint was committed for 96 minutes, though the training goes on: all work after step 0 is on "
        "its machines only; the logs say why"
    )
    commits = (records.commit(1, 500, at=100.0 + hour),)
    assert warned(100.0 + 2.4 * hour, commits=commits) == ()
    assert (
        "for 2 hours, though the training goes on: all work after step 500"
        in warned(3.1 * hour, commits=commits)[0]
    )
    assert warned(1010.0, interval="1m")[0].startswith("no checkpoint was committed for 15 minutes")
    assert warned(990.0, interval="1m") == ()
    assert warned(1010.0, interval="1m", upload_seconds=300.0) == ()
    assert warned(2.9 * hour, interval="1h") == ()
    # Nothing is unsaved, it does not train, or a script saves by itself.
    assert warned(9 * hour, commits=(records.commit(1, 700),)) == ()
    assert warned(9 * hour, state="holding") == ()
    assert warned(9 * hour, has_session=False) == ()


def test_a_node_that_has_ended_idles_no_more(records):
    beats = {0: records.heartbeat(idle=Idle(seconds=1800.0, cause="GPUs at 0 %"))}
    launch = records.launch(heartbeats=beats, exits={0: records.exit("stopped")})
    assert warnings(records.history(launch, generations=(records.generation(1),))) == ()
