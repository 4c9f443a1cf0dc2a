"""Any number of controllers at once, or none for a while: never a second machine."""

from __future__ import annotations

import json
import shutil
import signal
import time

import pytest
from support.clouds.messagesink import dead_url, open_sink
from support.jobs.acting_user import User, kill, wait_for

from cloudspot.host.process_marks import marked_processes
from cloudspot.jobstore.layout import keys
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.processes import MARK
from cloudspot.story.outcomes import launch_end

SETS = ('run.env.TINY_EPOCHS="10"', 'run.env.TINY_STEP_SECONDS="0.03"')
RECLAIM = 'providers.local.reclaims=[{launch=1, after_steps=30, notice="6s"}]'


@pytest.mark.soak
def test_a_killed_command_line_is_no_loss(user: User) -> None:
    cli = user.start_tiny("alone", sets=SETS)
    wait_for("the first step", lambda: list(user.home.glob("machines/*/node/generations/*/progress-0")))
    kill(cli.pid)
    cli.wait()
    user.cloudspot("attach", "alone")
    assert user.show("alone")["state"] == "succeeded"
    assert len(user.machines()) == 1


@pytest.mark.full
def test_three_controllers_launch_no_machine_twice_and_tell_each_event_once(user: User) -> None:
    """The services that they tell are good, refuse, answer without end, and are not there."""
    user.environ["SINK_WORD"] = "hidden"
    with open_sink() as sink, dead_url() as dead:
        sink.last_title = "crowd: finished"
        urls = [
            f"{sink.url.replace('//', '//me:${SINK_WORD}@')}/200",
            f"{sink.url}/500",
            f"{sink.url}/drip",
            dead,
        ]
        said = _three_controllers(user, f"notify.urls={json.dumps(urls)}")
    told = [line for path, body in sink.got if path == "/200" for line in body["message"].splitlines()[:-1]]
    kinds = [kind for kind in ("will be taken", "it is up", "job succeeded") for line in told if kind in line]
    assert kinds == ["will be taken", "it is up", "job succeeded"]
    assert len(told) == 3
    marks = [meta.key for meta in user.store.list_objects(keys.notified_prefix("crowd"))]
    assert [key.rpartition("/")[2] for key in marks] == ["finished-turn-0", "reclaimed-1-0", "relaunched-2"]
    assert "notify: urls[1] (json://) answered 500; not delivered: crowd: " in said
    assert "hidden" not in said


def _three_controllers(user: User, notify: str) -> str:
    """Run the job with a reclaim, driven by three, and return what they said."""
    cli = user.start_tiny("crowd", sets=(*SETS, RECLAIM, notify))
    wait_for("the submission", (user.home / "store" / "jobs" / "crowd" / "spec").exists)
    second = user.start("attach", "crowd")
    third = user.start("reconcile", "--watch", "--job", "crowd")
    for process in (cli, second, third):
        wait_for("the end of a controller", lambda process=process: process.poll() is not None, seconds=150)
        assert process.returncode == 0, user.output(process)[-6000:]
    shown = user.show("crowd")
    assert shown["state"] == "succeeded"
    assert [one["name"] for one in shown["nodes"]] == ["1.0", "2.0"]
    assert len(user.machines()) == 2
    return "".join(user.output(process) for process in (cli, second, third))


@pytest.mark.full
def test_interrupting_the_command_line_detaches(user: User) -> None:
    cli = user.start_tiny("left", sets=SETS)
    wait_for("the first step", lambda: list(user.home.glob("machines/*/node/generations/*/progress-0")))
    cli.send_signal(signal.SIGINT)
    cli.wait(30)
    assert "cloudspot attach left" in user.output(cli)
    user.cloudspot("attach", "left")
    assert user.show("left")["state"] == "succeeded"


@pytest.mark.full
def test_stop_checkpoints_and_ends(user: User) -> None:
    cli = user.start_tiny("halt", sets=('run.env.TINY_EPOCHS="500"', *SETS[1:]))
    wait_for("the first step", lambda: list(user.home.glob("machines/*/node/generations/*/progress-0")))
    user.cloudspot("stop", "halt")
    wait_for("the end of the run", lambda: cli.poll() is not None)
    shown = user.show("halt", "--verify")
    assert shown["state"] == "stopped"
    assert shown["steps_lost"] == 0
    assert shown["last_commit"]["verified"] is True
    assert cli.returncode not in {0, 1}, user.output(cli)[-3000:]


@pytest.mark.soak
def test_a_preempted_machine_is_replaced(user: User) -> None:
    cli = user.start_tiny("taken", sets=SETS)
    wait_for("the first step", lambda: list(user.home.glob("machines/*/node/generations/*/progress-0")))
    user.cloudspot("preempt", "taken", "--notice", "6s")
    wait_for("the end of the run", lambda: cli.poll() is not None)
    assert cli.returncode == 0, user.output(cli)[-3000:]
    shown = user.show("taken")
    assert (len(shown["nodes"]), len(shown["notices"]), shown["steps_lost"]) == (2, 1, 0)


def vanish(user: User) -> None:
    """Kill the newest machine's processes and take it off the provider's books, as a host that burnt down."""
    machine = MachineDirectory(user.machines()[-1])
    supervisor = machine.supervisor()
    assert supervisor is not None
    for pid in (supervisor.pid, *marked_processes(MARK, machine.mark)):
        kill(pid)
    wait_for("the end of its processes", lambda: not marked_processes(MARK, machine.mark))
    # Its memory and its TMPDIR lie elsewhere, and nobody who only knows this home finds them any more.
    machine.erase_disk()
    shutil.rmtree(machine.path)


@pytest.mark.full
def test_a_machine_that_vanished_is_replaced_by_passes_from_cron_with_nobody_attached(user: User) -> None:
    user.start_tiny("cron", sets=(*SETS, "limits.max_restarts=5"))
    store = user.home / "store"
    # A checkpoint, so that something is left to resume from.
    wait_for("a checkpoint", lambda: list((store / keys.manifests_prefix("cron")).glob("*")))
    user.close()  # Whoever was attached: from here on only passes, each a process of its own.
    vanish(user)
    seen = 0
    for _ in range(60):
        user.cloudspot("reconcile")
        seen += (store / keys.suspicions("cron")).exists()
        # Until its machines are gone, a pass leaves since when the job has ended.
        if user.history("cron").finished is not None and not (store / keys.suspicions("cron")).exists():
            break
        time.sleep(1.0)
    history = user.history("cron")
    assert history.finished is not None
    assert history.finished.outcome == "succeeded"
    ends = [launch_end(one) for one in history.launches]
    assert [one.outcome for one in ends] == ["lost", "succeeded"]
    assert ends[0].detail.endswith("vanished")
    assert history.generations[1].restore_from is not None
    assert seen >= 2
    assert not (store / keys.suspicions("cron")).exists()
