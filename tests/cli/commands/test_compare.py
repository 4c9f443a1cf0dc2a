"""``cloudspot compare``."""

import pytest

from cloudspot.cli.screen import output
from cloudspot.errors import TransientError
from cloudspot.jobstore.layout import keys
from cloudspot.local.filestore import FileStore


@pytest.fixture
def two(jobs):
    """Two jobs that differ in their job file, their code, and what came of them."""
    jobs.reclaimed_and_finished("digits-a")
    project = jobs.job_file.parent
    (project / "train.py").write_text("print('goodbye')\n")
    (project / "data.bin").write_bytes(b"\0\1")
    jobs.job_file.write_text(jobs.job_file.read_text() + '[run.env]\nLR = "0.1"\n')
    jobs.failed("digits-b")
    return jobs


def test_json_has_what_differs_and_what_came_of_both(two):
    value = two.run_json("compare", "digits-a", "digits-b")
    assert [(value[name]["id"], value[name]["state"]) for name in "ab"] == [
        ("digits-a", "succeeded"),
        ("digits-b", "failed"),
    ]
    assert value["job_file"] == [{"field": "run.env.LR", "a": None, "b": "0.1"}]
    assert value["code"]["same"] is False
    changes = {one["path"]: (one["change"], one["diff"]) for one in value["code"]["files"]}
    assert changes["data.bin"] == ("added", None)
    change, diff = changes["train.py"]
    assert change == "changed"
    assert diff[2:] == ["@@ -1 +1 @@", "-print('hello')", "+print('goodbye')"]
    assert value["metrics"] == [{"name": "accuracy", "a": 0.975, "b": None}]


def test_text_marks_the_results_that_differ_and_prints_the_diff(two):
    text = two.run("compare", "digits-a", "digits-b").stdout
    results, job_file, code, *diffs = text.split("\n\n")
    lines = {line[2:].split()[0]: [line[0], *line[2:].split()[1:]] for line in results.splitlines()[1:]}
    assert results.splitlines()[0].split() == ["digits-a", "digits-b"]
    assert lines["state"] == ["*", "succeeded", "failed"]
    assert lines["provider"] == [" ", "local", "local"]
    assert lines["metrics.accuracy"] == ["*", "0.975", "-"]
    assert [line.split() for line in job_file.splitlines()] == [
        ["JOB", "FILE", "digits-a", "digits-b"],
        ["run.env.LR", "-", "0.1"],
    ]
    assert code.splitlines()[0] == "the code differs:"
    assert "  + data.bin (2 B)" in code.splitlines()
    assert "  ~ train.py (15 B > 17 B)" in code.splitlines()
    assert "-print('hello')\n+print('goodbye')" in "\n\n".join(diffs)


def test_a_narrow_terminal_folds_what_is_long_and_cuts_nothing(two, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    two.job_file.write_text(two.job_file.read_text() + f'LONG = "{"words " * 20}"\n')
    two.submit("digits-c")
    lines = two.run("compare", "digits-a", "digits-c", "--no-diff").stdout.splitlines()
    assert max(map(len, lines)) <= 40
    assert "".join(lines).count("words") == 20
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)


def test_without_the_diff_the_files_are_only_named(two):
    text = two.run("compare", "digits-a", "digits-b", "--no-diff").stdout
    assert "~ train.py" in text
    assert "hello" not in text
    value = two.run_json("compare", "digits-a", "digits-b", "--no-diff")
    assert {one["diff"] for one in value["code"]["files"]} == {None}


def test_a_job_is_as_itself(two):
    value = two.run_json("compare", "digits-a", "digits-a")
    assert (value["job_file"], value["code"]) == ([], {"same": True, "files": [], "error": None})
    text = two.run("compare", "digits-a", "digits-a").stdout
    assert "*" not in text
    assert "the job files are the same" in text
    assert "the code is the same, " in text


def test_code_that_is_not_there_any_more_hides_nothing_else(two):
    sha256 = two.run_json("show", "digits-b")["code_sha256"]
    two.store.delete(keys.code(sha256))
    value = two.run_json("compare", "digits-a", "digits-b")
    assert (value["code"]["same"], value["code"]["files"]) == (False, None)
    assert sha256 in value["code"]["error"]
    assert "cannot be compared: " in two.run("compare", "digits-a", "digits-b").stdout


def test_code_that_was_changed_in_the_store_is_not_believed(two):
    sha256 = two.run_json("show", "digits-b")["code_sha256"]
    two.store.put(keys.code(sha256), b"something else")
    assert "SHA-256" in two.run_json("compare", "digits-a", "digits-b")["code"]["error"]


def test_an_unknown_job_is_an_error_of_its_own(two):
    assert two.run("compare", "digits-a", "other", status=5).stderr.startswith("error: no job 'other'")


def test_a_dead_store_is_one_line(two, monkeypatch):
    def get(self, key):
        raise TransientError(f"{self.url}: no answer")

    monkeypatch.setattr(FileStore, "get", get)
    monkeypatch.setattr("cloudspot.calls.retrying.SHORT_WAITS", (0.0,) * 4)
    assert two.run("compare", "digits-a", "digits-b", status=7).stderr.count("\n") == 1


def test_of_three_jobs_each_has_a_column_and_what_differs_is_marked(two):
    two.stopped("digits-c")
    value = two.run_json("compare", "digits-a", "digits-b", "digits-c")
    assert [one["state"] for one in value["jobs"]] == ["succeeded", "failed", "stopped"]
    assert value["job_file"] == [{"field": "run.env.LR", "values": [None, "0.1", "0.1"]}]
    assert value["metrics"] == [{"name": "accuracy", "values": [0.975, None, None]}]
    text = two.run("compare", "digits-a", "digits-b", "digits-c").stdout
    assert text.splitlines()[0].split() == ["digits-a", "digits-b", "digits-c"]
    rows = {
        line[2:].split()[0]: [line[0], *line[2:].split()[1:]]
        for line in text.split("\n\n")[0].splitlines()[1:]
    }
    assert rows["state"] == ["*", "succeeded", "failed", "stopped"]
    assert rows["provider"] == [" ", "local", "local", "local"]


@pytest.mark.parametrize("ids", [["digits-a"], ["digits-a"] * 11])
def test_one_job_and_more_than_ten_are_refused(two, ids):
    assert f"name 2 to 10 jobs: got {len(ids)}" in two.run("compare", *ids, status=2).stderr
