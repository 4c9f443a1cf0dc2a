"""The main job, as README tells a newcomer to run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.jobs.acting_user import EXAMPLES, User, copy_example, wait_for
from support.jobs.documented_layout import check_layout

# Of the documented keys those that such a job leaves no object at.
ABSENT = {
    "jobs/<id>/commands/<launch>-<rank>-<nonce>",
    "jobs/<id>/nodes/<launch>/<rank>/call",
    "jobs/<id>/remote/<launch>/<rank>/<nonce>/answer",
    "jobs/<id>/remote/<launch>/<rank>/<nonce>/in/<number>",
    "jobs/<id>/remote/<launch>/<rank>/<nonce>/out/<number>",
    "jobs/<id>/shared/<word>.html",
    "agents/<sha256>",
    "code/<sha256>.removals/<id>",
    "jobs/<id>/agents/<sha256>",
    "jobs/<id>/code",
    "jobs/<id>/image",
    "jobs/<id>/manifests/<generation>-<step>.begun",
    "jobs/<id>/manifests/<generation>-<step>.damaged",
    "jobs/<id>/outputs/<name>",
    "jobs/<id>/rescues/<generation>-<number>",
    "jobs/<id>/inputs/<name>.<resumption>",
    "jobs/<id>/secrets.<resumption>",
    "jobs/<id>/nodes/stop.<resumption>",
    "jobs/<id>/nodes/tasks/<task>/asked",
    "jobs/<id>/nodes/tasks/<task>/done",
    "jobs/<id>/submissions/<sha256>",
    "jobs/<id>/told/<event>",
    "jobs/<id>/suspicions",
    "live/<id>.<nonce>",
    "drivers/<name>",
    "probe/<nonce>",
    "jobs/<id>/checkpoints/<generation>-<step>-<round>/bases/<rank>/<base>",  # nothing of 1 MiB is shared
}


@pytest.mark.full
def test_digits_is_reclaimed_resumed_and_finished(user: User, tmp_path: Path) -> None:
    done = user.cloudspot(
        "run", "--provider", "local", str(EXAMPLES / "digits" / "job.toml"), "--name", "digits", timeout=240
    )
    shown = user.show("digits", "--verify")
    assert shown["state"] == "succeeded"
    assert shown["exit_code"] == 0
    # The one that was reclaimed is replaced; the other stays.
    trained = [one["nodes"] for one in shown["generations"] if not one["is_holding"]]
    assert trained == [["1.0", "1.1"], ["1.0", "2.0"]]
    assert len(shown["nodes"]) == len(user.machines()) == 3
    assert len(shown["notices"]) == 1
    assert shown["steps_lost"] == 0
    assert shown["last_commit"]["verified"] is True
    assert shown["last_commit"]["step"] == shown["steps_total"]
    assert len(shown["final"]["weights_sha256"]) == 64
    assert shown["final"]["metrics"]["accuracy"] > 0.8
    assert 0 < shown["cost"]["spent"] < shown["cost"]["on_demand_equivalent"]
    # The machine had a notice of ten seconds, and all of them told what they did.
    assert 0 < shown["notices"][0]["commit_seconds"] < 10
    time = shown["time"]
    assert (time["unknown"], time["lost"]) == (0, 0)
    assert sum(time.values()) == pytest.approx(2 * time["total"], abs=0.02)
    assert 0 < shown["goodput"] == pytest.approx(time["training"] / time["total"], abs=1e-3)
    assert "not forked" not in user.cloudspot("logs", "digits", "--source", "agent").stdout
    store = user.home / "store"
    objects = [str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()]
    check_layout([key for key in objects if not key.startswith(".")], absent=ABSENT)
    picture = tmp_path / "digits.svg"
    user.cloudspot("show", "digits", "--plot", str(picture))
    assert {"loss", "accuracy", "node 2.0", "lost"} & set(
        re.findall(r">([^<>]+)</text>", picture.read_text())
    ) == {
        "loss",
        "accuracy",
        "node 2.0",
    }
    assert shown["final"]["weights_sha256"][:12] in done.stdout
    assert "succeeded" in done.stdout


@pytest.mark.full
def test_a_script_without_a_session_goes_on_from_its_own_newest_checkpoint(
    user: User, tmp_path: Path
) -> None:
    job = copy_example("unmodified", tmp_path / "unmodified")
    # Reclaimed once it has a checkpoint, whenever that is on this machine.
    sets = ("--set", "providers.local.reclaims=[]", "--set", 'run.env.TOTAL_STEPS="400"')
    sets += ("--set", 'run.env.OMP_NUM_THREADS="1"')  # the net is small, and the tests beside it want a core
    cli = user.start("run", str(job), "--name", "plain", *sets)
    manifests = user.home / "store" / "jobs" / "plain" / "manifests"
    wait_for("a checkpoint of the script's own", lambda: list(manifests.glob("*")), seconds=150)
    user.cloudspot("preempt", "plain", "--notice", "6s")
    wait_for("the end of the run", lambda: cli.poll() is not None, seconds=200)
    assert cli.returncode == 0, user.output(cli)[-6000:]
    shown = user.show("plain", "--verify")
    assert shown["state"] == "succeeded"
    assert [one["name"] for one in shown["nodes"]] == ["1.0", "2.0"]
    history = user.history("plain")
    first, second = history.generations
    assert first.restore_from is None
    assert second.restore_from is not None
    assert second.restore_from.step > 0
    assert history.find_commit(second.restore_from) is not None
    log = user.cloudspot("logs", "plain").stdout
    assert str(second.restore_from.step) in log


@pytest.mark.full
def test_detached_job_is_finished_by_reconcile_alone(user: User) -> None:
    args = ["a$$b", "${local_rank}", "$HOME", "--log", "--n=3", "two words", ""]
    user.run_tiny("away", "--detach", sets=['run.env.TINY_EPOCHS="2"', f"run.args={args}"])
    user.cloudspot("reconcile", "--watch", "--job", "away")
    assert user.show("away")["state"] == "succeeded"
    assert f"arguments {args}" in user.cloudspot("logs", "away").stdout
    wait_for("the machine's end", lambda: not (user.machines()[0] / "node").exists())
