"""``cloudspot logs --list`` and ``--prune``: what a log consists of, how far it has come, what goes."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from click.testing import CliRunner

from cloudspot.cli.main import program
from cloudspot.interfaces import LogSink
from cloudspot.jobstore.layout.records import LogStanding
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord


def midnight(ago):
    """Return when the day began that many days ago; the tests may run past a midnight."""
    today = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=ago)


def write(jobs, job_id, stream, days):
    """Write a line for each of these days ago."""
    sink = ObjectStoreLogSink(jobs.store, job_id)
    for seq, ago in enumerate(days):
        sink.write([LogRecord(stream=stream, seq=seq, time=midnight(ago), text=f"{ago} days ago")])


def day(ago):
    return midnight(ago).date().isoformat()


def rows(result):
    return [line.split(None, 6) for line in result.stdout.splitlines()]


def test_each_nodes_log_is_listed_with_its_days_and_size(jobs):
    jobs.running("going-1")
    write(jobs, "going-1", "1-0", [3, 1])
    header, row = rows(jobs.run("logs", "going-1", "--list"))
    assert header == ["NODE", "FROM", "TO", "SIZE", "LINES", "DELIVERY"]
    assert (row[:3], row[4]) == (["1.0", day(3), day(1)], "B")
    assert "unknown: the node has not reported" in row[6]


@pytest.mark.parametrize(
    ("standing", "delivery", "said"),
    [
        (LogStanding(num_lines=2, waiting_bytes=0), "current", "current"),
        (LogStanding(num_lines=1, waiting_bytes=0), "current", "current"),
        (
            LogStanding(num_lines=5, waiting_bytes=0, error="OSS is away"),
            "behind",
            "3 lines behind: OSS is away",
        ),
        (LogStanding(num_lines=2, waiting_bytes=2048), "behind", "2.0 KiB behind"),
        (LogStanding(num_lines=3, waiting_bytes=2048), "behind", "1 line and 2.0 KiB behind"),
    ],
)
def test_how_far_a_living_nodes_log_has_come_is_told_against_what_the_node_says(
    jobs, standing, delivery, said
):
    jobs.running("going-1")
    write(jobs, "going-1", "1-0", [0, 0])
    jobs.add_heartbeat("going-1", 1, step=1, minutes=103, log=standing)
    assert jobs.run("logs", "going-1", "--list").stdout.rstrip().endswith(f"  {said}")
    (found,) = jobs.run_json("logs", "going-1", "--list")
    assert (found["delivery"], found["lines"]) == (delivery, 2)
    assert (found["node_lines"], found["waiting_bytes"]) == (standing.num_lines, standing.waiting_bytes)


@pytest.mark.parametrize(
    ("num_lines", "delivery", "said"),
    [(2, "complete", "complete"), (7, "incomplete", "5 lines never delivered")],
)
def test_of_a_node_that_is_gone_it_is_told_whether_all_came(jobs, num_lines, delivery, said):
    job_id = jobs.reclaimed_and_finished()
    jobs.add_heartbeat(job_id, 1, step=1, minutes=1, log=LogStanding(num_lines=num_lines, waiting_bytes=0))
    assert said in jobs.run("logs", job_id, "--list", "--node", "1.0").stdout
    (found,) = jobs.run_json("logs", job_id, "--list", "--node", "1.0")
    assert (found["node"], found["delivery"]) == ("1.0", delivery)


def test_a_node_of_which_no_line_has_come_is_listed_all_the_same(jobs):
    jobs.running("going-1")
    jobs.add_heartbeat("going-1", 1, step=1, minutes=1, log=LogStanding(num_lines=3, waiting_bytes=0))
    (found,) = jobs.run_json("logs", "going-1", "--list")
    assert (found["lines"], found["bytes"], found["first_day"]) == (0, 0, None)
    assert found["delivery"] == "behind"


def test_a_node_whose_log_is_pruned_is_not_said_to_have_delivered_nothing(jobs):
    job_id = jobs.reclaimed_and_finished()
    jobs.add_heartbeat(job_id, 1, step=1, minutes=1, log=LogStanding(num_lines=2, waiting_bytes=0))
    sink = ObjectStoreLogSink(jobs.store, job_id)
    sink.remove([piece for piece in sink.pieces() if piece.stream == "1-0"])
    assert (
        jobs.run("logs", job_id, "--list", "--node", "1.0")
        .stdout.rstrip()
        .endswith("  all 2 lines are gone: pruned or never delivered")
    )
    (found,) = jobs.run_json("logs", job_id, "--list", "--node", "1.0")
    assert (found["delivery"], found["lines"], found["node_lines"]) == ("gone", 0, 2)


def test_a_job_without_a_log_has_nothing_to_list(jobs):
    jobs.submit("new-1")
    assert jobs.run("logs", "new-1", "--list").stdout == "job new-1 has no log that matches\n"
    assert jobs.run_json("logs", "new-1", "--list") == []


def test_old_days_are_pruned_and_the_rest_stays(jobs):
    jobs.running("going-1")
    write(jobs, "going-1", "1-0", [9, 8, 3, 0])
    write(jobs, "going-1", "1-1", [9])
    result = jobs.run("logs", "going-1", "--prune", "7d", "--node", "1.0", "--yes")
    assert result.stdout.startswith("deleted 2 pieces (")
    assert result.stdout.endswith(f" of the log of going-1 from before {day(7)} (UTC)\n")
    assert [
        line["text"] for line in map(json.loads, jobs.run("logs", "going-1", "--json").stdout.splitlines())
    ] == [
        "9 days ago",
        "3 days ago",
        "0 days ago",
    ]
    again = jobs.run("logs", "going-1", "--prune", "7d", "--node", "1.0", "--yes").stdout
    assert again == f"the log of going-1 has nothing from before {day(7)} (UTC)\n"
    found = jobs.run_json("logs", "going-1", "--prune", "7d", "--yes")
    assert found["before"] == day(7)
    assert [name.split("/")[-3] for name in found["pieces"]] == ["1-1"]


def test_pruning_asks_and_a_no_deletes_nothing(jobs, monkeypatch):
    jobs.running("going-1")
    write(jobs, "going-1", "1-0", [9])
    result = jobs.run("logs", "going-1", "--prune", "7d", status=2)
    assert (
        result.stderr == "error: there is no terminal on which to ask; give --yes to delete without asking\n"
    )
    monkeypatch.setattr("cloudspot.cli.screen.output.can_ask", lambda: True)
    arguments = ["logs", "going-1", "--prune", "7d", "--store", jobs.store.url]
    for answer, status, left in (("n\n", 1, 1), ("y\n", 0, 0)):
        result = CliRunner().invoke(program, arguments, input=answer)
        assert result.exit_code == status
        assert "of the log of going-1 from before" in result.stderr
        assert len(jobs.run("logs", "going-1").stdout.splitlines()) == left


def test_what_contradicts_is_refused(jobs):
    jobs.running("going-1")
    for arguments, message in (
        (("--list", "--tail", "3"), "--list works on whole days of a node's log; give it without --tail"),
        (
            ("--prune", "1d", "--grep", "x"),
            "--prune works on whole days of a node's log; give it without --grep",
        ),
        (("--list", "--prune", "1d"), "--list works on whole days of a node's log; give it without --prune"),
        (("--yes",), "--yes confirms --prune; give both, or neither"),
        (("--until", "1d", "--follow"), "give --until or --follow, not both"),
        (("--prune", "2999-01-01"), "--prune must be a time in the past, because older logs are deleted"),
        (("--prune", "soon"), '--prune: expected a duration like "10m"'),
    ):
        assert message in jobs.run("logs", "going-1", *arguments, status=2).stderr


def test_a_log_that_ends_by_its_retention_alone_says_so(jobs, monkeypatch):
    jobs.running("going-1")
    write(jobs, "going-1", "1-0", [9])
    monkeypatch.setattr(ObjectStoreLogSink, "remove", LogSink.remove)
    result = jobs.run("logs", "going-1", "--prune", "7d", "--yes", status=1)
    assert (
        "this log cannot be pruned here: set the retention period in the service that keeps it"
        in result.stderr
    )


def test_lines_of_a_day_are_those_since_one_moment_and_until_another(jobs):
    jobs.running("going-1")
    write(jobs, "going-1", "1-0", [3, 2, 1, 0])
    since, until = (f"{day(ago)}T00:00Z" for ago in (2, 0))
    for more, texts in (
        ((), ["2 days ago", "1 days ago"]),
        (("--tail", "1"), ["1 days ago"]),
    ):
        result = jobs.run("logs", "going-1", "--since", since, "--until", until, "--json", *more)
        assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == texts
