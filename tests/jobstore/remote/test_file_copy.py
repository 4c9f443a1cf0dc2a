"""One file, copied between two computers: what is refused."""

import os

import pytest

from cloudspot.jobstore.remote.file_copy import (
    CopyError,
    blocks_of,
    describe,
    partial_of,
    write_from,
    writing,
)


def test_what_has_no_end_is_not_copied(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(CopyError, match="is not a file"):
            describe(type(tmp_path)(path))


def test_two_copies_to_one_place_do_not_write_into_one_another(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"mine")
    with writing(target) as file:
        with pytest.raises(CopyError, match="target: another copy is writing it"), writing(target):
            pass
        with source.open("rb") as data:
            write_from(target, file, describe(source), 0, data.read)
    assert target.read_bytes() == b"mine"
    with writing(target):  # the next one begins a part of its own
        assert not blocks_of(partial_of(target))
    assert not partial_of(target).exists()
    assert target.read_bytes() == b"mine"


def test_a_place_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CopyError, match="file/x: Not a directory"):
        blocks_of(tmp_path / "file" / "x")
