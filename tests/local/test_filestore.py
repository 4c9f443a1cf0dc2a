"""The object store in a directory."""

import errno
import fcntl
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stores.directorystore import directory_store

from cloudspot.errors import (
    AuthError,
    CloudspotError,
    CorruptData,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreRefused,
    TransientError,
)
from cloudspot.host.partial_files import STALE_SECONDS
from cloudspot.jobstore.access.stored_records import find_bytes, find_record
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Exit
from cloudspot.local import filestore
from cloudspot.local.filestore import STAGING, FileStore
from cloudspot.testing.storekit import ObjectStoreTests


@pytest.fixture
def store(tmp_path):
    return directory_store(tmp_path / "store")


@pytest.mark.costly
class TestPromises(ObjectStoreTests):
    """The store in a directory keeps the promises of a store."""


def keys_of(store, prefix="", **options):
    return [meta.key for meta in store.list_page(prefix, **options).objects]


def test_a_failed_put_lets_go_of_the_callers_mapping(store, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(filestore.os, "write", fail)
    mapped = mmap.mmap(-1, 4096)
    with memoryview(mapped) as view, pytest.raises(TransientError) as caught:
        store.put("a", view)
    mapped.close()
    assert caught.value.__traceback__ is not None


def test_delete_takes_the_object_and_is_safe_to_repeat(store):
    store.put("a/b/c", b"1")
    store.put("a/d", b"2")
    store.delete("a/b/c")
    store.delete("a/b/c")
    store.delete("a/d/e")
    store.delete("a")
    store.delete("never/was")
    assert keys_of(store) == ["a/d"]
    assert not (store.root / "a/b").exists()
    store.put("a/b/c", b"3", if_absent=True)
    assert store.get("a/b/c") == b"3"


@pytest.mark.parametrize("key", ["a/" + "x" * 256, STAGING, STAGING + "/x"])
def test_a_key_that_no_file_may_have_is_refused(store, key):
    for call in (store.get, store.head, store.delete, store.open_upload):
        with pytest.raises(ValueError, match="key"):
            call(key)
    with pytest.raises(ValueError, match="key"):
        store.put(key, b"")


def test_a_listing_cannot_leave_the_directory(store, tmp_path):
    (tmp_path / "outside").write_text("secret")
    store.put("a", b"")
    for prefix in ("../", "a/../../", "/etc/", "//"):
        with pytest.raises(ValueError, match="key"):
            store.list_page(prefix)
    assert keys_of(store, "..") == []


def test_a_listing_is_in_byte_order_where_files_and_directories_interleave(store):
    keys = ["a-b", "a.c/x", "a/b", "a/b-c", "a/b0/z", "a0", "aa", "A", "b/", "a b"]
    keys = [key for key in keys if not key.endswith("/")]
    for key in keys:
        store.put(key, b"")
    assert keys_of(store) == sorted(keys)
    assert keys_of(store, "a/") == ["a/b", "a/b-c", "a/b0/z"]
    assert keys_of(store, "a/b") == ["a/b", "a/b-c", "a/b0/z"]
    assert keys_of(store, "a", after="a-b") == ["a.c/x", "a/b", "a/b-c", "a/b0/z", "a0", "aa"]
    assert keys_of(store, "a", after="a/b0") == ["a/b0/z", "a0", "aa"]
    assert keys_of(store, "nothing/here") == []


segments = st.text(alphabet="a-./0~ ", min_size=1, max_size=3)
trees = st.lists(st.lists(segments, min_size=1, max_size=3).map("/".join), max_size=12)


@pytest.mark.full
@settings(max_examples=60)
@given(
    trees, st.text(alphabet="a-./0~ ", max_size=4), st.text(alphabet="a-./0~ ", max_size=5), st.integers(1, 4)
)
def test_pages_of_any_tree_are_the_sorted_keys_with_the_prefix(tmp_path_factory, keys, prefix, after, limit):
    store = FileStore(f"file://{tmp_path_factory.mktemp('tree')}")
    stored = set()
    for key in keys:
        try:
            store.put(key, b"")
        except (ValueError, CloudspotError):
            continue
        stored.add(key)
    if any(segment in ("", ".", "..") for segment in prefix.split("/")[:-1]):
        return
    expected = sorted(key for key in stored if key.startswith(prefix) and key > after)
    found, mark = [], after
    while mark is not None:
        page = store.list_page(prefix, after=mark, limit=limit)
        assert len(page.objects) <= limit
        found += [meta.key for meta in page.objects]
        mark = page.next_after
    assert found == expected
    assert [meta.key for meta in store.list_objects(prefix)] == sorted(
        k for k in stored if k.startswith(prefix)
    )


def test_empty_directories_foreign_names_and_symlinks_are_no_objects(store, tmp_path):
    store.put("a", b"")
    (store.root / "empty/deep").mkdir(parents=True)
    (store.root / "naïve").write_text("")
    (store.root / "link").symlink_to(tmp_path)
    assert keys_of(store) == ["a"]
    with pytest.raises(ObjectMissing):
        store.head("empty/deep")


def test_an_upload_that_is_not_committed_leaves_nothing(store):
    with pytest.raises(RuntimeError), store.open_upload("k") as upload:
        upload.write(b"ab")
        raise RuntimeError
    assert keys_of(store) == []
    assert list((store.root / STAGING).iterdir()) == []


def test_of_two_create_only_uploads_the_second_to_commit_is_refused(store):
    first, second = store.open_upload("k", if_absent=True), store.open_upload("k", if_absent=True)
    first.write(b"1")
    second.write(b"2")
    second.commit()
    with pytest.raises(ObjectExists):
        first.commit()
    assert store.get("k") == b"2"
    assert list((store.root / STAGING).iterdir()) == []


def test_an_object_cannot_lie_below_another(store):
    store.put("a/b", b"")
    for key in ("a", "a/b/c"):
        for if_absent in (False, True):
            with pytest.raises(CloudspotError, match="above or below"):
                store.put(key, b"", if_absent=if_absent)
    assert keys_of(store) == ["a/b"]


def test_what_a_dead_writer_left_is_swept_and_a_live_one_is_spared(store):
    store.put("a", b"")
    staging = store.root / STAGING
    (staging / "dead").write_text("half")
    (staging / "alive").write_text("half")
    long_ago = time.time() - STALE_SECONDS - 1
    os.utime(staging / "dead", (long_ago, long_ago))
    FileStore(store.url).put("b", b"")
    assert [path.name for path in staging.iterdir()] == ["alive"]
    assert keys_of(store) == ["a", "b"]
    assert keys_of(store, STAGING + "/") == []


def test_what_a_killed_writer_has_staged_goes_with_the_next_write(store):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, store.url, "write"],
        env=os.environ | {"PYTHONPATH": str(Path(filestore.__file__).parents[2])},
    )
    assert done.returncode == -signal.SIGKILL
    assert len(list((store.root / STAGING).iterdir())) == 1
    store.delete("jobs/x/spec")
    store.put("index/x", b"the note of a removal")
    assert list((store.root / STAGING).iterdir()) == []


def test_a_live_writer_of_another_process_is_not_swept(store):
    with store.open_upload("k") as upload:
        upload.write(b"1")
        put = "import sys; from cloudspot.local.filestore import FileStore; FileStore(sys.argv[1]).put('o', b'')"
        subprocess.run([sys.executable, "-c", put, store.url], check=True)
        upload.commit()
    assert store.get("k") == b"1"


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_in_a_directory_of_the_users_secrets_are_for_their_owner_alone(store, umask, monkeypatch):
    """Files and directories besides follow the umask: users may share the directory."""
    store.root.chmod(0o777)
    staged, publish = [], FileStore._publish

    def look(self, path, key, **options):
        staged.append(path.stat().st_mode & 0o777)
        publish(self, path, key, **options)

    monkeypatch.setattr(FileStore, "_publish", look)
    before = os.umask(umask)
    try:
        store.put(keys.secrets("x", 0), b"token", if_absent=True)
        store.put(keys.secrets("x", 0), b"token")
        store.put(keys.spec("x"), b"spec")
    finally:
        os.umask(before)
    assert staged == [0o600, 0o600, 0o666 & ~umask]
    assert (store.root / "jobs/x/secrets").stat().st_mode & 0o777 == 0o600
    assert (store.root / "jobs/x/spec").stat().st_mode & 0o777 == 0o666 & ~umask


def test_no_symlink_below_the_root_is_followed_and_the_root_may_be_one(store, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/spec").write_bytes(b"kept")
    store.root.rmdir()
    store.root.symlink_to(tmp_path / "real")
    store.put("a", b"1")
    assert (tmp_path / "real/a").read_bytes() == b"1"
    (store.root / "jobs").mkdir()
    (store.root / "jobs/x").symlink_to(tmp_path / "outside")
    (store.root / "file").symlink_to(tmp_path / "outside/spec")
    for key, link in (("jobs/x/spec", "jobs/x"), ("file", "file")):
        for call in (
            store.get,
            store.head,
            store.delete,
            store.open_upload,
            lambda key: store.put(key, b"2"),
        ):
            with pytest.raises(
                StoreRefused, match=f"{re.escape(str(link))} is a symlink, which is not followed; remove it"
            ):
                call(key)
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "outside").iterdir()] == [
        ("spec", b"kept")
    ]
    assert keys_of(store) == ["a"]


def test_an_upload_swept_under_its_writer_is_an_unknown_outcome_not_a_success(store):
    for if_absent in (False, True):
        upload = store.open_upload("k", if_absent=if_absent)
        upload.write(b"1")
        for path in (store.root / STAGING).iterdir():
            path.unlink()
        with pytest.raises(TransientError, match="cannot write k"):
            upload.commit()
    assert keys_of(store) == []


@pytest.mark.full
def test_threads_of_one_store_create_and_delete_in_each_others_directories(store):
    def work(number):
        for count in range(150):
            store.put(f"d/e/{number}", b"%d" % count, if_absent=True)
            assert store.get(f"d/e/{number}") == b"%d" % count
            store.delete(f"d/e/{number}")
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 1, 2, 3]
    assert keys_of(store) == []


KILLED = """
import os, signal, sys
from cloudspot.local import filestore
from cloudspot.local.filestore import FileStore
store = FileStore(sys.argv[1])
kill = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "write":
    upload = store.open_upload("jobs/x/spec", if_absent=True)
    upload.write(b"half")
    kill()
if sys.argv[2] == "sync":
    filestore._sync_file = kill
if sys.argv[2] == "link":
    filestore.Path.hardlink_to = kill
store.put("jobs/x/spec", b"whole", if_absent=True)
"""


@pytest.mark.parametrize("moment", ["write", "sync", "link"])
def test_a_writer_killed_in_the_middle_of_a_put_leaves_no_visible_object(store, moment):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, store.url, moment],
        env=os.environ | {"PYTHONPATH": str(Path(filestore.__file__).parents[2])},
    )
    assert done.returncode == -signal.SIGKILL
    assert keys_of(store) == []
    store.put("jobs/x/spec", b"after", if_absent=True)
    assert store.get("jobs/x/spec") == b"after"


def test_the_file_and_every_new_directory_entry_are_synced_before_a_put_returns(store, monkeypatch):
    synced = []
    monkeypatch.setattr(filestore, "_sync_directory", synced.append)
    monkeypatch.setattr(filestore, "_sync_file", lambda descriptor: synced.append("file"))
    store.put("a/b/c", b"")
    root = store.root
    assert {root, root / "a", root / "a/b", "file"} <= set(synced)
    assert synced[-1] == root / "a/b"
    synced.clear()
    store.put("a/b/d", b"")
    assert synced == ["file", root / "a/b"]
    # Another process's directory: its entry may not be synced yet.
    other = FileStore(store.url)
    synced.clear()
    other.put("a/b/e", b"")
    assert {root, root / "a", root / "a/b"} <= set(synced)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system has no posix_fadvise")
def test_a_large_file_does_not_take_the_memory_that_caches_what_others_read(store, monkeypatch):
    """Chunks of checkpoints filled it, and what the training read had to make room."""
    advised, advise = [], os.posix_fadvise

    def noted(descriptor, offset, length, advice):
        advised.append((os.fstat(descriptor).st_size, offset, length, advice))
        advise(descriptor, offset, length, advice)
        raise OSError(errno.EINVAL, "not on this file system")

    monkeypatch.setattr(os, "posix_fadvise", noted)
    large = bytes(8 << 20)
    store.put("large", large)
    store.put("small", large[1:])
    assert advised == [(8 << 20, 0, 0, os.POSIX_FADV_DONTNEED)]
    assert store.get("large") == large


@pytest.mark.parametrize(
    "sizes", [(8 << 20,), ((8 << 20) + 1,), ((8 << 20) + 1, 8 << 20, 9 << 20), (1, 9 << 20)]
)
def test_large_pieces_are_stored_as_they_are(store, sizes):
    pieces = [random.Random(size).randbytes(size) for size in sizes]
    with store.open_upload("large") as upload:
        for piece in pieces:
            upload.write(piece)
        upload.commit()
    assert store.get("large") == b"".join(pieces)


@pytest.mark.usefixtures("on_ext4")
@pytest.mark.parametrize("refuses", [True, False])
def test_a_disk_that_takes_direct_writes_in_part_gets_the_rest_as_usual(store, monkeypatch, refuses):
    write, taken = os.write, []

    def answer(descriptor, data):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            if len(taken) == 2 and refuses:
                raise OSError(errno.EINVAL, "not any more")
            if len(taken) == 2:  # cut short in a block
                fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
                data = data[:100]
            count = write(descriptor, data)  # refused where the memory does not begin at a block
            taken.append(count)
            return count
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", answer)
    data = random.Random(1).randbytes(9 << 20)
    store.put("large", data)
    assert store.get("large") == data
    assert taken == [1 << 20, 1 << 20] + ([] if refuses else [100])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EACCES, AuthError),
        (errno.EROFS, AuthError),
        (errno.ENOSPC, TransientError),
        (errno.EIO, TransientError),
    ],
)
def test_an_error_of_the_system_says_what_to_do_next_and_keeps_its_cause(store, monkeypatch, code, kind):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filestore.os, "write", fail)
    with pytest.raises(kind, match=f"cannot write a/b: {os.strerror(code)}") as caught:
        store.put("a/b", b"x")
    assert type(caught.value) is kind
    assert caught.value.__cause__.errno == code
    assert keys_of(store) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_the_right_to_write_is_an_auth_error(store):
    store.put("a", b"")
    store.root.chmod(0o500)
    with pytest.raises(AuthError):
        store.put("b/c", b"")
    store.root.chmod(0o700)


def test_a_filesystem_without_hard_links_is_refused_by_name(store, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(filestore.Path, "hardlink_to", refuse)
    with pytest.raises(StoreRefused, match="no hard links"):
        store.put("a", b"", if_absent=True)
    assert keys_of(store) == []


@pytest.mark.parametrize(
    "url",
    [
        "file://host/a",
        "file:a",
        "/a",
        "s3://b",
        "file://",
        "file:///",
        "file:///a?b=c",
        "file:///a#b",
        "file:///a%00b",
    ],
)
def test_a_url_that_is_no_absolute_path_is_a_spec_error(url):
    with pytest.raises(SpecError, match="file:///absolute/path"):
        FileStore(url)


def test_a_url_may_quote_its_path_and_opening_does_no_io(tmp_path):
    store = FileStore(f"file://localhost{tmp_path}/with%20space/../s%23")
    assert store.root == tmp_path / "s#"
    assert list(tmp_path.iterdir()) == []
    assert keys_of(store) == []
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_the_store_creates_is_private(tmp_path):
    store = FileStore(f"file://{tmp_path}/store")
    store.establish()
    assert store.root.stat().st_mode & 0o777 == 0o700


def test_a_presigned_url_names_the_file(store):
    store.put("a/b c", b"hello")
    parts = urlsplit(store.presign_get("a/b c", seconds=1))
    assert parts.scheme == "file"
    assert Path(unquote(parts.path)).read_bytes() == b"hello"


def test_the_pages_of_a_large_directory_come_of_one_walk(tmp_path, monkeypatch):
    store = directory_store(tmp_path / "store")
    monkeypatch.setattr(filestore, "_PAGE_SIZE", 3)
    names = [f"k{number}" for number in range(7)]
    for name in names:
        store.put(name, b"")
    (store.root / "k9").symlink_to(tmp_path)
    scans = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scans.append(path) or scandir(path))
    pages = list(store.list_pages(""))
    assert [one.key for page in pages for one in page.objects] == names
    assert [name for page in pages for name in page.skipped] == ["k9"]
    assert len([path for path in scans if str(path).rstrip("/") == str(store.root)]) == 1
    assert [one.key for page in store.list_pages("k", after="k4") for one in page.objects] == ["k5", "k6"]


@pytest.mark.full
def test_an_object_of_any_size_takes_little_memory(store, huge_file):
    """As an agent that a training has taken over may leave one, under the key of any record."""
    store.put("jobs/a/spec", b"{}")
    huge_file(path=store.root / "jobs/a/spec")
    for read in (store.get, lambda key: find_bytes(store, key), lambda key: find_record(store, key, Exit)):
        with pytest.raises(CorruptData, match=r"jobs/a/spec: it is longer than 134217728 bytes$"):
            read("jobs/a/spec")
    assert store.get_range("jobs/a/spec", (4 << 30) - 1, 5) == b"\0"


@pytest.fixture
def made(tmp_path):
    """The store of a job that was submitted."""
    store = FileStore(f"file://{tmp_path}/mnt/disk")
    store.establish()
    store.put("jobs/x/spec", b"1")
    return store


REQUESTS = {
    "put": lambda store: store.put("jobs/x/journal/00000001", b"2"),
    "create": lambda store: store.put("jobs/x/spec", b"2", if_absent=True),
    "get": lambda store: store.get("jobs/x/spec"),
    "get_range": lambda store: store.get_range("jobs/x/spec", 0, 1),
    "get_range_into": lambda store: store.get_range_into("jobs/x/spec", 0, bytearray(1)),
    "head": lambda store: store.head("jobs/x/spec"),
    "list_page": lambda store: store.list_page("jobs/"),
    "list_objects": lambda store: list(store.list_objects("jobs/")),
    "delete": lambda store: store.delete("jobs/x/spec"),
    "establish": lambda store: store.establish(),
}


def vanish(root):
    root.rename(root.with_name("away"))


def leave_empty(root):
    vanish(root)
    root.mkdir()


def mount_another(root):
    vanish(root)
    FileStore(root.as_uri()).establish()
    FileStore(root.as_uri()).put("jobs/x/spec", b"another's")


def leave_unreadable(root):
    vanish(root)
    root.symlink_to(root)  # as root, no directory is unreadable


PLACES = [vanish, leave_empty, mount_another, leave_unreadable]


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("change", PLACES)
def test_a_place_that_is_not_the_stores_is_an_outage_and_is_left_as_it_is(made, change, request_of):
    """An unmounted disk leaves an empty directory, in which a journal was begun anew."""
    change(made.root)
    before = sorted(made.root.parent.rglob("*"))
    with pytest.raises(TransientError, match=r"another store is mounted|not mounted"):
        request_of(made)
    assert sorted(made.root.parent.rglob("*")) == before
    if made.root.is_symlink():
        made.root.unlink()
    elif made.root.exists():
        shutil.rmtree(made.root)
    made.root.with_name("away").rename(made.root)
    assert made.get("jobs/x/spec") == b"1"
    made.put("jobs/x/journal/00000001", b"2")


@pytest.mark.parametrize("change", PLACES)
def test_an_upload_that_outlasts_its_disk_is_no_put(made, change):
    upload = made.open_upload("jobs/x/chunk")
    upload.write(b"1")
    change(made.root)
    with pytest.raises(TransientError):
        upload.commit()
    assert not (made.root / "jobs/x/chunk").exists()


@pytest.mark.parametrize("change", PLACES)
def test_a_disk_that_vanishes_during_a_listing_ends_it_with_an_error(made, change, monkeypatch):
    monkeypatch.setattr(filestore, "_PAGE_SIZE", 1)
    made.put("jobs/y/spec", b"1")
    pages = made.list_pages("jobs/")
    assert [one.key for one in next(pages).objects] == ["jobs/x/spec"]
    change(made.root)
    with pytest.raises(TransientError):
        list(pages)


def test_a_store_that_was_opened_for_a_job_is_held_to_that_jobs_id(made):
    wanted = made.establish()
    mount_another(made.root)
    other = FileStore(made.url)
    other.hold_to(wanted)
    with pytest.raises(TransientError, match="another store is mounted there"):
        other.get("jobs/x/spec")
    any_store = FileStore(made.url)
    any_store.hold_to()
    assert any_store.get("jobs/x/spec") == b"another's"


def test_a_mark_that_may_not_be_read_is_a_missing_right_only_if_it_never_could(made, monkeypatch):
    def deny(*args, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    new = FileStore(made.url)
    new.hold_to()
    made.head("jobs/x/spec")
    monkeypatch.setattr(filestore, "open", deny, raising=False)
    with pytest.raises(AuthError, match="store-id"):
        new.list_page("")
    with pytest.raises(TransientError, match="not mounted"):
        made.list_page("")


def test_nothing_but_establish_makes_the_root(tmp_path):
    store = FileStore(f"file://{tmp_path}/a/b")
    with pytest.raises(TransientError, match="its directory is not there"):
        store.put("x", b"")
    assert store.list_page("").objects == ()
    assert list(tmp_path.iterdir()) == []
    store.establish()
    assert keys_of(store) == ["store-id"]


@pytest.mark.parametrize("mark", [b"", b"0a", b"0A" * 16, b"0a" * 17, b"\xff" * 32, b"0a" * 15 + b"0\n"])
def test_a_mark_that_is_damaged_is_an_outage_and_is_left_as_it_is(made, mark):
    (made.root / "store-id").write_bytes(mark)
    for store in (made, FileStore(made.url)):
        with pytest.raises(TransientError, match="another store is mounted there"):
            store.establish()
    assert (made.root / "store-id").read_bytes() == mark


def test_of_two_submissions_to_a_new_root_both_get_one_id(tmp_path):
    url = f"file://{tmp_path}/a/b"
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: FileStore(url).establish(), range(32)))
    assert len(ids) == 1
    assert FileStore(url).establish() in ids
