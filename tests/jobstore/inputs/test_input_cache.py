"""Inputs on the disk: fetched once, whole, from one listing, whatever is killed, fails or changes."""

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import DenyingStore, FaultPlan, FaultyStore
from support.stores.memorystore import InMemoryStore
from support.stores.staged_inputs import CountingStore, contents, staging

from cloudspot.calls.retrying import retry
from cloudspot.errors import AuthError, CloudspotError, CorruptData, TransientError
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.inputs import input_cache, inputs
from cloudspot.jobstore.inputs.input_cache import InputCache
from cloudspot.jobstore.inputs.inputs import BLOCK_BYTES, InputChanged, InputMissing, open_input
from cloudspot.model import ObjectPage

LARGE = os.urandom(2 * BLOCK_BYTES + 12345)


@pytest.fixture
def opened(monkeypatch):
    """Return a function that opens an input of a store of the test's own."""

    def open_(store, url="memory://test/", **fields):
        monkeypatch.setattr(inputs, "open_store", lambda _url: store)
        return open_input(DataSpec(url=url, **fields))

    return open_


@pytest.fixture
def cache(tmp_path):
    return InputCache(tmp_path / "cache")


def test_every_object_is_there_with_its_bytes_and_a_second_staging_fetches_nothing(opened, cache):
    given = {"a": b"", "b/c": b"small", "b/d": LARGE}
    store = CountingStore(InMemoryStore())
    for key, data in given.items():
        store.put(key, data)
    source = opened(store)
    staged = cache.stage(source, staging())
    assert contents(cache, source, staged) == given
    assert (staged.num_bytes, staged.fetched_bytes) == (len(LARGE) + 5,) * 2
    # One request for each small object, and one for each block of the large one.
    assert {key: n for key, n in store.calls.items() if key[0] in {"get", "get_range"}} == {
        ("get", "a"): 1, ("get", "b/c"): 1, ("get_range", "b/d"): 3,
    }  # fmt: skip
    store.calls.clear()
    again = InputCache(cache.root).stage(source, staging())
    assert (again.fetched_bytes, again.version, again.num_bytes) == (0, staged.version, staged.num_bytes)
    assert set(store.calls) == {("list_page", "")}


def test_progress_tells_what_is_here_and_then_every_byte_once(opened, cache):
    store, told = InMemoryStore(), []

    @contextmanager
    def progress(total, here):
        told.append((total, here))
        yield told.append

    store.put("a", b"123")
    cache.stage(opened(store), staging(open_progress=progress))
    store.put("b", LARGE)
    cache.stage(opened(store), staging(open_progress=progress, num_threads=1))
    total = 3 + len(LARGE)
    assert told == [(3, 0), 3, (total, 3), BLOCK_BYTES, BLOCK_BYTES, 12345]


def test_requests_that_fail_in_passing_are_made_again(opened, cache, tmp_path):
    store = FaultyStore(InMemoryStore(), FaultPlan(fail_every=3), tmp_path / "state")
    for number in range(20):
        store.inner.put(f"k{number:02}", bytes([number]) * 100)
    store.inner.put("large", LARGE)
    source = opened(store)
    staged = cache.stage(source, staging(repeat=lambda call: retry(call, sleep=lambda _seconds: None)))
    assert contents(cache, source, staged)["large"] == LARGE
    assert len(staged.files) == 21


def test_an_outage_ends_the_staging_and_what_came_before_it_is_kept(opened, cache):
    store = CountingStore(InMemoryStore())
    for number in range(8):
        store.put(f"k{number}", b"x")
    is_out = threading.Event()

    def before(method, key):
        if method == "get" and key == "k5":
            is_out.set()
        if is_out.is_set():
            raise TransientError("out")

    store.before = before
    with pytest.raises(TransientError, match="out"):
        cache.stage(opened(store), staging(num_threads=1))
    is_out.clear()
    store.before = lambda *_: None
    store.calls.clear()
    cache.stage(opened(store), staging())
    assert sorted(key for method, key in store.calls if method == "get") == ["k5", "k6", "k7"]


def test_a_right_that_is_missing_ends_the_staging(opened, cache):
    store = InMemoryStore()
    store.put("a", b"x")
    with pytest.raises(AuthError):
        cache.stage(opened(DenyingStore(store, lambda method, _key: method == "get")), staging())


KILLED = """
import os, signal, sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.inputs import inputs
from cloudspot.jobstore.inputs.input_cache import InputCache
from support.stores.staged_inputs import CountingStore, staging
from cloudspot.local.filestore import FileStore

def before(method, key):
    if method.startswith("get"):
        descriptor = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, (key + "\\n").encode())
        if {kill_after} and len(Path({log!r}).read_text().split()) > {kill_after}:
            os.kill(os.getpid(), signal.SIGKILL)

inputs.open_store = lambda url: CountingStore(FileStore("file://" + {root!r}), before)
source = inputs.open_input(DataSpec(url="file://" + {root!r} + "/"))
staged = InputCache(Path({cache!r})).stage(source, staging(num_threads={num_threads}))
print(staged.fetched_bytes)
"""


@pytest.mark.full
@pytest.mark.parametrize("kill_after", [3, 8, 12, 17])
def test_a_killed_staging_goes_on_where_it_stood(tmp_path, kill_after):
    """SIGKILL in a real process; with one thread, all requests but the killed one bring their bytes once."""
    store = directory_store(tmp_path / "data")
    given = {f"k{number:02}": os.urandom(1000) for number in range(10)} | {
        "large": os.urandom(9 * BLOCK_BYTES)
    }
    for key, data in given.items():
        store.put(key, data)
    log, root = tmp_path / "requests", tmp_path / "cache"

    def run(kill_after):
        paths = [str(Path(__file__).parents[2])]
        program = KILLED.format(
            paths=paths, log=str(log), kill_after=kill_after, root=f"{tmp_path}/data", cache=str(root),
            num_threads=1,
        )  # fmt: skip
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert run(kill_after).returncode == -signal.SIGKILL
    is_here = [path for path in root.glob("objects/*/*") if path.is_file()]
    assert len(is_here) == min(kill_after, 10)  # the last request was killed, and none is half there
    done = run(0)
    assert done.returncode == 0, done.stderr
    # Ten objects and nine blocks, each asked for once; besides, the request that was killed.
    asked = Counter(log.read_text().split())
    killed = "large" if kill_after >= 10 else f"k{kill_after:02}"
    expected = Counter(dict.fromkeys(given, 1) | {"large": 9}) + Counter([killed])
    assert asked == expected
    num_here = 1000 * min(kill_after, 10) + BLOCK_BYTES * max(0, kill_after - 10)
    assert int(done.stdout) == 10_000 + 9 * BLOCK_BYTES - num_here
    source, cache = open_input(DataSpec(url=f"file://{tmp_path}/data/")), InputCache(root)
    assert {file.name: cache.path_of(source, file).read_bytes() for file in source.wanted()} == given
    assert not list(root.glob("inputs/*/*.part"))


def test_a_large_file_is_fetched_anew_if_the_disk_has_not_taken_all_of_it(opened, cache, monkeypatch):
    store, sync = InMemoryStore(), os.fsync
    store.put("large", LARGE)

    def lose(descriptor):
        """Fail as the kernel does where some pages could not be written: once, and then they count as written."""
        monkeypatch.setattr(os, "fsync", sync)
        os.pwrite(descriptor, bytes(4096), BLOCK_BYTES)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    source = opened(store)
    monkeypatch.setattr(os, "fsync", lose)
    with pytest.raises(OSError, match="Input/output error"):
        cache.stage(source, staging())
    staged = cache.stage(source, staging())
    assert staged.fetched_bytes == len(LARGE)
    assert contents(cache, source, staged) == {"large": LARGE}


def test_a_large_file_that_only_lacked_its_rename_is_not_fetched_again(opened, cache, monkeypatch):
    store = CountingStore(InMemoryStore())
    store.put("large", LARGE)
    source = opened(store)
    rename = Path.replace
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "torn")))
    with pytest.raises(OSError, match="torn"):
        cache.stage(source, staging())
    monkeypatch.setattr(Path, "replace", rename)
    store.calls.clear()
    staged = cache.stage(source, staging())
    assert contents(cache, source, staged) == {"large": LARGE}
    assert not [key for key in store.calls if key[0] == "get_range"]
    assert staged.fetched_bytes == 0


def test_what_another_boot_has_left_half_is_fetched_anew(opened, cache, monkeypatch):
    store = CountingStore(InMemoryStore())
    store.put("large", LARGE)
    source, seen = opened(store), []

    def before(method, _key):
        if method == "get_range":
            seen.append(1)
            if len(seen) == 2:
                raise TransientError("out")

    store.before = before
    with pytest.raises(TransientError):
        cache.stage(source, staging(num_threads=1))
    monkeypatch.setattr(input_cache, "this_boot", lambda: "0123abcd")
    store.before = lambda *_: None
    store.calls.clear()
    assert contents(cache, source, cache.stage(source, staging())) == {"large": LARGE}
    assert store.calls["get_range", "large"] == 3
    assert not list(cache.root.glob("inputs/*/*.part"))


@pytest.mark.parametrize("when", ["before the last block", "after the last block", "small"])
def test_an_object_that_changes_meanwhile_is_staged_again_whole(opened, cache, when):
    key = "small" if when == "small" else "large"
    old, new = (b"old", b"new") if when == "small" else (LARGE, LARGE[::-1])
    store = CountingStore(InMemoryStore())
    store.put(key, old)
    seen = []

    def before(method, asked):
        if method in {"get", "get_range"}:
            seen.append(asked)
            if len(seen) == {"before the last block": 3, "after the last block": 99, "small": 1}[when]:
                store.inner.put(key, new)
        elif when == "after the last block" and len(seen) == 3:
            seen.append("listed")
            store.inner.put(key, new)

    store.before = before
    source = opened(store)
    staged = cache.stage(source, staging(num_threads=1))
    assert contents(cache, source, staged) == {key: new}
    # Nothing is left of the mixture, which would be there for whoever finds the old version again.
    assert len([path for path in cache.root.glob("objects/*/*") if path.is_file()]) == 1


def test_an_object_that_changes_all_the_time_is_an_error_that_names_it(opened, cache):
    store = CountingStore(InMemoryStore())
    store.put("still", b"x")
    store.put("restless", b"0")
    store.before = lambda method, key: method == "get" and key == "restless" and store.inner.put(key, b"1")
    with pytest.raises(InputChanged, match=r"memory://test/restless has changed .* 3 times"):
        cache.stage(opened(store), staging())


def test_an_object_that_shrinks_or_goes_meanwhile_is_noticed(opened, cache):
    store = CountingStore(InMemoryStore())
    store.put("a", b"long")
    store.put("b", b"there")
    seen = []

    def before(method, key):
        if method == "get" and not seen:
            seen.append(key)
            store.inner.put("a", b"x")
            store.inner.delete("b")

    store.before = before
    source = opened(store)
    assert contents(cache, source, cache.stage(source, staging(num_threads=1))) == {"a": b"x"}


def test_two_versions_of_one_size_are_two_files_and_the_old_one_may_come_back(opened, cache):
    store = InMemoryStore()
    for data in (b"one", b"two", b"one"):
        store.put("k", data)
        source = opened(store)
        assert contents(cache, source, cache.stage(source, staging())) == {"k": data}


def test_a_file_that_someone_has_written_to_is_fetched_again(opened, cache):
    store = InMemoryStore(now=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc))
    store.put("k", b"right")
    source = opened(store)
    staged = cache.stage(source, staging())
    path = cache.path_of(source, staged.files[0])
    assert path.stat().st_mode & 0o777 == 0o444
    path.chmod(0o644)
    path.write_bytes(b"wrong")
    assert cache.stage(source, staging()).fetched_bytes == 5
    assert path.read_bytes() == b"right"


def test_a_single_object_is_staged_by_its_url(cache, tmp_path):
    store = directory_store(tmp_path / "data")
    store.put("a/one", b"1")
    store.put("a/two", b"2")
    source = open_input(DataSpec(url=f"file://{tmp_path}/data/a/two"))
    assert contents(cache, source, cache.stage(source, staging())) == {"": b"2"}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("none", "there is no such object"),
        ("a", 'objects lie below it: "file://.*/data/a/" stages them all'),
        ("none/", "it contains no objects"),
        ("\u00e9", "cannot be an object's name"),
    ],
)
def test_an_input_that_is_not_there_says_so(cache, tmp_path, url, told):
    directory_store(tmp_path / "data").put("a/one", b"1")
    with pytest.raises(InputMissing, match=told):
        cache.stage(open_input(DataSpec(url=f"file://{tmp_path}/data/{url}")), staging())


@pytest.mark.parametrize("hostile", ["link", "\u00e9", "new\nline"])
def test_what_a_listing_passes_over_is_never_left_out_silently(cache, tmp_path, hostile):
    directory_store(tmp_path / "data").put("a", b"1")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    if hostile == "link":
        (tmp_path / "data" / "link").symlink_to(secret)
    else:
        (tmp_path / "data" / hostile).write_text("x")
    with pytest.raises(CloudspotError, match=r"it contains 1 name\(s\) that cannot be staged"):
        cache.stage(open_input(DataSpec(url=f"file://{tmp_path}/data/")), staging())


def test_what_pages_pass_over_counts_once(opened, cache):
    class Skipping(InMemoryStore):
        def list_page(self, prefix, *, after=None, limit=1000):
            page = super().list_page(prefix, after=after, limit=1)
            return ObjectPage(objects=page.objects, next_after=page.next_after, skipped=("\u00e9",))

    store = Skipping()
    store.put("a", b"1")
    store.put("b", b"1")
    with pytest.raises(CloudspotError, match=r"1 name\(s\)"):
        cache.stage(opened(store), staging())


@pytest.mark.full
def test_a_hash_is_compared_and_names_the_file(opened, cache):
    for data in (b"small", LARGE):
        store = InMemoryStore()
        store.put("k", data)
        right = hashlib.sha256(data).hexdigest()
        source = opened(store, "memory://test/k", sha256=right)
        assert contents(cache, source, cache.stage(source, staging())) == {"": data}
        source = opened(store, "memory://test/k", sha256="0" * 64)
        with pytest.raises(CorruptData, match=f"memory://test/k has the sha256 {right}, not 0000"):
            cache.stage(source, staging())
        assert not cache.has(source, source.wanted()[0])
        assert not list(cache.root.glob("inputs/*/*.part"))


def test_a_tree_without_an_end_is_given_up(opened, cache, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_LISTED", 3)
    store = InMemoryStore()
    for number in range(4):
        store.put(f"{number}", b"x")
    with pytest.raises(CloudspotError, match="it contains more than 3 objects"):
        cache.stage(opened(store, url="file:///a/"), staging())


def test_a_disk_that_is_too_small_is_refused_before_anything_is_fetched(opened, cache, monkeypatch):
    store = CountingStore(InMemoryStore())
    store.put("k", b"x" * 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: _Usage(999))
    with pytest.raises(CloudspotError, match=r"no space left on the disk .* resources\.disk"):
        cache.stage(opened(store), staging())
    assert not [key for key in store.calls if key[0] == "get"]


def test_a_share_of_the_disk_stays_free_for_what_may_come_late(opened, cache, monkeypatch):
    store = InMemoryStore()
    store.put("k", b"x" * 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: _Usage(_Usage.total // 10 + 999))
    with pytest.raises(CloudspotError, match="no space left on the disk"):
        cache.stage(opened(store), staging(spare_share=0.1))
    assert cache.stage(opened(store), staging()).fetched_bytes == 1000


class _Usage:
    total = 1 << 40

    def __init__(self, free):
        self.free = free


@pytest.mark.parametrize("data", [b"small", LARGE])
def test_a_disk_that_fills_up_ends_the_staging_and_leaves_no_file(opened, cache, monkeypatch, data):
    store = InMemoryStore()
    store.put("k", data)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(input_cache, "_settle", full)
    source = opened(store)
    with pytest.raises(OSError, match="No space left"):
        cache.stage(source, staging())
    assert not cache.has(source, source.wanted()[0])


def test_two_processes_of_a_machine_fetch_each_object_once_between_them(opened, cache):
    store = CountingStore(InMemoryStore())
    for number in range(30):
        store.put(f"k{number}", b"x" * 10)
    store.before = lambda method, _key: method == "get" and time.sleep(0.005)
    source, found = opened(store), []
    threads = [
        threading.Thread(target=lambda: found.append(InputCache(cache.root).stage(source, staging())))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(one.fetched_bytes for one in found) == [0, 300]
    assert all(store.calls["get", f"k{number}"] == 1 for number in range(30))


@pytest.mark.full
def test_memory_stays_flat(tmp_path):
    """Of a file of 48 blocks, one block for each thread is in memory at a time."""
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "large").open("wb") as file:
        file.truncate(48 * BLOCK_BYTES)
    program = textwrap.dedent(f"""
        import resource, sys, time
        from contextlib import contextmanager
        from pathlib import Path
        from cloudspot.jobfile.data import DataSpec
        from cloudspot.jobstore.inputs.input_cache import InputCache, Staging
        from cloudspot.jobstore.inputs.inputs import open_input

        @contextmanager
        def progress(total, here):
            yield lambda count: None

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        source = open_input(DataSpec(url="file://{tmp_path}/data/"))
        InputCache(Path("{tmp_path}/cache")).stage(source, Staging(lambda c: c(), time.sleep, progress, 4))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 10 * BLOCK_BYTES
