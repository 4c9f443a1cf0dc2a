"""Directories for one user alone."""

import os

import pytest

from cloudspot.host.private_directories import make_private


def test_a_new_directory_is_private_and_may_be_asked_for_again(tmp_path):
    path = tmp_path / "above" / "private"
    umask = os.umask(0)
    try:
        make_private(path)
    finally:
        os.umask(umask)
    (path / "kept").touch()
    make_private(path)
    assert path.stat().st_mode & 0o7777 == 0o700
    assert [each.name for each in path.iterdir()] == ["kept"]


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777, 0o1777])
def test_a_directory_that_others_may_look_into_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=f"has mode {mode & 0o777:o}, not 700: it must be private"):
        make_private(tmp_path)


def test_a_link_or_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch(0o600)
    for name in ("link", "file"):
        with pytest.raises(PermissionError, match="is not a directory: it must be private; remove it"):
            make_private(tmp_path / name)


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(PermissionError, match=f"belongs to user {os.getuid()}: it must be private"):
        make_private(tmp_path)
