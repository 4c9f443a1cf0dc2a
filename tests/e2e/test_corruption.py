"""A checkpoint that does not verify is passed over; nothing is ever deleted or executed for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.jobs.acting_user import User, has_ended, wait_for
from support.records.stored_checkpoints import chunks_of, flip_bit, newest_manifests

pytestmark = pytest.mark.full


SETS = ('run.env.TINY_EPOCHS="18"', 'run.env.TINY_STEP_SECONDS="0.03"', 'checkpoint.interval="700ms"')


def stop_with_commits(user: User, name: str, count: int) -> Path:
    """Run a job until it has some commits, then take its machine; returns the job's directory."""
    cli = user.start_tiny(name, sets=(*SETS, "checkpoint.keep=10"))
    job = user.home / "store" / "jobs" / name
    wait_for(f"{count} checkpoints", lambda: len(newest_manifests(job)) >= count)
    cli.kill()
    cli.wait()
    user.cloudspot("preempt", name, "--no-notice")
    # Until then it may still commit.
    wait_for("the machine's end", lambda: has_ended(user.machines()[-1]))
    return job


def checkpoint_files(job: Path) -> dict[Path, bytes]:
    """Return all files of the job's checkpoints."""
    found = (*job.glob("manifests/*"), *job.glob("checkpoints/**/*"))
    return {path: path.read_bytes() for path in found if path.is_file()}


def test_a_flipped_bit_in_the_newest_checkpoint_costs_only_that_one(user: User) -> None:
    job = stop_with_commits(user, "bit", 2)
    newest, before = newest_manifests(job)[:2]
    flip_bit(chunks_of(newest)[0])
    user.cloudspot("attach", "bit")
    second = user.history("bit").generations[1]
    assert second.restore_from.step == int(before.name.split("-")[1])
    assert [skipped.checkpoint.step for skipped in second.skipped] == [int(newest.name.split("-")[1])]
    assert "does not verify" in user.cloudspot("logs", "bit").stdout
    assert user.show("bit")["state"] == "succeeded"


@pytest.mark.soak
def test_a_truncated_chunk_is_found_too(user: User) -> None:
    job = stop_with_commits(user, "short", 2)
    newest, before = newest_manifests(job)[:2]
    chunk = chunks_of(newest)[0]
    chunk.write_bytes(chunk.read_bytes()[:-1])
    user.cloudspot("attach", "short")
    assert user.history("short").generations[1].restore_from.step == int(before.name.split("-")[1])


def test_when_all_are_corrupt_the_job_says_so_and_deletes_nothing(user: User) -> None:
    job = stop_with_commits(user, "all", 2)
    for manifest in newest_manifests(job):
        flip_bit(chunks_of(manifest)[0])
    before = checkpoint_files(job)
    done = user.cloudspot("attach", "all", status=1)
    shown = user.show("all")
    assert shown["state"] == "failed"
    assert "verifies" in json.dumps(shown)
    assert "verifies" in done.stdout + done.stderr
    assert checkpoint_files(job) == before
