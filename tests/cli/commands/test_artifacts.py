"""``cloudspot artifacts``."""

import pytest

from cloudspot.jobstore.layout import keys

PREFIX = keys.artifacts_prefix("digits-7k3f")


@pytest.fixture
def job_id(jobs):
    job_id = jobs.reclaimed_and_finished()
    jobs.store.put(PREFIX + "confusion.json", b"[]" * 600)
    jobs.store.put(PREFIX + "plots/a%20b.png", b"png")
    return job_id


def test_they_are_listed_by_name(jobs, job_id):
    found = jobs.run_json("artifacts", "ls", job_id)
    assert [(each["name"], each["bytes"]) for each in found] == [
        ("confusion.json", 1200),
        ("plots/a b.png", 3),
    ]
    assert found[0]["modified"].endswith("+00:00")
    lines = jobs.run("artifacts", "ls", job_id).stdout.splitlines()
    assert lines[0].split() == ["SIZE", "MODIFIED", "NAME"]
    assert lines[1].split()[:2] == ["1.2", "KiB"]
    assert lines[2].endswith("  plots/a b.png")
    assert [each["name"] for each in jobs.run_json("artifacts", "ls", job_id, "plots")] == ["plots/a b.png"]


def test_a_job_without_any_says_so(jobs):
    jobs.submit("new-1")
    assert jobs.run("artifacts", "ls", "new-1").stdout == "job new-1 has no artifacts\n"
    assert jobs.run_json("artifacts", "download", "new-1") == []


def test_they_are_downloaded_once(jobs, job_id, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert jobs.run("artifacts", "download", job_id).stdout == (
        "2 files (1.2 KiB) downloaded to digits-7k3f-artifacts\n"
    )
    assert (tmp_path / "digits-7k3f-artifacts" / "plots" / "a b.png").read_bytes() == b"png"
    assert jobs.run("artifacts", "download", job_id).stdout == (
        "0 files (0 B) downloaded to digits-7k3f-artifacts; 2 were already there\n"
    )


def test_patterns_choose(jobs, job_id, tmp_path):
    target = tmp_path / "to"
    found = jobs.run_json("artifacts", "download", job_id, "*.png", "--to", str(target))
    assert found == [
        {
            "name": "plots/a b.png",
            "file": str(target / "plots/a b.png"),
            "bytes": 3,
            "state": "downloaded",
            "error": None,
        }
    ]
    assert [
        each["state"] for each in jobs.run_json("artifacts", "download", job_id, "--to", str(target))
    ] == [
        "downloaded",
        "present",
    ]
    result = jobs.run("artifacts", "download", job_id, "*.gif", "--to", str(target), status=1)
    assert result.stderr.startswith(
        "error: no artifact of job digits-7k3f matches '*.gif'; list them with: cloudspot artifacts ls "
        f"digits-7k3f --store {jobs.store.url}"
    )


def test_what_cannot_be_put_where_its_name_says_is_named(jobs, job_id, tmp_path):
    jobs.store.put(keys.artifact(job_id, "\0/\x1b[2Jout"), b"1")
    result = jobs.run("artifacts", "download", job_id, "--to", str(tmp_path / "to"), status=1)
    assert result.stdout == f"2 files (1.2 KiB) downloaded to {tmp_path}/to\n"
    assert result.stderr == "warning: /out was not downloaded: its name is not a safe relative path\n"
    found = jobs.run_json("artifacts", "download", job_id, "--to", str(tmp_path / "to"), status=1)
    assert [(each["state"], each["file"] is None) for each in found] == [
        ("failed", True),
        ("present", False),
        ("present", False),
    ]
