"""Which checkpoints stay."""

import os
import random
import threading
import time
from datetime import datetime, timezone

import pytest
from support.records import made_journal
from support.records.uploads import upload_session
from support.stores.faultstore import FaultPlan, FaultyStore, Hook
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CloudspotError
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.checkpoints import fetching, manifests, retention
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import lineage, newest_generation
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import CheckpointId, Heartbeat, SaveId
from cloudspot.jobstore.nodes import launches
from cloudspot.jobstore.nodes.delivering import BEATING_SECONDS
from cloudspot.model import NodeIdentity

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
C = CheckpointId


class Killed(Exception):
    pass


def standing(store):
    """The checkpoints that have a manifest, ascending."""
    return tuple(sorted(retention.standing_checkpoints(store, "x", Journal(store, "x").read())))


def collect(store, keep, **options):
    """Collect as an agent does that has just begun."""
    return retention.collect(store, Journal(store, "x"), "x", keep, **options)


def stored(store):
    """The checkpoints of which anything is there."""
    prefix = keys.checkpoints_prefix("x")
    names = {meta.key.removeprefix(prefix).split("/")[0] for meta in store.list_objects(prefix)}
    return {C(*map(int, name.split("-")[:2])) for name in names}


@pytest.mark.parametrize(("cause", "kept"), [("failed", {10, 30, 40}), ("lost", {30, 40})])
def test_what_a_failure_has_saved_does_not_push_out_the_newest_from_before(store, checkpoints, cause, kept):
    checkpoints.generation(store, 1)
    rescue = {"cause": cause, "lost": [], "is_exact": True}
    for step in (10, 20, 30, 40):
        changes = {} if step == 10 else {"rescue": rescue}
        for data, seal in zip([b"a"], checkpoints.seals(C(1, step), [b"a"], **changes), strict=True):
            upload_session(store, "x", seal, data)
        made_journal.commit(store, "x", C(1, step))
    collect(store, 2)
    assert {one.step for one in standing(store)} == kept


def test_a_commit_costs_few_listings(store, checkpoints, tmp_path):
    """Each node listed all that was stored, some 18 times for each commit, which cost more than what it did."""
    checkpoints.generation(store, 1)
    for step in (10, 20, 30):
        checkpoints.session(store, C(1, step), [b"a" * 4000, b"b" * 4000])
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    assert collect(counted, 2, with_orphans=False) == (C(1, 10),)
    # The manifests, the heartbeats, what may share chunks, what goes; a new reader lists the journal and its
    # copies, too.
    assert counted.calls["list_page"] == 4 + 2
    assert stored(store) == {C(1, 20), C(1, 30)}


def test_the_newest_of_the_lineage_stay_and_older_ones_go_whole(store, checkpoints):
    checkpoints.generation(store, 1)
    for step in (10, 20, 30, 40):
        checkpoints.session(store, C(1, step), [b"a" * 4000])
    assert collect(store, 2) == (C(1, 10), C(1, 20))
    assert standing(store) == (C(1, 30), C(1, 40))
    assert stored(store) == {C(1, 30), C(1, 40)}
    assert collect(store, 2) == ()
    for checkpoint in standing(store):
        fetching.verify(store, "x", manifests.read_manifest(store, "x", checkpoint))


def test_at_least_one_stays_and_keep_counts_from_one(store, checkpoints):
    checkpoints.generation(store, 1)
    checkpoints.session(store, C(1, 10), [b"a"])
    assert collect(store, 1) == ()
    assert standing(store) == (C(1, 10),)
    with pytest.raises(ValueError, match="keep"):
        collect(store, 0)


def test_what_the_newest_generation_was_restored_from_stays(store, checkpoints):
    checkpoints.generation(store, 1)
    for step in (10, 20, 30):
        checkpoints.session(store, C(1, step), [b"a"])
    checkpoints.generation(store, 2, C(1, 20))
    for step in (25, 35, 45):
        checkpoints.session(store, C(2, step), [b"a"])
    collect(store, 2)
    assert standing(store) == (C(1, 20), C(2, 35), C(2, 45))
    checkpoints.generation(store, 3, C(2, 45))
    collect(store, 2)
    assert standing(store) == (C(2, 35), C(2, 45))


def test_what_a_superseded_generation_uploaded_late_goes_once_the_lineage_is_newer(store, checkpoints):
    checkpoints.generation(store, 1)
    checkpoints.session(store, C(1, 20), [b"a"])
    checkpoints.session(store, C(1, 30), [b"late"], commit=False)
    manifests.write_manifest(store, "x", SaveId(1, 30, 0))
    checkpoints.generation(store, 2, C(1, 20))
    assert collect(store, 3) == ()
    checkpoints.session(store, C(2, 21), [b"a"])
    assert collect(store, 3) == (C(1, 30),)
    assert standing(store) == (C(1, 20), C(2, 21))


def test_without_a_lineage_nothing_is_deleted(store, checkpoints):
    checkpoints.session(store, C(1, 10), [b"a"], commit=False)
    assert collect(store, 1) == ()
    checkpoints.generation(store, 1)
    checkpoints.generation(store, 2)
    assert collect(store, 1) == ()
    assert stored(store) == {C(1, 10)}


def test_a_fork_that_has_not_begun_keeps_what_it_came_with(store, checkpoints):
    """Its first checkpoint is committed before any generation."""
    for step in (10, 20):
        checkpoints.session(store, C(0, step), [b"a"], commit=False)
        manifests.try_commit(store, Journal(store, "x"), "x", SaveId(0, step, 0))
    assert collect(store, 1) == ()
    assert standing(store) == (C(0, 10), C(0, 20))


def test_notes_of_parts_that_nodes_have_begun_go_with_the_next_commit(store, checkpoints):
    checkpoints.generation(store, 1)
    for step in (10, 20):
        retention.note_begun(store, "x", C(1, step))
        checkpoints.session(store, C(1, step), [b"a"])
    retention.note_begun(store, "x", C(1, 30))
    assert retention.begun_steps(store, "x", 1) == (10, 20, 30)
    assert retention.begun_steps(store, "x", 2) == ()
    collect(store, 2)
    assert retention.begun_steps(store, "x", 1) == (20, 30)


def test_a_note_of_damage_whose_checkpoint_is_gone_goes_too(store, checkpoints):
    """Whoever found it may have noted it only after the deletion."""
    checkpoints.generation(store, 1)
    for step in (10, 20):
        checkpoints.session(store, C(1, step), [b"a"])
    assert collect(store, 1) == (C(1, 10),)
    retention.note_damage(store, "x", C(1, 10), "a chunk")
    retention.note_damage(store, "x", C(1, 20), "a chunk")
    collect(store, 1)
    assert retention.read_damage(store, "x", C(1, 10)) == ""
    assert retention.read_damage(store, "x", C(1, 20)) == "a chunk"


def age(store, checkpoint, seconds):
    moment = time.time() - seconds
    prefix = keys.save_prefix("x", SaveId(checkpoint.generation, checkpoint.step, 0))
    for meta in store.list_objects(prefix):
        os.utime(store.root / meta.key, (moment, moment))


def test_orphans_go_only_when_older_than_the_newest_commit_in_steps_and_in_time(store, checkpoints):
    checkpoints.generation(store, 1)
    for step in (10, 20, 40):
        checkpoints.session(store, C(1, step), [b"a" * 4000], commit=False)
    checkpoints.session(store, C(1, 30), [b"a" * 4000])
    age(store, C(1, 10), 3600)
    age(store, C(1, 40), 3600)
    assert collect(store, 3) == (C(1, 10),)
    assert stored(store) == {C(1, 20), C(1, 30), C(1, 40)}
    assert collect(store, 3, orphan_grace_seconds=-3600.0) == (C(1, 20),)
    assert stored(store) == {C(1, 30), C(1, 40)}


def test_a_save_of_a_step_of_which_another_is_committed_goes_when_nobody_uploads_it_any_more(
    store, checkpoints
):
    """Both may be whole: a drain has a save of its own at a step that is being saved."""
    checkpoints.generation(store, 1)
    drain, interval = SaveId(1, 20, 5), SaveId(1, 20, 4)
    checkpoints.session(store, drain, [b"a" * 4000])
    assert checkpoints.session(store, interval, [b"b" * 4000]).round == 5
    prefix = keys.save_prefix("x", interval)
    assert collect(store, 1) == ()
    assert list(store.list_objects(prefix)) != []
    assert collect(store, 1, orphan_grace_seconds=-3600.0) == ()
    assert list(store.list_objects(prefix)) == []
    fetching.verify(store, "x", manifests.read_manifest(store, "x", C(1, 20)))
    checkpoints.session(store, interval, [b"b" * 4000])
    checkpoints.session(store, C(1, 30), [b"c"])
    assert collect(store, 1) == (C(1, 20),)
    assert stored(store) == {C(1, 30)}


def test_what_is_still_being_uploaded_is_no_orphan_though_its_first_chunks_are_old(store, checkpoints):
    checkpoints.generation(store, 1)
    checkpoints.session(store, C(1, 10), [b"a" * 4000, b"b"], commit=False)
    checkpoints.session(store, C(1, 20), [b"a" * 4000])
    age(store, C(1, 10), 3600)
    newest_chunk = store.root / keys.chunk("x", SaveId(1, 10, 0), 1, 0)
    os.utime(newest_chunk)
    assert collect(store, 3) == ()
    age(store, C(1, 10), 3600)
    assert collect(store, 3) == (C(1, 10),)


def test_a_commit_goes_before_its_parts_and_they_before_their_chunks(store, checkpoints):
    checkpoints.generation(store, 1)
    for step in (10, 20):
        checkpoints.session(store, C(1, step), [b"a" * 4000, b"b"])
    deleted = []

    class Watched(FaultyStore):
        def delete(self, key):
            deleted.append(key)
            super().delete(key)

    collect(Watched(store, FaultPlan(), store.root), 1)
    kinds = [key.removeprefix("jobs/x/").split("/") for key in deleted]
    order = ["manifests" if kind[0] == "manifests" else kind[2] for kind in kinds]
    assert order == ["manifests", "parts", "parts", "chunks", "chunks", "chunks", "chunks"]


def test_chunks_are_deleted_side_by_side(store, checkpoints, tmp_path):
    """One at a time, those of large checkpoints took longer to go than the next ones took to come."""
    checkpoints.generation(store, 1)
    for step in (10, 20):
        checkpoints.session(store, C(1, step), [b"a" * 400], chunk_bytes=100)
    together = threading.Barrier(4, timeout=30)

    class Meeting(FaultyStore):
        def delete(self, key):
            if "/parts/" not in key and key.startswith(keys.checkpoints_prefix("x")):
                together.wait()
            super().delete(key)

    assert collect(Meeting(store, FaultPlan(), tmp_path), 1) == (C(1, 10),)


@pytest.mark.full
def test_wherever_a_collection_is_cut_short_no_commit_lacks_a_chunk_and_the_next_ends_it(
    checkpoints, tmp_path
):
    for cut in range(1, 30):
        store = InMemoryStore()
        checkpoints.generation(store, 1)
        for step in (10, 20, 30):
            checkpoints.session(store, C(1, step), [b"a" * 3000, b"b"])

        class Cut(FaultyStore):
            def delete(self, key, cut=cut):
                if self.calls["delete"] == cut - 1:
                    raise Killed
                super().delete(key)

        try:
            collect(Cut(store, FaultPlan(), tmp_path), 1)
            is_cut = False
        except Killed:
            is_cut = True
        for checkpoint in standing(store):
            fetching.verify(store, "x", manifests.read_manifest(store, "x", checkpoint))
        collect(store, 1, orphan_grace_seconds=-3600.0)
        assert stored(store) == {C(1, 30)}
    assert not is_cut


@pytest.mark.full
def test_a_kept_checkpoint_costs_one_request_however_many_chunks_it_has(store, checkpoints, tmp_path):
    checkpoints.generation(store, 1)
    for step in (10, 20):
        checkpoints.session(store, C(1, step), [b"a" * 4000], chunk_bytes=10)
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    collect(counted, 3)
    # The manifests; one for each checkpoint and the end. The journal: its four records, their list and that of
    # its copies, what is not there of it, and once more after the manifests.
    assert counted.calls == {"list_page": 1 + 3 + 2, "get": 4 + 1 + 1}


@pytest.mark.parametrize("seed", range(25))
def test_random_jobs_keep_what_a_resume_wants(checkpoints, seed):
    generator = random.Random(seed)
    store, step = InMemoryStore(), 0
    for number in range(1, generator.randint(2, 5)):
        candidates = retention.standing_checkpoints(store, "x", Journal(store, "x").read())
        checkpoints.generation(store, number, generator.choice(candidates[:2]) if candidates else None)
        for _ in range(generator.randint(0, 4)):
            step += generator.randint(1, 9)
            checkpoints.session(store, C(number, step), [b"a"], commit=generator.random() < 0.8)
            if number > 1 and generator.random() < 0.3:
                checkpoints.session(store, C(number - 1, step), [b"late"], commit=False)
                manifests.write_manifest(store, "x", SaveId(number - 1, step, 0))
            keep = generator.randint(1, 3)
            journal = Journal(store, "x").read()
            wanted = retention.standing_checkpoints(store, "x", journal)[:keep]
            gone = collect(store, keep, orphan_grace_seconds=generator.choice((-60.0, 60.0)))
            left = standing(store)
            assert set(wanted) <= set(left)
            assert wanted == retention.standing_checkpoints(store, "x", journal)[:keep]
            assert not set(gone) & set(left)
            restored = newest_generation(journal).restore_from
            assert restored is None or restored in left
            for checkpoint in left:
                fetching.verify(store, "x", manifests.read_manifest(store, "x", checkpoint))


def test_a_store_that_fails_in_passing_does_not_stop_it(store, checkpoints, tmp_path):
    checkpoints.generation(store, 1)
    for step in (10, 20, 30):
        checkpoints.session(store, C(1, step), [b"a" * 4000])
    faulty = FaultyStore(store, FaultPlan(fail_every=3, hooks=(Hook(keys="*", when="before"),)), tmp_path)
    try:
        collect(with_retries(faulty, sleep=lambda seconds: None), 1)
    except CloudspotError as error:
        pytest.fail(str(error))
    assert stored(store) == {C(1, 30)}


# --- while somebody may resume --------------------------------------------------------------------


def beat(store, state, *, launch=1, rank=0, seconds_ago=0.0):
    """Let a node say what it does."""
    record = Heartbeat(
        counter=1, instance_id="i", address="a", port=1, state=state, generation=1, restored_step=0, step=0,
        steps_total=None, metrics={}, committed=None, stall_seconds=None, upload_seconds=None, at=AT,
    )  # fmt: skip
    key = keys.heartbeat("x", launch, rank)
    store.put(key, codec.encode(record))
    moment = time.time() - seconds_ago
    os.utime(store.root / key, (moment, moment))


def claim(store, launch):
    """Let a machine claim the first rank of a launch."""
    identity = NodeIdentity(instance_id=f"i-{launch}", rank=0, address="a")
    launches.claim_slot(store, "x", launch, 0, identity)


@pytest.fixture
def two_commits(store, checkpoints):
    checkpoints.generation(store, 1)
    for step in (50, 60):
        checkpoints.session(store, C(1, step), [b"a" * 4000])
    return store


@pytest.mark.parametrize("state", ["setup", "restoring", "ready"])
def test_while_a_node_may_resume_from_it_an_older_checkpoint_stays(two_commits, state):
    """It began to restore 1-50 while another node still uploaded 1-60."""
    beat(two_commits, "uploading", rank=0)
    beat(two_commits, state, rank=1)
    assert collect(two_commits, 1) == ()
    beat(two_commits, "running", rank=1)
    assert collect(two_commits, 1) == (C(1, 50),)


@pytest.mark.parametrize("state", ["running", "draining", "uploading", "ending"])
def test_a_node_that_has_resumed_keeps_no_checkpoint(two_commits, state):
    beat(two_commits, state)
    assert collect(two_commits, 1) == (C(1, 50),)


def test_a_node_that_fell_silent_while_it_restored_keeps_no_checkpoint_for_ever(two_commits):
    beat(two_commits, "restoring", seconds_ago=BEATING_SECONDS - 10)
    assert collect(two_commits, 1) == ()
    beat(two_commits, "restoring", seconds_ago=BEATING_SECONDS + 10)
    assert collect(two_commits, 1) == (C(1, 50),)


@pytest.mark.parametrize("state", ["setup", "restoring", "ready"])
def test_while_a_newcomer_may_resume_from_it_an_older_checkpoint_stays(two_commits, state):
    """A node of another launch, which restores ahead of its first generation."""
    claim(two_commits, 1)
    claim(two_commits, 2)
    beat(two_commits, "running")
    beat(two_commits, state, launch=2)
    assert collect(two_commits, 1) == ()
    beat(two_commits, "running", launch=2)
    assert collect(two_commits, 1) == (C(1, 50),)


def test_a_newcomer_that_is_dead_keeps_no_checkpoint_for_ever(two_commits):
    claim(two_commits, 1)
    claim(two_commits, 2)
    beat(two_commits, "running")
    beat(two_commits, "setup", launch=2, seconds_ago=BEATING_SECONDS - 10)
    assert collect(two_commits, 1) == ()
    beat(two_commits, "setup", launch=2, seconds_ago=BEATING_SECONDS + 10)
    assert collect(two_commits, 1) == (C(1, 50),)


def test_what_else_the_nodes_say_is_read_as_no_heartbeat(two_commits):
    beat(two_commits, "running")
    for key in (keys.notice("x", 1, 0), keys.exit_record("x", 1, 1), keys.stop("x", 0)):
        two_commits.put(key, b'{"state": "restoring"}')
    assert collect(two_commits, 1) == (C(1, 50),)


def test_a_heartbeat_that_is_gone_since_it_was_listed_keeps_no_checkpoint(two_commits, tmp_path):
    beat(two_commits, "ready")

    class Racing(FaultyStore):
        def get(self, key):
            if key.endswith("/heartbeat"):
                two_commits.delete(key)
            return super().get(key)

    assert collect(Racing(two_commits, FaultPlan(), tmp_path), 1) == (C(1, 50),)


def test_the_nodes_of_a_long_past_are_not_read(two_commits, checkpoints, tmp_path):
    """Their heartbeats stay for good, and each pass lists them all."""
    beat(two_commits, "running")
    costs = []
    for num_old in (0, 30):
        for launch in range(2, num_old + 2):
            beat(two_commits, "restoring", launch=launch, seconds_ago=BEATING_SECONDS + 10)
        counted = FaultyStore(two_commits, FaultPlan(), tmp_path)
        assert collect(counted, 1) != ()
        costs.append(counted.calls["get"])
        checkpoints.session(two_commits, C(1, 70), [b"a" * 4000])
    assert costs[1] == costs[0] + 1  # the commit that came in between


def test_who_beats_first_after_the_look_at_the_nodes_finds_the_newest_commit(two_commits, tmp_path):
    found = []

    class Racing(FaultyStore):
        def list_page(self, prefix, **options):
            page = super().list_page(prefix, **options)
            if prefix == keys.nodes_prefix("x"):
                claim(two_commits, 2)
                beat(two_commits, "setup", launch=2)
                found.extend(lineage(Journal(two_commits, "x").read())[:1])
            return page

    assert collect(Racing(two_commits, FaultPlan(), tmp_path), 1) == (C(1, 50),)
    assert found == [C(1, 60)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_comes_around_the_look_at_the_commits_is_never_judged_without_its_generation(
    two_commits, checkpoints, tmp_path, when
):
    def resume():
        # Checkpoint 1-60 did not verify.
        checkpoints.generation(two_commits, 2, C(1, 50))
        checkpoints.session(two_commits, C(2, 55), [b"a"])

    class Racing(FaultyStore):
        is_over = False

        def list_page(self, prefix, **options):
            is_now = prefix == keys.manifests_prefix("x") and not self.is_over
            self.is_over = self.is_over or is_now
            if is_now and when == "before":
                resume()
            page = super().list_page(prefix, **options)
            if is_now and when == "after":
                resume()
            return page

    collect(Racing(two_commits, FaultPlan(), tmp_path), 1)
    assert {C(1, 50), C(2, 55)} <= set(standing(two_commits))


def test_a_checkpoint_that_is_known_to_be_damaged_is_tried_last_and_goes_with_its_note(store, checkpoints):
    journal = Journal(store, "x")
    checkpoints.generation(store, 1)
    for step in (10, 20, 30):
        checkpoints.session(store, C(1, step), [b"a" * 4000])
    retention.note_damage(store, "x", C(1, 30), "a chunk")
    retention.note_damage(store, "x", C(1, 30), "another one says so later")
    retention.note_damage(store, "x", C(1, 10), "a chunk")
    found = retention.look_for_checkpoints(store, "x", journal.read())
    assert [one.step for one in found.sound] == [20]
    assert [one.step for one in found.damaged] == [30, 10]
    standing = retention.standing_checkpoints(store, "x", journal.read())
    assert [one.step for one in standing] == [20, 30, 10]
    assert retention.read_damage(store, "x", C(1, 30)) == "a chunk"
    assert retention.collect(store, journal, "x", keep=2) == (C(1, 10),)
    left = sorted(meta.key.rpartition("/")[2] for meta in store.list_objects(keys.manifests_prefix("x")))
    assert left == ["000001-000000000020", "000001-000000000030", "000001-000000000030.damaged"]
    assert retention.read_damage(store, "x", C(1, 10)) == ""
