"""The code bundle, taken apart without trust."""

import errno
import gzip
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import tracemalloc

import pytest

from cloudspot.errors import BundleError, CorruptData
from cloudspot.jobstore.code import extraction
from cloudspot.jobstore.code.bundle import make_bundle
from cloudspot.jobstore.code.extraction import extract_bundle, is_safe_link, read_bundle


def member(name, data=b"", *, kind=tarfile.REGTYPE, link="", mode=0o644, **changes):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(data)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, data


def pack(*members, **options):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", **options) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def extract(data, dest, **options):
    extract_bundle(data, dest, sha256=hashlib.sha256(data).hexdigest(), **options)


def everything(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_files_directories_and_safe_links_are_extracted(tmp_path):
    data = pack(
        member("d", kind=tarfile.DIRTYPE, mode=0o700),
        member("d/link", kind=tarfile.SYMTYPE, link="../a.py"),
        member("a.py", b"1", mode=0o6777),
        member("deep/er/b", b"22", mode=0o400),
    )
    extract(data, tmp_path / "new/dest")
    dest = tmp_path / "new/dest"
    assert everything(dest) == ["a.py", "d", "d/link", "deep", "deep/er", "deep/er/b"]
    assert (dest / "d/link").read_text() == "1"
    assert (dest / "a.py").stat().st_mode & 0o7777 == 0o755 & ~_umask()
    assert (dest / "deep/er/b").stat().st_mode & 0o7777 == 0o644 & ~_umask()
    assert everything(tmp_path / "new") == ["dest", *(f"dest/{name}" for name in everything(dest))]


def test_a_file_gets_the_present_time_whatever_the_archive_says(tmp_path):
    before = time.time()
    extract(pack(member("a", b"1", mtime=0), member("d", kind=tarfile.DIRTYPE)), tmp_path / "dest")
    assert (tmp_path / "dest/a").stat().st_mtime >= before - 2
    assert (tmp_path / "dest/d").stat().st_mtime >= before - 2


def test_a_python_without_tarfiles_filter_extracts_and_refuses_the_same(tmp_path, monkeypatch):
    plain = staticmethod(lambda member, path: member)
    monkeypatch.setattr(extraction._Archive, "extraction_filter", plain)
    test_files_directories_and_safe_links_are_extracted(tmp_path)
    for hostile in HOSTILE.values():
        with pytest.raises(BundleError, match="the code bundle"):
            extract(pack(member("good", b"1"), *hostile), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_hash_is_checked_before_anything_else(tmp_path):
    data = pack(member("../escape", b"x"))
    with pytest.raises(CorruptData, match="SHA-256"):
        extract_bundle(data, tmp_path / "dest", sha256="0" * 64)
    path = tmp_path / "bundle"
    path.write_bytes(pack(member("a")) + b"x")
    with pytest.raises(CorruptData):
        extract_bundle(path, tmp_path / "dest", sha256=hashlib.sha256(pack(member("a"))).hexdigest())
    assert everything(tmp_path) == ["bundle"]


def test_a_bundle_may_be_given_by_its_path(tmp_path):
    data = pack(member("a", b"1"))
    (tmp_path / "bundle").write_bytes(data)
    extract_bundle(tmp_path / "bundle", tmp_path / "dest", sha256=hashlib.sha256(data).hexdigest())
    assert (tmp_path / "dest/a").read_bytes() == b"1"


def test_what_was_there_before_is_replaced_whole(tmp_path):
    dest = tmp_path / "dest"
    dest.mkdir()
    extract(pack(member("a", b"1"), member("old")), dest)
    extract(pack(member("a", b"2")), dest)
    assert everything(tmp_path) == ["dest", "dest/a"]
    assert (dest / "a").read_bytes() == b"2"


KILLED = """
import hashlib, os, signal, sys
from pathlib import Path
from cloudspot.jobstore.code import extraction
extraction._Archive.chmod = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
data = Path(sys.argv[1]).read_bytes()
extraction.extract_bundle(data, Path(sys.argv[2]), sha256=hashlib.sha256(data).hexdigest())
"""


def test_what_a_killed_extraction_has_left_the_next_one_removes(tmp_path):
    data = pack(member("a", b"1"), member("b"))
    (tmp_path / "bundle").write_bytes(data)
    dest = tmp_path / "in/dest"
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "bundle", dest], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(everything(dest.parent)) == 3
    extract(data, dest)
    assert everything(dest.parent) == ["dest", "dest/a", "dest/b"]


def test_a_disk_that_fills_up_keeps_nothing_of_an_extraction(tmp_path, monkeypatch):
    def fail(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(extraction._Archive, "chmod", fail)
    with pytest.raises(BundleError, match="No space left"):
        extract(pack(member("a", b"1")), tmp_path / "dest")
    assert everything(tmp_path) == []


HOSTILE = {
    "absolute": [member("/tmp/cloudspot-hostile")],
    "parent": [member("../escape")],
    "parent inside": [member("a/../../escape")],
    "dot": [member("./a")],
    "dot alone": [member(".", kind=tarfile.DIRTYPE)],
    "empty": [member("")],
    "double slash": [member("a//b")],
    "long": [member("x" * 256)],
    "hard link": [member("a", b"1"), member("b", kind=tarfile.LNKTYPE, link="a")],
    "hard link out": [member("b", kind=tarfile.LNKTYPE, link="/etc/passwd")],
    "device": [member("null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block device": [member("sda", kind=tarfile.BLKTYPE, devmajor=8)],
    "pipe": [member("pipe", kind=tarfile.FIFOTYPE)],
    "contiguous": [member("a", kind=tarfile.CONTTYPE)],
    "sparse": [member("a", kind=tarfile.GNUTYPE_SPARSE)],
    "unknown": [member("a", kind=b"Z")],
    "link out": [member("a", kind=tarfile.SYMTYPE, link="../x")],
    "absolute link": [member("a", kind=tarfile.SYMTYPE, link="/etc")],
    "link up deep": [member("d/a", kind=tarfile.SYMTYPE, link="../../x")],
    "link through a name": [member("a", kind=tarfile.SYMTYPE, link="b/../../x")],
    "link to itself's directory and out": [
        member("d", kind=tarfile.SYMTYPE, link="."),
        member("e", kind=tarfile.SYMTYPE, link="d/.."),
    ],
    "empty link": [member("a", kind=tarfile.SYMTYPE, link="")],
    "written through a link": [
        member("d", kind=tarfile.SYMTYPE, link="sub"),
        member("d/x", b"1"),
        member("sub/y"),
    ],
    "written through a later link": [member("d/x", b"1"), member("d", kind=tarfile.SYMTYPE, link="sub")],
    "below a file": [member("a", b"1"), member("a/b", b"2")],
    "twice": [member("a", b"1"), member("a", b"2")],
    "link over file": [member("a", b"1"), member("a", kind=tarfile.SYMTYPE, link="b")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_writes_nothing_anywhere(tmp_path, name):
    (tmp_path / "in").mkdir()
    data = pack(member("good", b"1"), *HOSTILE[name])
    with pytest.raises(BundleError, match="the code bundle"):
        extract(data, tmp_path / "in/dest")
    assert everything(tmp_path) == ["in"]
    assert not os.path.lexists("/tmp/cloudspot-hostile")


def test_a_pax_header_cannot_rename_a_member_out(tmp_path):
    info, data = member("good", b"1")
    info.pax_headers = {"path": "../../escape"}
    with pytest.raises(BundleError, match="escape"):
        extract(pack((info, data), format=tarfile.PAX_FORMAT), tmp_path / "dest")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "fine"}
    with pytest.raises(BundleError, match="which is not a file"):
        extract(sparse(info), tmp_path / "dest")
    assert everything(tmp_path) == []


def sparse(info):
    """A file with a hole, in GNU's format 1.0: its map, and then its only byte."""
    data = b"1\n0\n1\n".ljust(512, b"\0") + b"x"
    info.size = len(data)
    return pack((info, data), format=tarfile.PAX_FORMAT)


def test_a_small_archive_of_a_huge_file_is_refused(tmp_path):
    data = pack(member("zeros", bytes(5 << 20)))
    assert len(data) < 20_000
    with pytest.raises(BundleError, match="more than"):
        extract(data, tmp_path / "dest", max_bytes=1 << 20)
    # A header that hides its size: what unpacks is bounded as well.
    with pytest.raises(BundleError, match="unpacks to more"):
        extract(gzip.compress(pack_header(4 << 20) + bytes(5 << 20)), tmp_path / "dest", max_bytes=1 << 20)
    assert everything(tmp_path) == []


def pack_header(size, kind=tarfile.XHDTYPE):
    info, _ = member("a")
    info.size, info.type = size, kind
    return info.tobuf()  # An extended header is read whole, whatever its size.


@pytest.mark.full
def test_headers_count_towards_what_an_archive_may_unpack_to(tmp_path):
    data = pack(*(member(f"empty-{number}") for number in range(1000)))
    assert len(data) < 30_000
    extract(data, tmp_path / "dest", max_bytes=1000 * 512 + 2 * tarfile.RECORDSIZE)
    with pytest.raises(BundleError, match="unpacks to more"):
        extract(data, tmp_path / "other", max_bytes=1000 * 512 - 1)
    assert everything(tmp_path / "other") == []


def holes(num):
    """A file of 1.0 in GNU's sparse format that claims so many holes, and holds the map of them."""
    info, _ = member("a")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a"}
    data = b"%d\n" % num + b"0\n0\n" * num
    info.size = len(data)
    return gzip.decompress(pack((info, data), format=tarfile.PAX_FORMAT))


@pytest.mark.full
@pytest.mark.parametrize(
    "make_raw",
    [
        lambda: pack_header(64 << 20) + bytes(65 << 20),
        lambda: pack_header(64 << 20, tarfile.XGLTYPE) + bytes(65 << 20),
        lambda: pack_header(64 << 20, tarfile.GNUTYPE_LONGNAME) + bytes(65 << 20),
        lambda: pack_header(64 << 20, tarfile.GNUTYPE_LONGLINK) + bytes(65 << 20),
        lambda: pack_header(0) * 20_000,
        lambda: holes(4 << 20),
    ],
    ids=["pax", "global", "long-name", "long-link", "a-chain", "holes"],
)
def test_long_headers_are_refused_before_memory_is_used(tmp_path, make_raw):
    data = gzip.compress(make_raw(), compresslevel=1)
    tracemalloc.start()
    try:
        with pytest.raises(BundleError):
            extract(data, tmp_path / "dest")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.full
def test_the_headers_of_many_members_are_not_kept(tmp_path):
    members = []
    for number in range(30):
        info, data = member(f"a{number}")
        info.pax_headers = {f"k{key}": "v" for key in range(3000)}
        members.append((info, data))
    data = pack(*members, format=tarfile.PAX_FORMAT)
    tracemalloc.start()
    try:
        extract(data, tmp_path / "dest")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b", b"not an archive", gzip.compress(b"x" * 600), pack(member("a", b"1" * 9000))[:-200]],
    # The bytes hold the time: without names of their own, each worker would collect other tests.
    ids=["empty", "only-the-magic", "text", "no-tar", "cut-short"],
)
def test_bytes_that_are_no_archive_are_refused(tmp_path, data):
    with pytest.raises(BundleError, match="archive"):
        extract(data, tmp_path / "dest")
    assert everything(tmp_path) == []


@pytest.mark.full
def test_of_six_hundred_damaged_archives_each_is_extracted_inside_or_refused(tmp_path):
    generator = random.Random(11)
    whole = gzip.decompress(
        pack(
            member("é" * 60, b"1" * 700),
            member("d/link", kind=tarfile.SYMTYPE, link="../a"),
            member("a" * 120 + "/b", b"2"),
            format=tarfile.PAX_FORMAT,
        )
    )
    refused = 0
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(5 * 512)] = generator.choice(b"\0/.0127 \xff=LK5xgZ")
        fix_checksums(data)
        try:
            extract(gzip.compress(bytes(data), 1), tmp_path / "in/dest")
        except BundleError:
            refused += 1
        assert {name for name in everything(tmp_path) if "/" not in name} <= {"in"}
        assert {name.split("/")[1] for name in everything(tmp_path) if "/" in name} <= {"dest"}
    assert 60 < refused < 600


def fix_checksums(data):
    """Make each header's checksum right again, or every damage would end there."""
    for start in range(0, len(data), 512):
        if data[start + 257 : start + 262] == b"ustar":
            header = bytearray(data[start : start + 512])
            header[148:156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % sum(header)


@pytest.mark.parametrize(
    ("name", "target", "is_safe"),
    [
        ("a", "b", True), ("a", "b/c", True), ("d/a", "../b", True), ("d/e/a", "../../b", True), ("d/a", "..", True),
        ("a", "..", False), ("a", "../b", False), ("d/a", "../../b", False), ("a", "/b", False), ("a", "", False),
        ("a", "b/../c", False), ("d/a", "../b/../../c", False), ("a", ".", False), ("a", "b//c", False),
        ("a", "b/", False), ("a", "...", True),
    ],
)  # fmt: skip
def test_a_safe_link_climbs_first_and_not_above_the_root(name, target, is_safe):
    assert is_safe_link(name, target) is is_safe


def test_a_bundle_is_read_without_writing_anything(tmp_path):
    (tmp_path / "code" / "lib").mkdir(parents=True)
    (tmp_path / "code" / "train.py").write_bytes(b"print()")
    (tmp_path / "code" / "lib" / "go.sh").write_bytes(b"#!/bin/sh")
    (tmp_path / "code" / "lib" / "go.sh").chmod(0o755)
    (tmp_path / "code" / "link").symlink_to("lib/go.sh")
    bundle = make_bundle(tmp_path / "code", entrypoint="train.py")
    found = {one.name: one for one in read_bundle(bundle.data, sha256=bundle.sha256)}
    assert {name: (one.content, one.is_executable, one.target) for name, one in found.items()} == {
        "train.py": (b"print()", False, None),
        "lib/go.sh": (b"#!/bin/sh", True, None),
        "link": (b"", False, "lib/go.sh"),
    }


def test_a_bundle_that_is_not_the_one_or_not_safe_is_not_read():
    data = pack(member("../x", b"1"))
    with pytest.raises(CorruptData):
        list(read_bundle(data, sha256="0" * 64))
    with pytest.raises(BundleError, match="not a safe relative path"):
        list(read_bundle(data, sha256=hashlib.sha256(data).hexdigest()))
