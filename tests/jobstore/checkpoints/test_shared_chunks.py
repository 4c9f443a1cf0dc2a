"""Chunks that a save does not send again, and that nobody deletes while a checkpoint that counts names them."""

import random
import threading
from collections import Counter
from datetime import datetime, timezone
from unittest import mock

import pytest
from support.records import made_journal
from support.records.sessions import Everything
from support.records.uploads import upload_session
from support.stores.memorystore import InMemoryStore
from support.stores.one_at_a_time import OneAtATime
from support.worlds.few_or_many import few_or_many

from cloudspot.errors import CorruptData
from cloudspot.jobstore.access import parallel
from cloudspot.jobstore.access.stored_records import read_record
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.checkpoints import fetching, manifests, parts, retention, shared_chunks
from cloudspot.jobstore.checkpoints.chunks import stored_chunks
from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.checkpoints.parts import chunk_runs
from cloudspot.jobstore.checkpoints.shared_chunks import Sharing
from cloudspot.jobstore.jobs import forking
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import generations_of, newest_generation
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, Commit, Origin, SaveId

AT = datetime(2026, 11, 25, tzinfo=timezone.utc)
C = CheckpointId
BLOCK = 1000


pytestmark = pytest.mark.usefixtures("small_chunks")


def sharing(store, save, rank=0, likely=None):
    likely = Everything() if likely is None else likely
    return Sharing(store, Journal(store, "x"), "x", save, rank, likely=likely)


def put(store, checkpoints, checkpoint, blocks, **options):
    """Save a checkpoint of one rank that consists of these blocks, each a chunk, and commit it."""
    data = b"".join(letter.encode() * BLOCK for letter in blocks)
    save = SaveId(checkpoint.generation, checkpoint.step, 0)
    options.setdefault("sharing", sharing(store, save))
    return checkpoints.session(store, checkpoint, [data], chunk_bytes=BLOCK, **options)


def chunk_keys(store):
    return [meta.key for meta in store.list_objects("jobs/x/checkpoints/") if "/chunks/" in meta.key]


def blocks_of(store, manifest, tmp_path):
    fetching.fetch(store, "x", manifest, tmp_path / str(manifest.id))
    data = (tmp_path / str(manifest.id) / "part-0.bin").read_bytes()
    return "".join(chr(byte) for byte in data[::BLOCK])


@pytest.fixture
def two_saves(store, checkpoints):
    """Two committed checkpoints, of which the second has one block of three that is new."""
    checkpoints.generation(store, 1)
    return put(store, checkpoints, C(1, 10), "abc"), put(store, checkpoints, C(1, 20), "abd")


def test_what_an_earlier_checkpoint_holds_is_not_sent_again(store, two_saves, tmp_path):
    assert len(chunk_keys(store)) == 3 + 1
    commits = [one for one in Journal(store, "x").read() if isinstance(one, Commit)]
    assert [one.shared for one in commits] == [0, 2 * BLOCK]
    assert blocks_of(store, two_saves[1], tmp_path) == "abd"
    fetching.verify(store, "x", two_saves[1])


def test_a_chunk_is_found_wherever_it_moves_and_named_where_it_was_sent_first(store, checkpoints, two_saves):
    third = put(store, checkpoints, C(1, 30), "dxba")
    homes = [chunk.home and (chunk.home.step, chunk.home.number) for chunk in third.parts[0].chunks]
    assert homes == [(20, 2), None, (10, 1), (10, 0)]


def test_nothing_is_asked_for_where_nothing_is_likely_to_be_there(store, checkpoints, two_saves):
    asked = sharing(store, SaveId(1, 30, 0), likely={(BLOCK, "0" * 32)})
    third = put(store, checkpoints, C(1, 30), "abd", sharing=asked)
    assert [chunk.home for chunk in third.parts[0].chunks] == [None] * 3
    assert not any("/bases/" in meta.key for meta in store.list_objects(keys.save_prefix("x", third.save)))


def test_small_chunks_are_sent(store, checkpoints, two_saves, monkeypatch):
    monkeypatch.setattr(shared_chunks, "MIN_BYTES", BLOCK + 1)
    third = put(store, checkpoints, C(1, 30), "abd")
    assert [chunk.home for chunk in third.parts[0].chunks] == [None] * 3


@pytest.mark.parametrize("comes_back", [False, True])
def test_everything_is_sent_if_another_commit_comes_before_the_mark(
    comes_back, store, checkpoints, two_saves, tmp_path
):
    class Late(WrappedStore):
        """The base is superseded and deleted when the mark is on its way; a slow commit may bring it back."""

        def put(self, key, data, *, if_absent=False):
            manifest = store.get(keys.manifest("x", 1, 20))
            put(store, checkpoints, C(1, 25), "xyz")
            assert retention.collect(store, Journal(store, "x"), "x", 1) == (C(1, 10), C(1, 20))
            if comes_back:
                store.put(keys.manifest("x", 1, 20), manifest)
            super().put(key, data, if_absent=if_absent)

    late = Sharing(Late(store), Journal(store, "x"), "x", SaveId(1, 30, 0), 0, likely=Everything())
    third = put(store, checkpoints, C(1, 30), "abd", sharing=late)
    assert [chunk.home for chunk in third.parts[0].chunks] == [None] * 3
    assert blocks_of(store, third, tmp_path) == "abd"


def test_everything_is_sent_if_the_manifest_of_the_base_cannot_be_read(store, checkpoints, two_saves):
    store.put(keys.manifest("x", 1, 20), b"{}")
    third = put(store, checkpoints, C(1, 30), "abd")
    assert [chunk.home for chunk in third.parts[0].chunks] == [None] * 3


def test_what_was_found_damaged_is_no_base(store, checkpoints, two_saves, tmp_path):
    """All later checkpoints named its damaged chunk, and none verified."""
    retention.note_damage(store, "x", C(1, 20), "a chunk has rotted")
    third = put(store, checkpoints, C(1, 30), "abd")
    assert [chunk.home for chunk in third.parts[0].chunks] == [None] * 3


def test_an_older_commit_that_a_generation_went_on_from_is_no_base(store, checkpoints, two_saves, tmp_path):
    """Whoever knows only of the later commit may be deleting it."""

    class Slow(WrappedStore):
        """The later commit is found corrupt while the older one is being deleted."""

        def delete(self, key):
            if "/manifests/" in key and len(generations_of(Journal(store, "x").read())) == 1:
                checkpoints.generation(store, 2, C(1, 10))
                put(store, checkpoints, C(2, 11), "abx", commit=False)
            super().delete(key)

    assert retention.collect(Slow(store), Journal(store, "x"), "x", 1) == (C(1, 10),)
    retention.collect(store, Journal(store, "x"), "x", 1, orphan_grace_seconds=-60.0)
    commit = manifests.try_commit(store, Journal(store, "x"), "x", SaveId(2, 11, 0))
    assert commit.shared == 0
    assert blocks_of(store, manifests.read_manifest(store, "x", C(2, 11)), tmp_path) == "abx"
    assert put(store, checkpoints, C(2, 12), "abx").shared == 3 * BLOCK


def test_a_manifest_of_another_save_of_the_step_counts_as_gone(store, checkpoints, two_saves):
    """A slow commit puts it when the one that was committed has been deleted."""
    put(store, checkpoints, C(1, 30), "xyz")
    data, save = b"a" * BLOCK, SaveId(1, 20, 1)
    upload_session(store, "x", checkpoints.seals(save, [data])[0], data, sealed_at=AT)
    store.delete(keys.manifest("x", 1, 20))
    assert manifests.write_manifest(store, "x", save).save == save
    before = chunk_keys(store)
    assert retention.collect(store, Journal(store, "x"), "x", 2, orphan_grace_seconds=-60.0) == (C(1, 10),)
    assert set(before) - set(chunk_keys(store)) == set(), "another checkpoint may name chunks of the real one"


def test_what_a_checkpoint_that_stays_names_outlives_the_one_it_came_with(store, checkpoints, two_saves):
    """And no longer than that."""
    journal = Journal(store, "x")
    assert retention.collect(store, journal, "x", 1) == (C(1, 10),)
    fetching.verify(store, "x", two_saves[1])
    assert len(chunk_keys(store)) == 2 + 1
    third = put(store, checkpoints, C(1, 30), "bef")
    retention.collect(store, journal, "x", 1, orphan_grace_seconds=-60.0)
    fetching.verify(store, "x", third)
    assert len(chunk_keys(store)) == 1 + 2
    put(store, checkpoints, C(1, 40), "xyz")
    assert retention.collect(store, journal, "x", 1, orphan_grace_seconds=-60.0) == (C(1, 10), C(1, 30))
    assert len(chunk_keys(store)) == 3


def test_no_chunk_goes_while_a_save_that_may_be_committed_may_name_it(store, checkpoints):
    checkpoints.generation(store, 1)
    put(store, checkpoints, C(1, 10), "abc")
    put(store, checkpoints, C(1, 30), "abc", commit=False)
    put(store, checkpoints, C(1, 20), "abd")
    assert retention.collect(store, Journal(store, "x"), "x", 1) == (C(1, 10),)
    third = checkpoints.session(
        store, C(1, 30), [b"a" * BLOCK + b"b" * BLOCK + b"c" * BLOCK], chunk_bytes=BLOCK
    )
    assert third.parts[0].chunks[2].home.step == 10
    fetching.verify(store, "x", third)


def test_of_a_checkpoint_that_goes_what_a_node_that_is_a_save_ahead_may_name_stays_and_the_rest_goes(
    store, checkpoints
):
    """With keep = 1, nothing was deleted as long as one node was always ahead of another."""
    checkpoints.generation(store, 1)
    put(store, checkpoints, C(1, 5), "xyz")
    put(store, checkpoints, C(1, 10), "abc")
    put(store, checkpoints, C(1, 30), "abc", commit=False)
    put(store, checkpoints, C(1, 20), "abd")
    assert retention.collect(store, Journal(store, "x"), "x", 1) == (C(1, 5), C(1, 10))
    assert [key.split("/checkpoints/")[1][:19] for key in chunk_keys(store)] == 3 * [
        "000001-000000000010"
    ] + ["000001-000000000020"]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_save_whose_base_is_several_commits_back_keeps_the_chunks_that_it_names(keep, store, checkpoints):
    """A node that is two saves ahead names chunks of a checkpoint whose manifest is long deleted."""
    checkpoints.generation(store, 1)
    put(store, checkpoints, C(1, 10), "abc")
    put(store, checkpoints, C(1, 60), "abc", commit=False)
    for step, blocks in ((20, "xyz"), (30, "uvw"), (40, "rst"), (50, "opq")):
        put(store, checkpoints, C(1, step), blocks)
        retention.collect(store, Journal(store, "x"), "x", keep, orphan_grace_seconds=-60.0)
    assert C(1, 10) not in retention.standing_checkpoints(store, "x", Journal(store, "x").read())
    commit = manifests.try_commit(store, Journal(store, "x"), "x", SaveId(1, 60, 0))
    assert commit.shared == 3 * BLOCK
    fetching.verify(store, "x", manifests.read_manifest(store, "x", C(1, 60)))


def test_a_save_that_names_only_what_stays_holds_up_no_deletion(store, checkpoints):
    checkpoints.generation(store, 1)
    put(store, checkpoints, C(1, 10), "abc")
    put(store, checkpoints, C(1, 20), "xyz", sharing=None)
    put(store, checkpoints, C(1, 30), "xyw", commit=False)
    assert retention.collect(store, Journal(store, "x"), "x", 1) == (C(1, 10),)
    assert [key for key in chunk_keys(store) if "-000000000010-" in key] == []


def test_a_mark_that_names_no_commit_stops_no_deletion_by_an_error(store, checkpoints):
    """No chunk goes, since nobody knows what such a save names."""
    checkpoints.generation(store, 1)
    for step in (10, 20):
        put(store, checkpoints, C(1, step), "abc", sharing=None)
    store.put(keys.base_mark("x", SaveId(1, 30, 0), 0, C(1, 15)), b"")
    put(store, checkpoints, C(1, 15), "xyz", sharing=None, commit=False)
    manifests.write_manifest(store, "x", SaveId(1, 15, 0))
    before = chunk_keys(store)
    assert retention.collect(store, Journal(store, "x"), "x", 1) == (C(1, 10), C(1, 15))
    assert chunk_keys(store) == before


def test_objects_that_are_not_ours_stop_no_deletion(store, checkpoints, two_saves):
    for key in ("manifests/README", "manifests/1-20", "checkpoints/README", "checkpoints/~/bases/0000/x"):
        store.put(f"jobs/x/{key}", b"")
    assert retention.collect(store, Journal(store, "x"), "x", 1) == (C(1, 10),)
    fetching.verify(store, "x", two_saves[1])


class SlowListing(WrappedStore):
    """Between the listing of manifests and the reading of the journal, two saves are committed."""

    def list_page(self, prefix, **options):
        page = super().list_page(prefix, **options)
        if prefix == keys.manifests_prefix("x"):
            for step in (10, 20):
                manifests.try_commit(self.inner, Journal(self.inner, "x"), "x", SaveId(1, step, 0))
        return page


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("keep", [1, 2])
def test_a_commit_that_a_deletion_has_not_listed_keeps_the_chunks_of_its_base(
    keep, is_known, store, checkpoints
):
    checkpoints.generation(store, 1)
    put(store, checkpoints, C(1, 4), "uvw")
    put(store, checkpoints, C(1, 5), "abc")
    put(store, checkpoints, C(1, 10), "abd", commit=False)
    put(store, checkpoints, C(1, 20), "xyz", sharing=None, commit=False)
    assert manifests.write_manifest(store, "x", SaveId(1, 20, 0)) is not None
    journal = Journal(store, "x")
    if is_known:  # as an agent's journal is
        journal.read()
    assert retention.collect(SlowListing(store), journal, "x", keep, orphan_grace_seconds=-60.0) == ()
    for checkpoint in retention.standing_checkpoints(store, "x", Journal(store, "x").read()):
        fetching.verify(store, "x", manifests.read_manifest(store, "x", checkpoint))
    assert C(1, 10) in retention.standing_checkpoints(store, "x", Journal(store, "x").read())
    collected = retention.collect(store, Journal(store, "x"), "x", keep, orphan_grace_seconds=-60.0)
    assert collected == (C(1, 4), C(1, 5), C(1, 10))[: 4 - keep]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_commit_whose_manifest_a_deletion_has_not_listed_keeps_its_chunks(keep, store, checkpoints):
    """A drain's save may be whole at the same time as the interval save before it."""
    checkpoints.generation(store, 1)
    put(store, checkpoints, C(1, 5), "xyz")
    for step, blocks in ((10, "abc"), (20, "def")):
        put(store, checkpoints, C(1, step), blocks, commit=False)
    assert manifests.write_manifest(store, "x", SaveId(1, 20, 0)) is not None
    slow = SlowListing(store)
    retention.collect(slow, Journal(slow, "x"), "x", keep, orphan_grace_seconds=-60.0)
    for checkpoint in retention.standing_checkpoints(store, "x", Journal(store, "x").read()):
        fetching.verify(store, "x", manifests.read_manifest(store, "x", checkpoint))
    assert C(1, 10) in retention.standing_checkpoints(store, "x", Journal(store, "x").read())


def test_a_mark_that_is_put_before_the_journal_is_read_is_seen(store, checkpoints, two_saves):
    class Slow(WrappedStore):
        """While a deletion is about to read the journal, a save finds its base and another one is committed."""

        is_slow = True

        def get(self, key):
            if self.is_slow and "/journal/" in key:
                self.is_slow = False
                put(store, checkpoints, C(1, 30), "abd", commit=False)
                assert manifests.try_commit(store, Journal(store, "x"), "x", SaveId(1, 25, 0)) is not None
            return super().get(key)

    put(store, checkpoints, C(1, 25), "xyz", commit=False)
    assert manifests.write_manifest(store, "x", SaveId(1, 25, 0)) is not None
    slow = Slow(store)
    assert retention.collect(slow, Journal(slow, "x"), "x", 1) == (C(1, 10), C(1, 20))
    commit = manifests.try_commit(store, Journal(store, "x"), "x", SaveId(1, 30, 0))
    assert commit.shared == 3 * BLOCK
    fetching.verify(store, "x", manifests.read_manifest(store, "x", C(1, 30)))


def test_an_upload_that_is_repeated_is_the_same_part_wherever_its_chunks_are(store, checkpoints, two_saves):
    third = put(store, checkpoints, C(1, 30), "abd", commit=False, sharing=None)
    assert third is None
    again = put(store, checkpoints, C(1, 30), "abd")
    assert [chunk.home for chunk in again.parts[0].chunks] == [None] * 3


@pytest.mark.parametrize("home", [C(1, 20), C(1, 30), C(2, 1)])
def test_a_part_that_names_a_chunk_of_no_earlier_checkpoint_is_refused(home, store, two_saves, checkpoints):
    key = keys.part("x", SaveId(1, 20, 0), 0)
    text = store.get(key).replace(b'"step":10', b'"step":%d' % home.step)
    text = text.replace(b'"home":{"generation":1', b'"home":{"generation":%d' % home.generation)
    store.put(key, text)
    part = read_record(store, key, parts.Part)
    assert part.chunks[0].home.save.checkpoint == home
    with pytest.raises(CorruptData, match="which is not earlier"):
        parts.check_part(part)


def test_a_fork_has_all_chunks_of_its_own(store, two_saves):
    copied = forking.bring_checkpoint(store, Origin(job_id="x", checkpoint=C(1, 20)), two_saves[1], "new")
    manifest = manifests.read_manifest(store, "new", copied)
    fetching.verify(store, "new", manifest)
    assert all(key.startswith("jobs/new/") for key in (one.key for one in stored_chunks("new", manifest)))


@pytest.mark.parametrize(
    ("size", "cuts", "starts"),
    [
        (0, [], []),
        (10, [], [0, 4, 8]),
        (10, [2, 5], [0, 2, 5, 9]),
        (10, [0, 2, 2, 1, 10, 11], [0, 2, 6]),
    ],
)
def test_chunks_begin_at_each_cut_and_after_so_many_bytes(size, cuts, starts):
    runs = chunk_runs(size, cuts, 4)
    assert [start for start, _ in runs] == starts
    assert sum(length for _, length in runs) == size
    assert all(0 < length <= 4 for _, length in runs)


def test_large_files_have_chunks_of_their_own(store, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MIN_FILE_BYTES", 2 * BLOCK)
    checkpoints.generation(store, 1)
    made = []
    for step, word in ((10, "first"), (20, "of another length")):
        root = tmp_path / f"checkpoint-{step}"
        root.mkdir()
        (root / "a.json").write_text(word)
        (root / "base.bin").write_bytes(b"b" * 3 * BLOCK)
        (root / "z.json").write_text(word)
        base = {} if step == 10 else {"sharing": sharing(store, SaveId(1, step, 0))}
        made.append(checkpoints.directory(store, C(1, step), root, root.name, chunk_bytes=10 * BLOCK, **base))
    assert [chunk.size for chunk in made[0].parts[0].chunks] == [5, 3 * BLOCK, 5]
    assert [chunk.home is not None for chunk in made[1].parts[0].chunks] == [False, True, False]


# --- random histories -------------------------------------------------------------------------------


class Killed(BaseException):
    """A process ends between two of its requests."""


class Actor(threading.Thread):
    """A process that makes one request at a time, when it is its turn."""

    def __init__(self, act, store, note, stalls, *, is_slow):
        super().__init__(daemon=True)
        self._act, self._store, self._note, self.is_slow = act, store, note, is_slow
        self._stalls = stalls
        self._turn, self._done = threading.Event(), threading.Event()
        self._is_killed, self.is_over, self.error = False, False, None

    def run(self):
        try:
            self._wait()
            self._act(_TurnStore(self._store, self._wait_again, self._note))
        except (Killed, manifests.Superseded):
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells it
            self.error = error
        self.is_over = True
        self._done.set()

    def go(self, *, kill=False):
        """Let it make its next request."""
        self._done.clear()
        self._is_killed = kill
        self._turn.set()
        self._done.wait()

    def _wait_again(self, method, key):
        self.is_slow = self.is_slow or self._stalls(method, key)
        self._done.set()
        self._wait()

    def _wait(self):
        self._turn.wait()
        self._turn.clear()
        if self._is_killed:
            raise Killed


class _TurnStore(WrappedStore):
    def __init__(self, inner, wait, note):
        super().__init__(inner)
        self._wait_for_turn, self._note = wait, note

    def _call(self, method, key, request):
        self._wait_for_turn(method, key)
        self._note(method, key)
        return request()


class History:
    """A job of two ranks, whose nodes save, commit, collect, stall and die at random."""

    def __init__(self, seed, checkpoints, *, keep, compresses):
        self.rng, self.seals, self.keep = random.Random(seed), checkpoints.seals, keep
        self.compresses = compresses
        self.store = InMemoryStore(now=lambda: AT)  # a seed gives the same history whenever it is played
        self.actors = []
        self.generation = 0
        self.num_commits = self.num_shared = 0
        self.lags = Counter()
        """How many commits came between the base of a save and its own."""
        self._journal = Journal(self.store, "x")
        self._wholes = {}
        self._may_lack = False
        self._stalling = self.rng.choice((0.0, 0.1, 0.3))
        self._stalling_marks = self.rng.choice((0.0, 0.1, 0.5))
        self._slowness = self.rng.choice((0.03, 0.01))
        """How often one that is slow gets a turn while others are not."""
        self._resuming = self.rng.choice((0.001, 0.004))
        self._lagging = self.rng.choice((0.2, 0.6))
        """How often a rank is slow from the start: the other makes saves whose base is soon old."""
        self._deleted = set()
        self.chunks_put = []

    def data(self, save, rank):
        """A rank's state: blocks that change now and then, and often to what they were before."""
        rng = random.Random(f"{save} {rank}")
        return b"".join(rng.choice(f"{rank}aaab").encode() * 50 for _ in range(4))

    def start(self, act, *, is_slow):
        actor = Actor(act, self.store, self.note, self.stalls, is_slow=is_slow)
        self.actors.append(actor)
        actor.start()

    def stalls(self, method, key):
        """Say whether a process stalls before a request: often where what it knows may be old by then."""
        if method == "put" and "/bases/" in key:
            return self.rng.random() < self._stalling_marks
        is_put = method == "put" and "/manifests/" in key
        is_list = method == "list_page" and ("/journal/" in key or key.endswith("/checkpoints/"))
        return (is_put or is_list) and self.rng.random() < self._stalling

    def note(self, method, key):
        """Note a request: a deletion and a commit are what may leave a checkpoint without a chunk."""
        self._may_lack = self._may_lack or method == "delete" or "/journal/" in key
        if method == "put" and "/chunks/" in key:
            self.chunks_put.append(key)
        if method == "delete":
            # A slow commit may put the manifest again; no resume wants it, and the next deletion takes it.
            self._deleted.add(key)

    def resume(self):
        """Start the next generation, now and then from an older commit; the nodes of the one before may go on."""
        journal = Journal(self.store, "x")
        standing = retention.standing_checkpoints(self.store, "x", journal.read())
        base = next(iter(standing[1:] if self.rng.random() < 0.2 else standing), None)
        self.generation += 1
        made_journal.start_generation(self.store, self.generation, base)
        first = 0 if base is None else base.step
        for rank in range(2):
            self.start(self.train(self.generation, first, rank), is_slow=self.rng.random() < self._lagging)

    def train(self, generation, first, rank):
        def act(store):
            journal = Journal(store, "x")
            steps, shared = iter(range(first + 1, first + 30)), random.Random(f"{generation}")
            for step in steps:
                # A step may be saved twice: for an interval, and for a drain that is called off. And the next
                # step's save, a drain's, may be whole before anybody has committed this one.
                numbers = range(2 if shared.random() < 0.2 else 1)
                batch = [step] if shared.random() < 0.8 else [step, next(steps, step)]
                saves = sorted({SaveId(generation, one, number) for one in batch for number in numbers})
                for save in saves:
                    self.upload(store, journal, save, rank)
                for save in saves if self.rng.random() < 0.5 else reversed(saves):
                    self.commit(store, journal, save)

        return act

    def upload(self, store, journal, save, rank):
        datas = [self.data(save, one) for one in range(2)]
        shares = Sharing(store, journal, "x", save, rank, likely=Everything())
        compresses = self.compresses and random.Random(f"{save} {rank} compresses").random() < 0.6
        upload_session(
            store, "x", self.seals(save, datas)[rank], datas[rank], sealed_at=AT, sharing=shares,
            compression=Compression() if compresses else None, in_background=compresses,
            chunk_bytes=50, num_threads=1, is_new=True,
        )  # fmt: skip

    def commit(self, store, journal, save):
        commit = manifests.try_commit(store, journal, "x", save)
        if commit is not None and commit.save == save:
            self.num_commits += 1
            self.num_shared += commit.shared > 0
            self.note_lag(commit)
            grace = self.rng.choice((-3600.0, 3600.0))

            def collect(other):
                retention.collect(other, Journal(other, "x"), "x", self.keep, orphan_grace_seconds=grace)

            self.start(collect, is_slow=self.rng.random() < 0.5)

    def note_lag(self, commit):
        """Note how old the bases are that the commit's parts name chunks of."""
        commits = [one.id for one in self._journal.read() if isinstance(one, Commit)]
        for meta in self.store.list_objects(keys.save_prefix("x", commit.save) + "bases/"):
            base = C(*map(int, meta.key.rpartition("/")[2].split("-")))
            self.lags[commits.index(commit.id) - commits.index(base)] += commit.shared > 0

    def run(self, num_turns):
        """Give that many turns; return what was found wrong, or None."""
        self.resume()
        for _ in range(num_turns):
            self.actors = [one for one in self.actors if not one.is_over]
            if not self.actors or self.rng.random() < self._resuming:
                self.resume()
            quick = [one for one in self.actors if not one.is_slow or self.rng.random() < self._slowness]
            actor = self.rng.choice(quick or self.actors)
            if self.rng.random() < 0.005:
                actor.is_slow = not actor.is_slow
            actor.go(kill=self.rng.random() < 0.002)
            problem = actor.error or self.lacking()
            if problem is not None:
                return str(problem)
        return None

    def lacking(self):
        """Return what a checkpoint that counts lacks, or None."""
        store = self.store
        if not self._may_lack:
            return None
        self._may_lack = False
        for meta in store.list_objects(keys.manifests_prefix("x")):
            if meta.key not in self._wholes:
                manifest = read_record(store, meta.key, manifests.Manifest)
                self._wholes[meta.key] = manifest.id, [one.key for one in stored_chunks("x", manifest)]
        there = set(store._keys) - self._deleted.intersection(self._wholes)
        committed = {one.id for one in self._journal.read() if isinstance(one, Commit)}
        for key, (checkpoint, chunks) in self._wholes.items():
            if key in there and checkpoint in committed and not there.issuperset(chunks):
                return f"{checkpoint} lacks {sorted(set(chunks) - there)}"
        return None

    def end(self):
        """End all, and collect; return what is stored, and what the checkpoints that stay name."""
        for actor in self.actors:
            while not actor.is_over:
                actor.go(kill=True)
        journal = Journal(self.store, "x")
        newest = newest_generation(journal.read())
        last = max((save.step for save in retention.stored_saves(self.store, "x")), default=0)
        save = SaveId(newest.number, last + 1, 0)
        for rank in range(2):
            upload_session(self.store, "x", self.seals(save, [b"", b""])[rank], b"", sealed_at=AT)
        assert manifests.try_commit(self.store, journal, "x", save) is not None
        retention.collect(self.store, journal, "x", self.keep, orphan_grace_seconds=-3600.0)
        named = set()
        for checkpoint in retention.standing_checkpoints(self.store, "x", journal.read()):
            manifest = manifests.read_manifest(self.store, "x", checkpoint)
            fetching.verify(self.store, "x", manifest)
            named |= {one.key for one in stored_chunks("x", manifest)}
        return set(chunk_keys(self.store)), named


def play(seed, checkpoints, *, compresses=False):
    history = History(seed, checkpoints, keep=1 + seed % 3, compresses=compresses)
    with mock.patch.object(parallel, "ThreadPoolExecutor", OneAtATime):
        problem = history.run(1500)
    return history, problem


@pytest.mark.costly
@pytest.mark.parametrize("compresses", [False, True])
@few_or_many(12, 400, portion=97)
def test_in_random_histories_no_checkpoint_that_counts_lacks_a_chunk_and_nothing_is_left(
    seeds, compresses, checkpoints
):
    num_shared, lags = 0, Counter()
    for seed in seeds:
        history, problem = play(seed, checkpoints, compresses=compresses)
        assert problem is None, f"seed {seed}: {problem}"
        num_shared += history.num_shared
        lags += history.lags
        stored, named = history.end()
        assert stored == named, f"seed {seed}"
        assert any(key.endswith(".z") for key in history.chunks_put) is compresses
    assert num_shared > 5 * len(seeds)
    assert sum(count for lag, count in lags.items() if lag > 1) > len(seeds), (
        "no base is several commits back"
    )


def put_no_mark(monkeypatch):
    claim = Sharing._claim

    class Unmarked(WrappedStore):
        def put(self, key, data, *, if_absent=False):
            assert "/bases/" in key

    def mutant(self):
        self._store, store = Unmarked(self._store), self._store
        try:
            return claim(self)
        finally:
            self._store = store

    monkeypatch.setattr(Sharing, "_claim", mutant)


def look_before_the_mark(monkeypatch):
    claim = Sharing._claim

    def mutant(self):
        base = self._last_commit()
        if base is None or base.id >= self._save.checkpoint:
            return {}
        manifest = shared_chunks.committed_manifest(self._store, "x", base)
        claim(self)
        return {} if manifest is None else shared_chunks.known_chunks(manifest)

    monkeypatch.setattr(Sharing, "_claim", mutant)


def heed_no_mark(monkeypatch):
    monkeypatch.setattr(retention, "_marked", lambda *_: set())


def heed_only_marks_of_what_stands(monkeypatch):
    marked = retention._marked

    def mutant(store, job_id, newest):
        standing = retention._list_manifests(store, job_id)[0]
        return marked(store, job_id, newest) & set(standing)

    monkeypatch.setattr(retention, "_marked", mutant)


def spare_nothing(monkeypatch):
    monkeypatch.setattr(retention, "_shared", lambda *_: frozenset())


def go_on_although_what_was_to_stay_is_gone(monkeypatch):
    shared = retention._shared
    monkeypatch.setattr(retention, "_shared", lambda *about: shared(*about) or frozenset())


@pytest.mark.full
@pytest.mark.parametrize(
    ("shortcut", "seed"),
    [
        (put_no_mark, 15),
        (look_before_the_mark, 342),
        (heed_no_mark, 5),
        (heed_only_marks_of_what_stands, 3),
        (spare_nothing, 0),
        (go_on_although_what_was_to_stay_is_gone, 50),
    ],
)
def test_each_shortcut_loses_a_chunk(shortcut, seed, checkpoints, monkeypatch):
    assert play(seed, checkpoints)[1] is None
    shortcut(monkeypatch)
    assert "lacks" in (play(seed, checkpoints)[1] or "nothing was lost")
