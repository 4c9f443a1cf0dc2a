"""``cloudspot run``: what it refuses, what a dry run shows, and what it submits."""

import pytest

from cloudspot.cli.commands import run as run_module
from cloudspot.cli.following import detached
from cloudspot.cli.preparing import submitting
from cloudspot.jobstore.jobs.job_lists import list_jobs
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.layout import keys
from cloudspot.local.provider import LocalProvider
from cloudspot.testing import plaincalls


def stored(jobs):
    return [meta.key for meta in jobs.store.list_objects("") if meta.key != keys.STORE_ID]


def test_a_dry_run_shows_cost_and_what_next_first_then_offers_in_order_and_stores_nothing(jobs):
    result = jobs.run("run", str(jobs.job_file), "--dry-run", "--name", "dry-1")
    lines = result.stdout.splitlines()
    assert lines[0] == f"job dry-1 on local, 1 node(s), store {jobs.store.url}"
    offers = [line.split() for line in lines if line[:2] in ("1 ", "2 ", "3 ", "4 ")]
    assert [offer[3] for offer in offers] == ["spot", "spot", "on-demand", "on-demand"]
    assert lines[1] == "buys 1 x local in local-a (spot), 0.3000 USD an hour in all"
    assert lines[2].startswith("expected: ")
    assert lines[3] == "no limit; set one with limits.max_cost"
    assert (
        lines[4] == "nothing was launched or stored; to start it, use cloudspot run with the same arguments"
    )
    assert "#!/usr/bin/env bash" not in result.stdout
    assert stored(jobs) == []


def test_a_submission_shows_the_job_its_cost_and_what_next_in_its_first_five_lines(jobs, monkeypatch):
    monkeypatch.setattr(run_module, "follow", lambda *_args, **_options: 0)
    lines = jobs.run("run", str(jobs.job_file), "--name", "new-1").stdout.splitlines()
    assert lines[0].startswith(f"submitted job new-1 to {jobs.store.url} (")
    assert lines[1] == "buys 1 x local in local-a (spot), 0.3000 USD an hour in all"
    assert lines[2].startswith("expected: ")
    assert lines[3] == "no limit; set one with limits.max_cost"
    assert lines[4].startswith("Ctrl-C leaves the job running; come back with: cloudspot attach new-1")


def test_the_json_of_a_dry_run_has_a_request_for_each_offer(jobs):
    plan = jobs.run_json("run", str(jobs.job_file), "--dry-run", "--name", "dry-1")
    assert (plan["id"], plan["provider"], plan["store"]) == ("dry-1", "local", jobs.store.url)
    assert [launch["market"] for launch in plan["launches"]] == ["spot", "spot", "on-demand", "on-demand"]
    assert [launch["zone"] for launch in plan["launches"]] == ["local-a", "local-b"] * 2
    assert all(launch["request"] for launch in plan["launches"])
    assert plan["code"]["bytes"] > 0
    assert stored(jobs) == []


def test_the_job_file_may_name_the_store_and_the_command_line_another(jobs, tmp_path, monkeypatch):
    monkeypatch.delenv("CLOUDSPOT_STORE", raising=False)
    jobs.job_file.write_text(f'store = "file://{tmp_path}/its-own"\n' + jobs.job_file.read_text())
    arguments = ["run", str(jobs.job_file), "--dry-run"]
    jobs.store.url = ""
    assert jobs.run_json(*arguments)["store"] == f"file://{tmp_path}/its-own"
    assert (
        jobs.run_json(*arguments, "--store", f"file://{tmp_path}/other")["store"]
        == f"file://{tmp_path}/other"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--json"], 2, "--json needs --dry-run or --detach"),
        (["--dry-run", "--detach"], 2, "give --dry-run or --detach, not both"),
        (["--provider", "moon"], 3, "moon"),
        (
            ["--set", 'resources.accelerator=["A100", "H100"]'],
            2,
            '"["A100", "H100"]" names several accelerators; name one',
        ),
        (
            ["--set", "resources.accelerator=A100,H100"],
            2,
            '--set: resources.accelerator: "A100,H100" names several accelerators; name one',
        ),
        (["--name", "Not_A_Label"], 2, "--name must be"),
        (["--set", "nodez=2"], 2, "nodez"),
        (["--set", "run.entrypoint=missing.py"], 2, "missing.py"),
        (["--store", "nowhere"], 2, "nowhere"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_is_stored(jobs, arguments, status, message):
    result = jobs.run("run", str(jobs.job_file), *arguments, status=status)
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert stored(jobs) == []


def test_a_missing_job_file_is_named(jobs):
    result = jobs.run("run", "nowhere.toml", status=2)
    assert "nowhere.toml" in result.stderr


def test_a_name_that_is_taken_is_an_error(jobs):
    jobs.submit("taken-1")
    result = jobs.run("run", str(jobs.job_file), "--name", "taken-1", "--detach", status=2)
    assert "'taken-1' already exists" in result.stderr


def test_a_suffix_that_is_taken_is_drawn_again(jobs, monkeypatch):
    jobs.submit("digits-aaaa")
    drawn = iter(["digits-aaaa", "digits-bbbb"])
    monkeypatch.setattr(submitting, "new_job_id", lambda name: next(drawn))
    monkeypatch.setattr(run_module, "follow", lambda job, **options: 0)
    assert "submitted job digits-bbbb" in jobs.run("run", str(jobs.job_file)).stdout
    assert list_jobs(jobs.store) == ("digits-aaaa", "digits-bbbb")


def test_set_reaches_the_submitted_job(jobs, monkeypatch):
    monkeypatch.setattr(run_module, "follow", lambda job, **options: 0)
    jobs.run("run", str(jobs.job_file), "--name", "a-1", "--set", "limits.max_restarts=7")
    assert HistoryReader(jobs.store, "a-1").read().submission.spec["limits"]["max_restarts"] == 7
    assert keys.index("a-1") in stored(jobs)


@pytest.mark.full
def test_detach_requests_a_machine_and_says_how_to_come_back(jobs):
    result = jobs.run("run", str(jobs.job_file), "--detach", "--name", "away-1")
    assert "cloudspot launch 1 (first): 1 x local in local-a" in result.stdout
    assert f"follow it with: cloudspot attach away-1 --store {jobs.store.url}" in result.stdout
    assert f"cloudspot reconcile --watch --job away-1 --store {jobs.store.url}" in result.stderr
    assert [one.launch for one in plaincalls.instances(LocalProvider().provisioner(), job_id="away-1")] == [1]


@pytest.mark.full
def test_the_json_of_a_detached_run_is_all_there_is_on_standard_output(jobs):
    value = jobs.run_json("run", str(jobs.job_file), "--detach", "--name", "away-1")
    assert value == {"id": "away-1", "store": jobs.store.url, "launched": True}


def test_a_detached_run_that_finds_no_capacity_says_so(jobs, monkeypatch):
    monkeypatch.setattr(detached.time, "sleep", lambda seconds: None)
    zones = "providers.local.capacity={local-a = 0, local-b = 0}"
    arguments = ["--set", zones, "--set", 'spot.policy="spot"', "--detach", "--name", "away-1"]
    result = jobs.run("run", str(jobs.job_file), *arguments)
    assert "warning: job away-1 has no machine yet" in result.stderr
    assert jobs.run_json("show", "away-1")["state"] == "waiting"
