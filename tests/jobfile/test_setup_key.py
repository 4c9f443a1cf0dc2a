import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile.setup_key import LENGTH, setup_key
from cloudspot.jobfile.spec import spec_from_json

DIGESTS = (("requirements.txt", "1"), ("csrc/deep/a.cu", "2"), ("train.py", "3"))
IMAGE = "it@sha256:" + "0" * 64


def key(digests=DIGESTS, *, python="python3", **run):
    spec = spec_from_json({"name": "x", "run": {"entrypoint": "train.py", "setup": "make", **run}})
    return setup_key(spec.run, train_python=python, digests=digests)


def changed(name):
    return [(one, "changed" if one == name else digest) for one, digest in DIGESTS]


def test_a_key_is_for_what_the_setup_does_and_reads():
    others = [
        key(setup="make all"),
        key(env={"A": "1"}),
        key(image=IMAGE),
        key(python="/opt/python"),
        key(changed("train.py")),
        key([*DIGESTS, ("new.py", "4")]),
        key(DIGESTS[:2]),
    ]
    assert len({key(), *others}) == len(others) + 1
    assert all(len(one) == LENGTH for one in others)


def test_what_comes_after_the_setup_and_the_order_of_the_files_count_for_nothing():
    same = [key(DIGESTS[::-1]), key(args=["--lr", "1"]), key(entrypoint="other.py"), key(secrets=["TOKEN"])]
    assert {*same} == {key()}


def test_a_python_of_the_jobs_own_counts_and_then_not_the_providers():
    assert key(python="/opt/python") != key()
    spec = spec_from_json({"name": "x", "run": {"entrypoint": "t.py", "python": ".venv/bin/python"}})
    keys = {setup_key(spec.run, train_python=one, digests=()) for one in ("python3", "/opt/python")}
    assert len(keys) == 1


def test_only_the_files_that_are_named_count():
    files = ["requirements.txt", "csrc/*"]
    named = key(setup_files=files)
    assert named == key(changed("train.py"), setup_files=files)
    assert named != key(changed("csrc/deep/a.cu"), setup_files=files)
    assert named != key(changed("requirements.txt"), setup_files=files)
    assert key(setup_files=[]) == key((), setup_files=[])


def test_a_pattern_that_fits_no_file_is_refused():
    with pytest.raises(SpecError, match=r"run\.setup_files: no file of the code matches 'requirement\.txt'"):
        key(setup_files=["requirements.txt", "requirement.txt"])
