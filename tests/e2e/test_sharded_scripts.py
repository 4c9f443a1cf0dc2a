"""Scripts whose nodes write a shard of the checkpoint each, on machines without a common disk."""

from __future__ import annotations

import re

import pytest
from support.jobs.acting_user import JOBS, User, wait_for

from cloudspot.local.machine_records import ReclaimRequest
from cloudspot.local.machines import MachineDirectory

pytestmark = pytest.mark.full

JOB = str(JOBS / "sharded" / "job.toml")


def run(user: User, *sets: str) -> str:
    """Run the job, of which the second machine is taken without notice after two commits."""
    words = ["run", JOB, "--provider", "local", "--name", "shards", "--plain"]
    for one in sets:
        words += ["--set", one]
    running = user.start(*words)
    wait_for("the job", lambda: list((user.home / "store").glob("jobs/shards/journal/*")), seconds=120)
    wait_for("two commits", lambda: len(user.history("shards").commits) >= 2, seconds=240)
    victim = next(path for path in user.machines() if path.name.endswith("-1"))
    MachineDirectory(victim).request_reclaim(ReclaimRequest(notice_seconds=0.0))
    running.wait(400)
    return user.output(running)


def test_a_lost_node_resumes_from_its_own_shard(user: User) -> None:
    said = run(user, 'checkpoint.nodes="all"')
    shown = user.show("shards", "--verify")
    assert (shown["state"], len(shown["nodes"])) == ("succeeded", 3)
    assert shown["last_commit"]["verified"] is True
    resumed = dict(re.findall(r"node (\d): (checkpoint-\d+ has .*)", said))
    name = resumed["0"].split()[0]
    assert resumed == {rank: f"{name} has ['done', 'engine', 'shard-{rank}']" for rank in ("0", "1")}
    assert int(name.partition("-")[2]) >= 12
    assert user.history("shards").generations[-1].restore_from is not None


def test_without_the_declaration_two_attempts_end_the_job_with_the_reason(user: User) -> None:
    """It bought 14 machines, and reported commits all the while."""
    said = run(user)
    shown = user.show("shards")
    assert shown["state"] == "failed"
    assert len(shown["nodes"]) == 3, "the one that was lost, and nothing after its replacement"
    assert "exit status 7 twice" in shown["detail"]
    assert "shard-1 is missing: cannot resume" in said
    assert 'set checkpoint.nodes = "all"' in said
