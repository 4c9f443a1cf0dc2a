"""Which names from a store are paths, and what stands in their way on the disk."""

import os
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloudspot.host.names import SymlinkError, find_symlink, is_safe_name, make_parents


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a/b",
        "...",
        "a b",
        "é",
        "-rf",
        ".hidden",
        "x" * 255,
        "\udce9",
        "a\\b",
        "C:",
        "C:\\a",
        "a/b" * 500,
    ],
)
def test_plain_relative_names_are_safe(name):
    assert is_safe_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/.",
        "a/..",
        "../a",
        "a\0",
        "\ud800",
        "é" * 128,
        "a/" * 1100 + "a",
    ],
)
def test_names_that_lead_out_or_cannot_be_are_not(name):
    assert not is_safe_name(name)


@pytest.mark.full
@given(st.text(alphabet="a./\0é\\:", max_size=12))
@example("C:/a")
@example("..\\a")
def test_a_safe_name_joined_to_a_directory_stays_below_it(name):
    if is_safe_name(name):
        assert os.path.normpath(f"/root/dir/{name}") == f"/root/dir/{name}"


def test_the_directories_above_a_name_are_made_and_those_that_are_there_kept(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/kept").touch()
    assert make_parents(tmp_path, "a/b/c") == tmp_path / "a/b/c"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "kept"]
    assert make_parents(tmp_path, "d") == tmp_path / "d"


def test_no_directory_is_made_behind_a_symlink_or_for_a_name_that_leads_out(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (root / "link").symlink_to(outside)
    with pytest.raises(
        SymlinkError, match=f"{re.escape(str(root))}/link is a symlink, which is not followed"
    ):
        make_parents(root, "link/a/b")
    with pytest.raises(ValueError, match=r"'\.\./outside/a/b' is not a safe relative path"):
        make_parents(root, "../outside/a/b")
    assert list(outside.iterdir()) == []


def test_a_symlink_is_found_wherever_it_stands_below_the_root_but_not_above(tmp_path):
    (tmp_path / "real/a").mkdir(parents=True)
    (tmp_path / "root").symlink_to("real")
    (tmp_path / "real/a/link").symlink_to("nowhere")
    root = tmp_path / "root"
    assert find_symlink(root, "a/b/c") is None
    assert find_symlink(root, "a/link/c") == root / "a/link"
    assert find_symlink(root, "a/link") == root / "a/link"
    with pytest.raises(ValueError, match="safe"):
        find_symlink(root, "../real")
