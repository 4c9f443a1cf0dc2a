"""Whatever the names in a store are, nothing outside the directory that they are written to changes."""

import hashlib
import io
import os
import stat
import tarfile
import tempfile
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.stores.memorystore import InMemoryStore

from cloudspot.agent.delivery.artifact_sync import ArtifactSync
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import is_key
from cloudspot.jobstore.checkpoints import fetching
from cloudspot.jobstore.code.extraction import extract_bundle
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import File, Manifest, Part, Seat
from cloudspot.jobstore.logs.stored_artifacts import download, is_present, list_artifacts
from cloudspot.local.filestore import FileStore

pytestmark = pytest.mark.full


PREFIX = keys.artifacts_prefix("x")
SOAK_EXAMPLES = int(os.environ.get("CLOUDSPOT_SOAK_NAMES", "20000"))
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)

_SEGMENTS = (
    *("..", ".", "", "a", "b", "link", "file-link", "OUTSIDE", "keep", "sub", "LINK", "~", "-rf", "a\nb"),
    *("\0", "..\\..", "C:", "%2e%2e", "é" * 130, "x" * 256, "\udcff", "\ud800"),
)
segments = st.sampled_from(_SEGMENTS) | st.text(max_size=4)
names = st.lists(segments, min_size=1, max_size=5).map("/".join) | st.just("d/" * 1200 + "e")
"""``OUTSIDE`` becomes the absolute path of the directory that must not change."""

_some_names = st.lists(names, min_size=1, max_size=4)
_some_members = st.lists(st.tuples(names, st.none() | names), min_size=1, max_size=4)

escapes = [
    example(texts=["OUTSIDE/escape"]),
    example(texts=["../outside/keep"]),
    example(texts=["link/escape"]),
    example(texts=["link/sub/keep", "file-link"]),
    example(texts=["a/../../outside/escape"]),
]


def all_escapes(test):
    for one in escapes:
        test = one(test)
    return test


class Place:
    """A root with links that lead out, and what lies outside of it."""

    def __init__(self, base):
        self.outside, self.root = base / "outside", base / "root"
        (self.outside / "sub").mkdir(parents=True)
        for name in ("keep", "sub/keep"):
            (self.outside / name).write_text("kept")
        self.root.mkdir()
        self.plant_links(self.root)
        self.before = self._outside()

    def plant_links(self, directory):
        (directory / "link").symlink_to(self.outside)
        (directory / "file-link").symlink_to(self.outside / "keep")
        (directory / "b").symlink_to("..")

    def name(self, text):
        return text.replace("OUTSIDE", str(self.outside))

    def check(self):
        assert self._outside() == self.before
        assert {path.name for path in self.root.parent.iterdir()} == {"outside", "root"}

    def _outside(self):
        found = {}
        for path in [self.outside, *sorted(self.outside.rglob("*"))]:
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found[path] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
        return found


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    base = tmp_path_factory.mktemp("places")

    class Made:
        def __enter__(self):
            self._directory = tempfile.TemporaryDirectory(dir=base)
            return Place(Path(self._directory.name))

        def __exit__(self, *_):
            self._directory.cleanup()

    return Made


def put_artifacts(place, texts):
    """Put an artifact under each name that can be the end of a key, quoted in the usual way or wholly."""
    store = InMemoryStore()
    for text in texts:
        for safe in ("/", ""):
            with suppress(UnicodeEncodeError):
                key = PREFIX + quote(os.fsencode(place.name(text)), safe=safe)
                if is_key(key):
                    store.put(key, b"written")
    return store


@settings(max_examples=100)
@given(texts=_some_names)
@all_escapes
def test_artifacts_that_a_node_brings_back(places, texts):
    with places() as place:
        store = put_artifacts(place, texts)
        work = place.root / "node"
        (work / "artifacts").mkdir(parents=True)
        place.plant_links(work / "artifacts")
        ArtifactSync(store, "x", work / "artifacts", seat=Seat(1, 0)).take_root()
        place.check()
        assert {path.name for path in work.iterdir()} == {"artifacts"}


@settings(max_examples=100)
@given(texts=_some_names)
@all_escapes
def test_artifacts_that_the_command_line_downloads(places, texts):
    with places() as place:
        store = put_artifacts(place, texts)
        target = place.root / "to"
        target.mkdir()
        place.plant_links(target)
        found = list_artifacts(store, "x")
        for artifact in found:
            is_present(artifact, target)
        problems = download(store, found, target, num_threads=1)
        place.check()
        assert {path.name for path in place.root.iterdir()} == {"to", "link", "file-link", "b"}
        assert len(problems) == len(found)


@settings(max_examples=100)
@given(members=_some_members)
@example(members=[("../outside/keep", None)])
@example(members=[("l", "../outside"), ("l/escape", None)])
@example(members=[("a/l", ".."), ("m", "a/l/.."), ("m/outside/keep", None)])
def test_members_of_a_code_bundle(places, members):
    with places() as place:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
            for text, target in members:
                info = tarfile.TarInfo(place.name(text))
                info.size = 7
                if target is not None:
                    info.type, info.linkname, info.size = tarfile.SYMTYPE, place.name(target), 0
                with suppress(UnicodeEncodeError, ValueError):
                    archive.addfile(info, io.BytesIO(b"written"))
        data = buffer.getvalue()
        with suppress(CloudspotError):
            extract_bundle(data, place.root / "code", sha256=hashlib.sha256(data).hexdigest())
            for path in (place.root / "code").rglob("*"):
                resolved = Path(os.path.realpath(path))
                assert resolved == place.root / "code" or place.root / "code" in resolved.parents
        place.check()
        assert {path.name for path in place.root.iterdir()} <= {"code", "link", "file-link", "b"}


@settings(max_examples=100)
@given(texts=_some_names)
@example(texts=["../outside", "escape"])
@example(texts=["link/escape", "a"])
@example(texts=["d", "../../outside/escape"])
@example(texts=["OUTSIDE/d", "a"])
@example(texts=["link", "a"])
def test_directories_and_files_of_a_checkpoint(places, texts):
    directory, *files = texts
    with places() as place:
        part = Part(
            generation=1, step=1, round=0, rank=0, num_parts=1, kind="directory", size=0, chunks=(),
            files=tuple(File(path=place.name(text), size=0, mode=0o644) for text in files),
            directory=place.name(directory), sealed_at=AT, writer="w",
        )  # fmt: skip
        manifest = Manifest(
            generation=1, step=1, round=0, kind="directory", size=0, parts=(part,), at=AT, writer="w"
        )
        with suppress(CloudspotError):
            fetching.fetch(InMemoryStore(), "x", manifest, place.root)
        place.check()


@settings(max_examples=100)
@given(texts=_some_names)
@all_escapes
def test_keys_of_a_store_in_a_directory(places, texts):
    with places() as place:
        store = FileStore(place.root.as_uri())
        for text in texts:
            key = place.name(text)
            for act in (
                lambda key=key: store.put(key, b"written"),
                lambda key=key: store.put(key, b"written", if_absent=True),
                lambda key=key: store.get(key),
                lambda key=key: list(store.list_objects(key)),
                lambda key=key: store.delete(key),
            ):
                with suppress(ValueError, CloudspotError):
                    found = act()
                    assert found is None or isinstance(found, list) or found == b"written"
        place.check()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("test", "strategies"),
    [
        (test_artifacts_that_a_node_brings_back, {"texts": _some_names}),
        (test_artifacts_that_the_command_line_downloads, {"texts": _some_names}),
        (test_members_of_a_code_bundle, {"members": _some_members}),
        (test_directories_and_files_of_a_checkpoint, {"texts": _some_names}),
        (test_keys_of_a_store_in_a_directory, {"texts": _some_names}),
    ],
)
def test_many_more_names(places, test, strategies):
    """A failure prints its names, and the blob that repeats it."""
    many = settings(max_examples=SOAK_EXAMPLES, print_blob=True)
    many(given(**strategies)(test.hypothesis.inner_test))(places=places)
