"""Where two jobs differ."""

import pytest

from cloudspot.jobstore.code.extraction import Member
from cloudspot.story.comparison import (
    MAX_DIFF_LINES,
    MAX_TEXT_BYTES,
    code_differences,
    code_files,
    job_file_differences,
    results,
)


def member(name, content=b"", *, executable=False, target=None):
    return Member(name=name, content=content, is_executable=executable, target=target)


def differences(a, b):
    return {one["path"]: one for one in code_differences(code_files(a), code_files(b))}


def test_files_are_added_removed_or_changed_and_the_same_ones_are_left_out():
    a = [member("same", b"x"), member("gone", b"one\n"), member("other", b"a\nb\n")]
    b = [member("same", b"x"), member("new", b"two\n"), member("other", b"a\nc\n")]
    found = differences(a, b)
    assert {path: (one["change"], one["a_bytes"], one["b_bytes"]) for path, one in found.items()} == {
        "gone": ("removed", 4, None),
        "new": ("added", None, 4),
        "other": ("changed", 4, 4),
    }
    assert found["gone"]["diff"] == ["--- a/gone", "+++ /dev/null", "@@ -1 +0,0 @@", "-one"]
    assert found["new"]["diff"] == ["--- /dev/null", "+++ b/new", "@@ -0,0 +1 @@", "+two"]
    assert found["other"]["diff"][2:] == ["@@ -1,2 +1,2 @@", " a", "-b", "+c"]


@pytest.mark.parametrize("content", [b"\0", b"\xff\xfe", b"x" * (MAX_TEXT_BYTES + 1)])
def test_what_is_no_text_or_too_large_has_no_diff(content):
    assert differences([member("a", content)], [])["a"]["diff"] is None
    assert differences([member("a", b"text")], [member("a", content)])["a"]["diff"] is None


def test_a_long_diff_is_cut_and_says_so():
    text = "".join(f"{number}\n" for number in range(1000)).encode()
    diff = differences([], [member("a", text)])["a"]["diff"]
    assert len(diff) == MAX_DIFF_LINES + 1
    assert diff[-1] == f"... {1000 + 3 - MAX_DIFF_LINES} more lines"


def test_a_mode_or_what_a_symlink_leads_to_is_a_change_too():
    assert differences([member("a", b"x")], [member("a", b"x", executable=True)])["a"]["diff"] == []
    found = differences([member("a", target="b")], [member("a", target="c")])
    assert found["a"]["diff"][3:] == ["-link to b", "+link to c"]
    assert differences([member("a", target="b")], [member("a", b"link to b\n")]) != {}


def test_job_files_are_compared_field_by_field(records):
    def history(**spec):
        submission = records.change(
            records.history().submission, spec={"name": "digits", "run": {"entrypoint": "train.py"}, **spec}
        )
        return records.history(submission=submission)

    a = history(nodes={"min": 1, "max": 2}, tags={}, limits={"max_cost": 5.0})
    b = history(
        nodes={"min": 2, "max": 2}, run={"entrypoint": "train.py", "args": ["--lr", "1"]}, limits=None
    )
    assert job_file_differences(a, b) == [
        {"field": "limits.max_cost", "a": 5.0, "b": None},
        {"field": "nodes.min", "a": 1, "b": 2},
        {"field": "run.args", "a": None, "b": ["--lr", "1"]},
    ]
    assert job_file_differences(a, a) == []


def test_tables_of_providers_that_ran_neither_job_are_left_out(records):
    def history(provider, price):
        tables = {
            "local": {"spot_price": price},
            "aws": {"region": f"r{price}"},
            "gcp": {"project": f"p{price}"},
        }
        spec = {"name": "digits", "providers": tables}
        submission = records.change(records.history().submission, spec=spec, provider=provider)
        return records.history(submission=submission)

    assert job_file_differences(history("local", 1), history("aws", 2)) == [
        {"field": "providers.aws.region", "a": "r1", "b": "r2"},
        {"field": "providers.local.spot_price", "a": 1, "b": 2},
    ]


def test_results_of_a_job(records):
    one = records.launch(
        1,
        outcome="failed",
        exits={0: records.exit("failed", at=60, step=7)},
        notices={0: records.notice(at=50)},
        heartbeats={0: records.heartbeat(step=7, metrics={"loss": 0.5})},
        certificates={"i-1-0": records.certificate(started=0, ended=3600)},
    )
    history = records.history(
        one, generations=(records.generation(1),), finished=records.finished("failed", at=80)
    )
    now = records.at(1000)
    found = results(history, now)
    assert {key: found[key] for key in found if key not in {"submitted", "version", "code_sha256"}} == {
        "id": "digits-1",
        "provider": "sim",
        "state": "failed",
        "offers": ["spot/a/big"],
        "step": 7,
        "steps_lost": 7,
        "steps_lost_is_exact": True,
        "nodes": 1,
        "generations": 1,
        "notices": 1,
        "duration": 80.0,
        "goodput": 0.0,
        "unknown_seconds": 50.0,
        "cost": {"spent": 1.0, "on_demand_equivalent": 3.0, "currency": "USD", "others": {}},
        "metrics": {"loss": 0.5},
    }
