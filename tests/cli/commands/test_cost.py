"""``cloudspot cost``."""

import csv

import msgspec
import pytest
from support.records.jobclock import at

from cloudspot.cli.commands import cost
from cloudspot.jobstore.jobs.reader import HistoryReader, read_summary, write_summary
from cloudspot.jobstore.layout import keys
from cloudspot.story.report import summarise

DAY = at(0).date().isoformat()


@pytest.fixture
def two(jobs):
    """A job that was reclaimed and has succeeded, and one that failed, without summaries."""
    jobs.reclaimed_and_finished()
    jobs.failed()
    return jobs


def settle(jobs, job_id):
    """Do what the last look of a driver does."""
    history = HistoryReader(jobs.store, job_id).read()
    write_summary(jobs.store, summarise(history, at(99)))
    for meta in list(jobs.store.list_objects(keys.live_prefix())):
        if meta.key.removeprefix(keys.live_prefix()).startswith(f"{job_id}."):
            jobs.store.delete(meta.key)


def test_json_has_every_amount_as_show_has_it(two):
    value = two.run_json("cost")
    assert (value["by"], value["since"], value["until"]) == ("job", None, None)
    found = {row["key"]: row for row in value["rows"]}
    assert set(found) == {"digits-7k3f", "broken-abcd"}
    for job_id, row in found.items():
        shown = two.run_json("show", job_id)["cost"]
        assert (row["spent"], row["currency"], row["jobs"]) == (shown["spent"], "USD", 1)
        assert row["on_demand_equivalent"] == shown["on_demand_equivalent"]
        assert row["saved"] == pytest.approx(shown["on_demand_equivalent"] - shown["spent"])
        assert row["machine_seconds"] == shown["machine_seconds"]
        assert row["purposes"] == {
            name: one["spent"] for name, one in shown["purposes"].items() if one["spent"]
        }
    (total,) = value["totals"]
    assert total["spent"] == pytest.approx(sum(row["spent"] for row in found.values()))
    assert total["jobs"] == 2


def test_the_summary_of_a_settled_job_tells_the_same_as_its_records(two):
    before = two.run_json("cost", "--by", "purpose")
    settle(two, "digits-7k3f")
    summary = read_summary(two.store, "digits-7k3f")
    assert summary.outlays
    assert two.run_json("cost", "--by", "purpose") == before
    # Its records are not read at all.
    two.store.put(keys.journal("digits-7k3f", 1), b"nonsense")
    assert two.run_json("cost", "--by", "purpose") == before


def test_a_job_that_is_marked_live_is_read_although_its_summary_says_that_it_has_ended(two):
    """Its machines may still run, and an older summary has counted them only so far."""
    history = HistoryReader(two.store, "digits-7k3f").read()
    summary = summarise(history, at(99))
    write_summary(two.store, msgspec.structs.replace(summary, outlays=()))
    assert two.run_json("cost")["totals"][0]["jobs"] == 2


def test_a_summary_from_before_there_were_sums_is_read_from_the_records(two):
    before = two.run_json("cost")
    settle(two, "digits-7k3f")
    summary = read_summary(two.store, "digits-7k3f")
    write_summary(two.store, msgspec.structs.replace(summary, outlays=None))
    assert two.run_json("cost") == before


def test_the_table_has_a_total_for_people(two):
    lines = two.run("cost", "--by", "market").stdout.splitlines()
    assert lines[0].split() == ["MARKET", "JOBS", "MACHINE", "TIME", "SPENT", "ON", "DEMAND", "SAVED"]
    assert lines[1].split()[:2] == ["spot", "2"]
    assert lines[-1].split()[:2] == ["total", "2"]
    assert lines[-1].split()[-1] == "70%"


@pytest.mark.full
def test_csv_has_a_line_for_each_row(two):
    lines = list(csv.DictReader(two.run("cost", "--by", "day", "--csv").stdout.splitlines()))
    found = two.run_json("cost", "--by", "day")["rows"]
    assert [(line["day"], line["currency"], float(line["spent"])) for line in lines] == [
        (row["key"], "USD", row["spent"]) for row in found
    ]


def test_only_the_days_that_are_asked_for_count(two):
    assert two.run_json("cost", "--since", DAY)["totals"] == two.run_json("cost")["totals"]
    assert two.run_json("cost", "--until", "2020-01-01")["rows"] == []
    assert two.run("cost", "--until", "2020-01-01").stdout.endswith("in that time\n")


def test_long_tables_are_cut_unless_all_is_asked_for(two, monkeypatch):
    monkeypatch.setattr(cost, "MOST", 1)
    cut = two.run("cost")
    assert "1 more rows; see them with --all" in cut.stderr
    assert len(two.run("cost", "--all").stdout.splitlines()) == len(cut.stdout.splitlines()) + 1
    assert len(two.run_json("cost")["rows"]) == 2


def test_labels_of_the_job_file_divide_the_money(jobs):
    jobs.job_file.write_text('labels = { team = "vision" }\n' + jobs.job_file.read_text())
    jobs.reclaimed_and_finished()
    assert [row["key"] for row in jobs.run_json("cost", "--by", "label.team")["rows"]] == ["vision"]
    assert [row["key"] for row in jobs.run_json("cost", "--by", "label")["rows"]] == ["team=vision"]
    assert [row["key"] for row in jobs.run_json("cost", "--by", "label.user")["rows"]] == ["-"]
    assert "labels       team=vision" in jobs.run("show", "digits-7k3f").stdout


def test_a_job_whose_records_are_malformed_is_named_and_the_others_are_counted(two):
    two.store.put(keys.journal("broken-abcd", 1), b"nonsense")
    result = two.run("cost", status=8)
    assert "warning: job broken-abcd: " in result.stderr
    assert result.stdout.splitlines()[1].startswith("digits-7k3f")


def test_an_empty_store_has_cost_nothing(jobs):
    assert jobs.run("cost").stdout == f"no costs in {jobs.store.url}\n"
    assert jobs.run_json("cost")["totals"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "team"], "--by: expected job, day, provider, market, zone, purpose, label or label.NAME"),
        (["--by", "label."], "--by: expected job"),
        (["--since", "soon"], "--since: expected a duration"),
        (["--since", "1d", "--until", "2d"], "--since must not be after --until"),
        (["--csv", "--json"], "give --csv or --json, not both"),
        (["--plot", "cost.txt"], "--plot must end in"),
    ],
)
def test_a_wrong_choice_is_refused_before_anything_is_read(jobs, arguments, message):
    assert message in jobs.run("cost", *arguments, status=2).stderr


@pytest.mark.full
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_has_a_bar_for_each_row_divided_by_purpose(two, tmp_path, suffix):
    path = tmp_path / f"cost.{suffix}"
    result = two.run("cost", "--by", "job", "--plot", str(path))
    assert f"drawn: {path}" in result.stderr
    if suffix == "svg":
        text = path.read_text()
        for word in ("digits-7k3f", "broken-abcd", "training", "USD", "on demand", "cost by job"):
            assert word in text
    else:
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
