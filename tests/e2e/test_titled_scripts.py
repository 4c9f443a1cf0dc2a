"""Scripts that overwrite what the kernel shows of them."""

from __future__ import annotations

import re

import pytest
from support.jobs.acting_user import JOBS, User, wait_for

from cloudspot.local.machine_records import ReclaimRequest
from cloudspot.local.machines import MachineDirectory

pytestmark = pytest.mark.full


def test_it_is_told_of_its_notice_and_what_an_earlier_start_has_left_is_ended(user: User) -> None:
    """Its notice never arrived, and the engine kept running, and its GPU memory, beside the new one."""
    job = str(JOBS / "titled" / "job.toml")
    running = user.start("run", job, "--provider", "local", "--name", "titled", "--plain")
    wait_for("its second start", lambda: "starts at 0" in user.output(running), seconds=180)
    MachineDirectory(user.machines()[0]).request_reclaim(ReclaimRequest(notice_seconds=40.0))
    assert running.wait(400) == 0
    said = user.output(running)
    assert "the engine is gone" in said
    assert "the engine lives" not in said
    told_at = re.findall(r"told at (\d+)", said)
    assert len(told_at) == 1
    assert re.findall(r"starts at (\d+)", said) == ["0", *told_at]
    shown = user.show("titled")
    assert (shown["state"], len(shown["notices"])) == ("succeeded", 1)
