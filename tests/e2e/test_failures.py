"""Scripts that fail, hang or cannot start: the job says what was wrong, and stops paying for it."""

from __future__ import annotations

import re

import pytest
from support.jobs.acting_user import User, wait_for

pytestmark = pytest.mark.full


def test_an_error_that_comes_at_once_and_again_ends_the_job_with_its_traceback(user: User) -> None:
    done = user.run_tiny("wrong", sets=['run.env.TINY_FAIL_AT="3"'], status=1)
    shown = user.show("wrong")
    assert shown["state"] == "failed"
    assert shown["exit_code"] == 1
    assert [one["name"] for one in shown["nodes"]] == ["1.0"]
    assert "ValueError: wrong on purpose" in done.stdout + done.stderr
    assert len(user.history("wrong").generations) == 2


def test_a_setup_that_fails_says_so(user: User) -> None:
    done = user.run_tiny(
        "setup", sets=["run.setup=\"echo 'no such package' >&2; exit 3\"", "limits.max_restarts=0"], status=1
    )
    assert user.show("setup")["state"] == "failed"
    assert "setup failed with exit status 3: no such package" in done.stdout + done.stderr


def test_a_python_without_torch_is_named(user: User) -> None:
    done = user.run_tiny("torchless", sets=['run.python="/usr/bin/python3"'], status=1)
    assert "/usr/bin/python3 has no torch" in done.stdout + done.stderr


def test_a_trainer_that_makes_no_step_is_dumped_and_restarted(user: User) -> None:
    user.run_tiny(
        "stuck",
        sets=['limits.stuck_after="8s"', "run.env.TINY_HANG_AT='90'", "limits.max_restarts=2"],
    )
    shown = user.show("stuck")
    assert shown["state"] == "succeeded"
    assert [g.why for g in user.history("stuck").generations] == ["first", "trainer-stuck"]
    log = user.cloudspot("logs", "stuck").stdout
    assert "no step for" in log
    assert "hang_on_purpose" in log


def test_a_job_that_idles_is_saved_and_stopped_with_nothing_attached(user: User) -> None:
    """The nodes find it out and ask for the stop; the script wakes up in time to save where it stood."""
    idles = ['limits.idle_after="5s"', "run.env.TINY_HANG_AT='30'", "run.env.TINY_HANG_SECONDS='15'"]
    user.run_tiny("idler", "--detach", sets=[*idles, 'limits.on_idle="stop"', 'checkpoint.interval="1h"'])
    wait_for("the end of the job", lambda: user.show("idler")["state"] == "stopped")
    shown = user.show("idler", "--verify")
    assert shown["stop_requested"] == "idle_after"
    assert re.fullmatch(r"idle for \d+ s \(CPUs at \d % of a core\)", shown["stop_detail"])
    assert shown["detail"] == f"limits.idle_after was reached: {shown['stop_detail']}"
    assert shown["last_commit"]["verified"] is True
    assert 30 <= shown["last_commit"]["step"] < shown["steps_total"]
    assert shown["steps_lost"] == 0


def test_a_job_that_idles_is_warned_about_until_it_goes_on(user: User) -> None:
    idles = ['limits.idle_after="5s"', "run.env.TINY_HANG_AT='30'", "run.env.TINY_HANG_SECONDS='20'"]
    driver = user.start_tiny("napper", sets=idles)
    wait_for("the job", lambda: "training starts" in user.output(driver))
    [warning] = wait_for("the warning", lambda: user.show("napper")["warnings"])
    assert re.fullmatch(r"node 1\.0: idle for \d+ s \(CPUs at \d % of a core\)", warning)
    assert driver.wait(120) == 0
    assert len(re.findall(r"node 1\.0: idle for", user.output(driver))) == 1
    shown = user.show("napper")
    assert (shown["state"], shown["stop_requested"], shown["warnings"]) == ("succeeded", None, [])
    assert len(shown["generations"]) == 1


def test_a_secret_reaches_the_training_and_nothing_else(user: User) -> None:
    user.environ["TINY_SECRET"] = "7f3c-very-secret"
    user.run_tiny(
        "hush",
        sets=['run.secrets=["TINY_SECRET"]', "run.setup='test ${#TINY_SECRET} = 16'"],
    )
    assert user.show("hush")["state"] == "succeeded"
    everything = [path for path in user.home.rglob("*") if path.is_file()]
    assert [path for path in everything if b"7f3c-very-secret" in path.read_bytes()] == []
    assert not (user.home / "store" / "jobs" / "hush" / "secrets").exists()


def test_the_limit_on_cost_stops_the_job_with_a_checkpoint_before_it_is_passed(user: User) -> None:
    """What a start and a stop take is known from the first run, at one unit of money a second."""
    prices = ["providers.local.spot_price=3600.0", "providers.local.on_demand_price=7200.0"]
    user.run_tiny("dear", sets=['run.env.TINY_EPOCHS="2000"', *prices, 'limits.max_runtime="20s"'], status=10)
    limit = user.show("dear")["cost"]["spent"] + 50.0
    limits = ("--set", "limits.max_runtime=1h", "--set", f"limits.max_cost={limit}", "--anyway")
    done = user.cloudspot("resume", "dear", *limits, status=10)
    shown = user.show("dear", "--verify")
    assert shown["last_commit"]["verified"] is True
    assert shown["stop_requested"] == "max_cost"
    assert "spent, and the stop, which takes up to" in shown["stop_detail"]
    assert shown["detail"] == f"limits.max_cost was reached: {shown['stop_detail']}"
    assert shown["stop_detail"] in done.stdout
    assert limit - 50.0 < shown["cost"]["spent"] < limit


def test_a_limit_on_cost_that_has_no_room_for_one_machine_is_refused(user: User) -> None:
    prices = ["providers.local.spot_price=3600.0", "providers.local.on_demand_price=7200.0"]
    done = user.run_tiny("poor", sets=[*prices, "limits.max_cost=20.0"], status=2)
    assert "limits.max_cost of 20.00 USD has no room for 1 x local (spot)" in done.stderr
    assert "this version has submitted nothing to it yet" in user.cloudspot("ps", status=7).stderr
