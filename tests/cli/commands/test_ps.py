"""``cloudspot ps``."""

from datetime import datetime, timedelta, timezone
from itertools import pairwise

import msgspec
import pytest
from click.testing import CliRunner
from support.records.jobclock import ago, at
from support.stores.memorystore import InMemoryStore

from cloudspot.cli.commands.ps import MAX_WORKED_OUT
from cloudspot.cli.main import program
from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobfields import FIELD_NAMES
from cloudspot.errors import TransientError
from cloudspot.jobstore.jobs.reader import HistoryReader, write_summary
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Summary
from cloudspot.local.filestore import FileStore
from cloudspot.story.report import summarise


def test_an_empty_store_has_no_jobs(jobs, monkeypatch):
    monkeypatch.setattr("cloudspot.cli.jobs.open_job_store", InMemoryStore)
    for arguments, printed in (
        (["ps"], f"no jobs in {jobs.store.url}\n"),
        (["ps", "--filter", "state=failed"], f"no jobs in {jobs.store.url}\n"),
        (["ps", "--json"], "[]\n"),
    ):
        result = jobs.run(*arguments)
        assert result.stdout == printed
        # It may be a slip.
        assert result.stderr == f"warning: {jobs.store.url} is empty; check its name\n"


@pytest.mark.full
def test_a_directory_in_which_no_job_was_submitted_is_no_store_without_jobs(local_home):
    """It may be the place where a disk with jobs is mounted."""
    for words in (["ps"], ["ps", "--json"], ["show", "digits"], ["rm", "digits"], ["reconcile"]):
        result = CliRunner().invoke(program, words)
        assert (result.stdout, result.exit_code) == ("", TransientError.exit_code)
        assert result.stderr == (
            f"error: file://{local_home}/store: this version has submitted nothing to it yet, or its disk is not mounted: "
            "store-id, which cloudspot run writes there, cannot be read: No such file or directory "
            "(this store: the default of the provider local)\n"
        )
        assert not (local_home / "store").exists()


def test_a_store_from_which_all_jobs_were_removed_is_not_taken_for_a_slip(jobs):
    jobs.store.put("code/abc", b"")
    result = jobs.run("ps")
    assert (result.stdout, result.stderr) == (f"no jobs in {jobs.store.url}\n", "")


@pytest.mark.full
def test_unfinished_jobs_come_first_with_their_progress_and_cost(jobs):
    jobs.reclaimed_and_finished("done-1")
    jobs.failed("broken-1")
    jobs.running("going-1")
    jobs.submit("new-1")
    shown = {job["id"]: job for job in jobs.run_json("ps")}
    assert set(list(shown)[:2]) == {"going-1", "new-1"}
    assert [shown[name]["state"] for name in ("new-1", "going-1", "done-1", "broken-1")] == [
        "queued",
        "running",
        "succeeded",
        "failed",
    ]
    assert (shown["going-1"]["step"], shown["going-1"]["steps_total"]) == (17, 100)
    assert shown["going-1"]["metrics"] == {"loss": 0.5}
    assert shown["done-1"]["starts"] == 2
    assert shown["done-1"]["cost"] == {"spent": 0.06, "currency": "USD", "others": {}}
    assert shown["done-1"]["metrics"] == {"accuracy": 0.975}
    assert shown["broken-1"]["detail"] == "train.py ended with 3"
    lines = jobs.run("ps").stdout.splitlines()
    headers = "ID STATE STEP accuracy loss COST DURATION STARTS NODES CODE STARTED DETAIL"
    assert lines[0].split() == headers.split()
    done = next(line for line in lines if line.startswith("done-1"))
    *cells, started = done.split()
    assert cells[1:10] == ["succeeded", "100/100", "0.975", "-", "0.0600", "USD", "12m", "00s", "2"]
    assert cells[10] == "1/1"
    assert started == output.utc_text(at(0))
    assert cells[11] == shown["done-1"]["code_sha256"][:12]
    failed = next(line for line in lines if line.startswith("broken-1"))
    assert failed.endswith("train.py ended with 3")
    assert shown["done-1"]["name"] == "digits"
    assert shown["done-1"]["duration"] == 720.0
    assert shown["new-1"]["started"] is None
    assert (shown["done-1"]["started"], shown["done-1"]["finished"]) == (
        at(0).isoformat(),
        at(12).isoformat(),
    )


def test_the_summary_of_an_ended_job_is_all_that_is_read(jobs):
    jobs.reclaimed_and_finished("done-1")
    write_summary(
        jobs.store, summarise(HistoryReader(jobs.store, "done-1").read(), datetime.now(timezone.utc))
    )
    jobs.store.delete(keys.spec("done-1"))
    assert [job["state"] for job in jobs.run_json("ps")] == ["succeeded"]


def test_a_stale_summary_of_an_unfinished_job_is_not_believed(jobs):
    jobs.running("going-1")
    an_hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
    write_summary(jobs.store, summarise(HistoryReader(jobs.store, "going-1").read(), an_hour_ago))
    jobs.add_exit("going-1", 1, "succeeded", step=100, minutes=110)
    assert [job["state"] for job in jobs.run_json("ps")] == ["succeeded"]


@pytest.mark.parametrize("num_jobs", [2, 3])
def test_of_many_jobs_that_nobody_drives_the_page_is_old_and_says_so(jobs, num_jobs):
    an_hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
    for number in range(num_jobs):
        job_id = jobs.running(f"going-{number}")
        write_summary(jobs.store, summarise(HistoryReader(jobs.store, job_id).read(), an_hour_ago))
        jobs.add_exit(job_id, 1, "succeeded", step=100, minutes=110)
    result = jobs.run("ps")
    states = [line.split()[1] for line in result.stdout.splitlines()[1:]]
    if num_jobs <= MAX_WORKED_OUT:
        assert (states, result.stderr) == (["succeeded"] * num_jobs, "")
    else:
        assert states == ["running"] * num_jobs
        assert result.stderr == (
            f"warning: {num_jobs} unfinished jobs are shown as a driver last saw them, up to 1h 00m ago; "
            "see the present state of one with: cloudspot show ID\n"
        )
    assert [job["state"] for job in jobs.run_json("ps", "--all")] == ["succeeded"] * num_jobs


def test_a_job_whose_mark_was_lost_is_shown_all_the_same(jobs):
    jobs.running("going-1")
    for meta in list(jobs.store.list_objects(keys.live_prefix())):
        jobs.store.delete(meta.key)
    assert [job["state"] for job in jobs.run_json("ps")] == ["running"]


def test_the_page_counts_no_further_than_one_listing_shows(jobs, monkeypatch):
    monkeypatch.setattr("cloudspot.cli.commands.ps.PAGE", 1)
    monkeypatch.setattr("cloudspot.jobstore.jobs.job_lists.MAX_RECENT", 2)
    for number in range(4):
        put_summary(jobs, f"done-{number}", minutes=number)
    result = jobs.run("ps")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ID", "done-3"]
    assert result.stderr == "at least 1 more; see them with --all\n"


def test_a_malformed_summary_hides_no_job(jobs):
    jobs.running("going-1")
    jobs.store.put(keys.summary("going-1"), b"{")
    assert [job["state"] for job in jobs.run_json("ps")] == ["running"]


def test_a_malformed_job_is_named_and_hides_no_other(jobs):
    jobs.running("going-1")
    jobs.submit("bad-1")
    jobs.store.put(keys.spec("bad-1"), b"{")
    result = jobs.run("ps", status=8)
    assert "going-1" in result.stdout
    assert result.stderr.startswith("warning: job bad-1: jobs/bad-1/spec is malformed: ")


def test_a_submission_that_was_cut_short_is_no_job(jobs):
    jobs.store.put(keys.index("half-1"), b"")
    assert jobs.run_json("ps") == []


def test_only_the_newest_ended_jobs_are_shown_unless_all_are_asked_for(jobs, monkeypatch):
    monkeypatch.setattr("cloudspot.cli.commands.ps.PAGE", 2)
    jobs.reclaimed_and_finished("done-1")
    jobs.failed("broken-1")
    jobs.running("going-1")
    result = jobs.run("ps")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ID", "going-1", "broken-1"]
    assert result.stderr == "1 more; see them with --all\n"
    assert len(jobs.run_json("ps", "--all")) == 3


# --- filters and order ----------------------------------------------------------------------------


def put_summary(jobs, job_id, *, minutes=0.0, **fields):
    """An ended job of which the summary is all that there is."""
    values = {
        "job_id": job_id,
        "provider": "local",
        "state": "succeeded",
        "step": 100,
        "steps_total": 100,
        "starts": 1,
        "spent": 1.0,
        "currency": "USD",
        "submitted_at": at(minutes),
        "metrics": {},
        "detail": "",
        "at": at(minutes + 10),
        "name": job_id.partition("-")[0],
        "code_sha256": "c0de" * 16,
        "started_at": at(minutes + 1),
        "finished_at": at(minutes + 10),
        **fields,
    }
    jobs.store.put(keys.index(job_id), b"")
    submitted = values["submitted_at"].timestamp()
    jobs.store.put(keys.recent(int(submitted * 1000), job_id), b"")
    write_summary(jobs.store, Summary(**values))


@pytest.fixture
def several(jobs):
    """Four ended jobs, newest last."""
    put_summary(jobs, "digits-a", minutes=0, metrics={"loss": 0.5}, spent=3.0)
    put_summary(jobs, "digits-b", minutes=10, metrics={"loss": 0.1, "top-5": 0.9}, spent=1.0, starts=3)
    put_summary(
        jobs, "tinygpt-c", minutes=20, state="failed", detail="exit code 3", spent=2.0, finished_at=at(140)
    )
    put_summary(
        jobs, "tinygpt-d", minutes=30, metrics={"loss": float("nan")}, spent=2.0, code_sha256="ab" * 32
    )
    return jobs


def ids(jobs, *arguments):
    return [job["id"] for job in jobs.run_json("ps", *arguments)]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["state=failed"], ["tinygpt-c"]),
        (["state==failed"], ["tinygpt-c"]),
        (["state=fail*"], ["tinygpt-c"]),
        (["state!=failed"], ["tinygpt-d", "digits-b", "digits-a"]),
        (["name=digits"], ["digits-b", "digits-a"]),
        (["id=*-[bd]"], ["tinygpt-d", "digits-b"]),
        (["name=dig*", "cost>1"], ["digits-a"]),
        (["cost<=2"], ["tinygpt-d", "tinygpt-c", "digits-b"]),
        (["metrics.loss<0.3"], ["digits-b"]),
        (["metrics.top-5 >= 0.9"], ["digits-b"]),
        (["metrics.loss!=0.5"], ["tinygpt-d", "tinygpt-c", "digits-b"]),
        (["starts=3"], ["digits-b"]),
        (["duration>1h30m"], ["tinygpt-c"]),
        (["duration=600"], ["tinygpt-d", "digits-b", "digits-a"]),
        (["code=abab"], ["tinygpt-d"]),
        (["detail=*code 3"], ["tinygpt-c"]),
        (["progress=1", "submitted>@25"], ["tinygpt-d"]),
        (["provider=aws"], []),
    ],
)
def test_filters_leave_the_jobs_that_pass_all_of_them(several, filters, found):
    filters = [text.replace("@25", ago(25)) for text in filters]
    assert ids(several, *[word for text in filters for word in ("--filter", text)]) == found


@pytest.mark.parametrize(
    ("field", "order"),
    [
        ("cost", "bdca"),
        ("-cost", "adcb"),
        ("metrics.loss", "badc"),
        ("-metrics.loss", "abdc"),
        ("id", "abcd"),
        ("submitted", "abcd"),
        ("-duration", "cdba"),
    ],
)
def test_jobs_are_sorted_by_any_field_and_those_without_it_come_last(several, field, order):
    assert "".join(job_id[-1] for job_id in ids(several, "--sort", field)) == order


def test_the_first_in_the_order_are_those_that_are_shown(several, monkeypatch):
    monkeypatch.setattr("cloudspot.cli.commands.ps.MOST", 1)
    assert ids(several, "--sort", "metrics.loss") == ["digits-b"]
    assert ids(several, "--sort", "metrics.loss", "--all")[0] == "digits-b"


def test_a_store_in_which_no_job_passes_says_so(several):
    assert (
        several.run("ps", "--filter", "id=x").stdout == f"no job in {several.store.url} matches the filter\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--filter", "cots>3"],
            ["--filter: unknown field 'cots'; did you mean 'cost'?", ", ".join(FIELD_NAMES)],
        ),
        (["--sort", "-loss"], ["--sort: unknown field 'loss'; the fields are id,", "metrics.NAME"]),
        (["--sort", "metrics."], ["--sort: unknown field 'metrics.'"]),
        (["--sort", ""], ["--sort: unknown field ''"]),
        (["--filter", "metrics.loss!=nan"], ["--filter metrics.loss: expected a number, got 'nan'"]),
        (["--filter", "duration<nan"], ["--filter duration: expected a duration such as"]),
        (["--filter", "state"], ["--filter must be FIELD, one of = != < <= > >=, and a value", "'state'"]),
        (["--filter", "cost>much"], ["--filter cost: expected a number, got 'much'"]),
        (["--filter", "duration>1x"], ["--filter duration: expected a duration such as"]),
        (["--filter", "started<soon"], ["--filter started: expected a time such as"]),
        (["--filter", "state=runing"], ["--filter state: expected one of queued, launching,", "'runing'"]),
        (["--filter", "state=>failed"], ["--filter state: expected one of", "'>failed'"]),
        (["--filter", "state<x"], ["--filter state: text can only be compared with = and !="]),
    ],
)
def test_a_filter_that_is_wrong_names_what_is_right_before_anything_is_read(arguments, words, jobs):
    (jobs.store.root / "index").write_text("in the way: a listing would fail")
    result = jobs.run("ps", *arguments, status=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


# --- the table ------------------------------------------------------------------------------------


def table(jobs, monkeypatch, width, *arguments):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = [line.rstrip() for line in jobs.run("ps", *arguments).stdout.splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def test_a_narrow_terminal_shows_the_more_telling_columns(several, monkeypatch):
    lines = table(several, monkeypatch, 50)
    assert lines[0].split() == ["ID", "STATE", "STEP", "loss", "COST"]
    assert table(several, monkeypatch, 59)[0].split() == [*lines[0].split(), "DURATION"]
    wide = table(several, monkeypatch, 200)[0].split()
    assert wide == [
        "ID",
        "STATE",
        "STEP",
        "loss",
        "top-5",
        "COST",
        "DURATION",
        "STARTS",
        "NODES",
        "CODE",
        "STARTED",
        "DETAIL",
    ]


def test_the_metric_that_was_asked_about_has_a_column_first(several, monkeypatch):
    assert "top-5" in table(several, monkeypatch, 71, "--sort", "-metrics.top-5")[0].split()
    assert "top-5" in table(several, monkeypatch, 71, "--filter", "metrics.top-5>0")[0].split()
    assert "top-5" not in table(several, monkeypatch, 71)[0].split()


def test_that_nodes_idle_is_told_even_where_the_metrics_tell_more_than_the_state(jobs):
    idle = "node 1.0: idle for 30 min (GPUs at 0 %)"
    put_summary(jobs, "idle-1", metrics={"loss": 0.5}, idle=idle)
    put_summary(jobs, "busy-1", metrics={"loss": 0.5}, detail="as ever")
    assert {job["id"]: job["idle"] for job in jobs.run_json("ps")} == {"idle-1": idle, "busy-1": ""}
    lines = jobs.run("ps").stdout.splitlines()
    assert [line.endswith(idle) for line in lines if line.startswith("idle-1")] == [True]
    assert not any("as ever" in line for line in lines)


def test_an_older_summary_without_the_newer_fields_is_still_read(jobs):
    put_summary(jobs, "old-1", metrics={"loss": 0.5})
    record = msgspec.json.decode(jobs.store.get(keys.summary("old-1")))
    for name in ("name", "code_sha256", "started_at", "finished_at"):
        del record[name]
    jobs.store.put(keys.summary("old-1"), msgspec.json.encode(record))
    [job] = jobs.run_json("ps")
    assert [job[name] for name in ("name", "code_sha256", "started", "finished", "duration")] == [None] * 5
    line = jobs.run("ps").stdout.splitlines()[1]
    assert line.split() == ["old-1", "succeeded", "100/100", "0.5", "1.0000", "USD", "-", "1", "-", "-", "-"]
    assert ids(jobs, "--filter", "name=old-1") == ["old-1"]


# --- a store that is far away, or dies ------------------------------------------------------------


def test_a_store_that_dies_in_the_middle_is_one_line_and_no_half_table(several, monkeypatch):
    real, count = FileStore.get, []

    def get(self, key):
        count.append(key)
        if len(count) > 2:
            raise TransientError(f"{self.url}: no answer")
        return real(self, key)

    monkeypatch.setattr(FileStore, "get", get)
    monkeypatch.setattr("cloudspot.calls.retrying.SHORT_WAITS", (0.0,) * 4)
    result = several.run("ps", status=7)
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {several.store.url}: no answer")
    assert result.stderr.count("\n") == 1


def test_one_small_object_is_read_of_each_ended_job(several, monkeypatch):
    real, count = FileStore.get, []
    monkeypatch.setattr(FileStore, "get", lambda self, key: (count.append(key), real(self, key))[1])
    several.run("ps")
    assert sorted(count) == [
        keys.summary(f"{name}") for name in ("digits-a", "digits-b", "tinygpt-c", "tinygpt-d")
    ]
    assert all(len(codec.encode(codec.decode(real(several.store, key), Summary))) < 1000 for key in count)


def test_the_longest_id_folds_and_leaves_room_for_what_is_told_of_it(jobs, monkeypatch):
    job_id = "a" * 58 + "-7k3f"
    put_summary(jobs, job_id, step=6000, steps_total=10_000, metrics={"loss": 0.25})
    put_summary(jobs, "digits-a", metrics={"loss": 0.5})
    lines = table(jobs, monkeypatch, 80)
    assert lines[0].split() == ["ID", "STATE", "STEP", "COST"]
    first, second = next((line, after) for line, after in pairwise(lines) if line.startswith("aaa"))
    assert first.split()[1:] == ["succeeded", "6000/10000", "1.0000", "USD"]
    assert first.split()[0] + second.strip() == job_id


def test_a_number_that_is_not_finite_is_null_in_json_which_knows_none(jobs):
    put_summary(jobs, "odd-1", metrics={"loss": float("nan"), "grad": float("-inf"), "lr": 0.5})
    assert "NaN" not in jobs.run("ps", "--json").stdout
    assert jobs.run_json("ps")[0]["metrics"] == {"loss": None, "grad": None, "lr": 0.5}
    assert " nan " in jobs.run("ps").stdout
