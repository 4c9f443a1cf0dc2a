"""A model of which most is frozen: that is sent once, and no kill, zombie or deletion takes it away."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from e2e.test_random_faults import JOB, begin, check, go_through, of, settings, wait_for_end
from support.jobs.acting_user import User

from cloudspot.jobstore.checkpoints import retention
from cloudspot.jobstore.checkpoints.chunks import stored_chunks
from cloudspot.jobstore.checkpoints.manifests import read_manifest
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys

MIB = 4
FROZEN = f'run.env.TINY_FROZEN_MIB="{MIB}"'
NUM_COMMITS = 200


@pytest.mark.full
def test_what_is_frozen_is_sent_once_for_all_machines(user: User, undisturbed: Callable[..., Any]) -> None:
    sets = (FROZEN, 'run.env.TINY_STEP_SECONDS="0.03"')
    calm = undisturbed((FROZEN, 'run.env.TINY_STEP_SECONDS="0.0"'))
    reclaim = 'providers.local.reclaims=[{launch=1, rank=0, after_steps=60, notice="5s"}]'
    user.run_tiny(JOB, sets=(*sets, 'checkpoint.interval="500ms"', reclaim))
    shown = user.show(JOB, "--verify")
    assert shown["final"]["weights_sha256"] == calm["final"]["weights_sha256"]
    first, *others = user.history(JOB).commits
    assert len({one.generation for one in others}) == 2
    assert (first.shared, {one.shared for one in others}) == (0, {MIB << 20})
    assert shown["last_commit"]["shared_bytes"] == MIB << 20
    listed = user.cloudspot("checkpoints", "ls", JOB).stdout
    assert f"({MIB}.0 MiB shared)" in listed


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3000, 3003))
def test_among_kills_zombies_and_readers_each_commit_verifies_and_little_is_left(
    user: User, seed: int, undisturbed: Callable[..., Any]
) -> None:
    rng = random.Random(seed)
    exact = (FROZEN, 'run.env.TINY_EPOCHS="700"', 'checkpoint.interval="300ms"', "checkpoint.keep=2")
    sets = (*settings(2, step_seconds=0.03)[:1], 'run.env.TINY_STEP_SECONDS="0.03"', *exact)
    run = begin(user, rng, 2, (*sets, "limits.max_restarts=200"), num_outages=0)
    is_over, found = threading.Event(), []

    def read() -> None:
        while not is_over.wait(1.0):
            found.append(user.cloudspot("checkpoints", "verify", JOB, "--json", *of(user), status=None))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        while not run.is_over() and len(run.history().commits) < NUM_COMMITS:
            go_through(run, [rng.choice(("kill", "freeze", "freeze"))], longest_pause=8.0)
        wait_for_end(run)
    finally:
        is_over.set()
        reader.join()
    calm = partial(undisturbed, "frozen-2", ("nodes=2", *exact[:2], 'run.env.TINY_STEP_SECONDS="0.0"'))
    check(run, lambda: calm()["final"]["weights_sha256"])
    assert len(found) > 10
    assert {one.returncode for one in found} == {0}, [
        one.stdout + one.stderr for one in found if one.returncode
    ]
    history = user.history(JOB)
    assert len(history.commits) >= NUM_COMMITS
    assert sum(one.shared > 0 for one in history.commits) > NUM_COMMITS / 2
    journal = Journal(user.store, JOB)
    # As after the ten minutes for which what was never committed stays.
    retention.collect(user.store, journal, JOB, 2, orphan_grace_seconds=0.0)
    named = {
        one.key: one.chunk.size
        for checkpoint in retention.standing_checkpoints(user.store, JOB, journal.read())
        for one in stored_chunks(JOB, read_manifest(user.store, JOB, checkpoint))
    }
    stored = [meta.size for meta in user.store.list_objects(keys.checkpoints_prefix(JOB))]
    print(json.dumps({"stored": sum(stored), "named": sum(named.values()), "readers": len(found)}))
    assert sum(stored) <= 1.2 * sum(named.values())
