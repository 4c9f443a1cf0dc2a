"""One file, copied between two computers: what is refused."""

import os

import pytest

from cloudspot.jobstore.remote.file_copy import CopyError, blocks_of, describe


def test_what_has_no_end_is_not_copied(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(CopyError, match="is not a file"):
            describe(type(tmp_path)(path))


def test_a_place_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CopyError, match="file/x: Not a directory"):
        blocks_of(tmp_path / "file" / "x")
