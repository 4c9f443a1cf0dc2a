"""Any number of controllers at once, or none for a while: never a second machine."""

from __future__ import annotations

import signal

from acting_user import User, kill, wait_for

SETS = ('run.env.TINY_EPOCHS="10"', 'run.env.TINY_STEP_SECONDS="0.03"')
RECLAIM = 'providers.local.reclaims=[{launch=1, after_steps=30, notice="6s"}]'


def test_a_killed_command_line_is_no_loss(user: User) -> None:
    cli = user.start_tiny("alone", sets=SETS)
    wait_for("the first step", lambda: list(user.home.glob("machines/*/node/generations/*/progress-0")))
    kill(cli.pid)
    cli.wait()
    user.cloudspot("attach", "alone")
    assert user.show("alone")["state"] == "succeeded"
    assert len(user.machines()) == 1


def test_three_controllers_launch_no_machine_twice(user: User) -> None:
    cli = user.start_tiny("crowd", sets=(*SETS, RECLAIM))
    wait_for("the submission", (user.home / "store" / "jobs" / "crowd" / "spec").exists)
    second = user.start("attach", "crowd")
    third = user.start("reconcile", "--watch", "--job", "crowd")
    for process in (cli, second, third):
        wait_for("the end of a controller", lambda process=process: process.poll() is not None, seconds=150)
        assert process.returncode == 0, user.output(process)[-6000:]
    shown = user.show("crowd")
    assert shown["state"] == "succeeded"
    assert len(shown["attempts"]) == 2
    assert len(user.machines()) == 2


def test_interrupting_the_command_line_detaches(user: User) -> None:
    cli = user.start_tiny("left", sets=SETS)
    wait_for("the first step", lambda: list(user.home.glob("machines/*/node/generations/*/progress-0")))
    cli.send_signal(signal.SIGINT)
    cli.wait(30)
    assert "cloudspot attach left" in user.output(cli)
    user.cloudspot("attach", "left")
    assert user.show("left")["state"] == "succeeded"


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


def test_a_preempted_machine_is_replaced(user: User) -> None:
    cli = user.start_tiny("taken", sets=SETS)
    wait_for("the first step", lambda: list(user.home.glob("machines/*/node/generations/*/progress-0")))
    user.cloudspot("preempt", "taken", "--notice", "6s")
    wait_for("the end of the run", lambda: cli.poll() is not None)
    assert cli.returncode == 0, user.output(cli)[-3000:]
    shown = user.show("taken")
    assert (len(shown["attempts"]), len(shown["notices"]), shown["steps_lost"]) == (2, 1, 0)
