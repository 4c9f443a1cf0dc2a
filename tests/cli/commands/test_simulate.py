"""``cloudspot simulate``."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.records.jobclock import at

from cloudspot.cli.main import program
from cloudspot.jobstore.jobs.reader import HistoryReader, write_summary
from cloudspot.story.report import summarise

ROOT = Path(__file__).parents[3]
JOB = ["--length", "12h", "--deadline", "24h", "--overhead", "0s"]


def run(*words, status=0):
    result = CliRunner().invoke(program, ["simulate", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


def run_json(*words):
    return json.loads(run(*words, "--json").stdout)


def refusal(*words):
    return run(*words, status=2).stderr.removeprefix("error: ").rstrip("\n")


@pytest.fixture
def trace(tmp_path):
    """``trace(name, data, gap_seconds)`` writes a trace and returns its path."""

    def write(name, data, gap_seconds=3600):
        path = tmp_path / name
        path.write_text(json.dumps({"metadata": {"gap_seconds": gap_seconds}, "data": data}))
        return path

    return write


@pytest.fixture
def eight_hours(trace):
    """Spot for eight hours, none for four, and then again: a run of ``JOB`` fits at one place."""
    return trace("eight.json", [1] * 8 + [0] * 4 + [1] * 13)


@pytest.mark.full
def test_the_example_of_the_page_is_what_the_command_prints(monkeypatch):
    page = (ROOT / "docs" / "market.md").read_text()
    command, printed = re.search(
        r"```sh\n(cloudspot simulate --trace docs.*?)```.*?```\n(.*?)```", page, re.DOTALL
    ).groups()
    monkeypatch.chdir(ROOT)
    result = run(*shlex.split(command.replace("\\\n", " "))[2:])
    assert result.stdout == printed
    assert result.stderr == "warning: the traces have only 1 start(s) from which a whole run fits\n"
    money = dict(re.findall(r"^([a-z-]+) .*? to [\d.]+ +([\d.]+) ", printed, re.MULTILINE))
    assert money == {"on-demand": "120.00", "spot-then-on-demand": "68.00", "deadline": "42.00"}


@pytest.mark.full
def test_every_policy_is_told_with_the_optimum_last(eight_hours):
    found = run_json("--trace", eight_hours, *JOB, "--spot-price", "0.35", "--max-wait", "0s")
    assert list(found["policies"]) == [
        "on-demand",
        "greedy",
        "uniform-progress",
        "spot-then-on-demand",
        "deadline",
        "optimum",
    ]
    assert found["policies"]["spot-then-on-demand"] == {
        "mean_cost": pytest.approx(68 / 120),
        "cost_range": pytest.approx([68 / 120] * 2),
        "late": 0,
        "reclaims": 1.0,
        "starts": 2.0,
        "spot_hours": 8.0,
        "on_demand_hours": 4.0,
        "idle_hours": 0.0,
        "end_hours": 12.0,
        "end_range": [12.0, 12.0],
        "money": None,
        "money_range": None,
    }
    bound = found["policies"]["optimum"]
    assert bound["mean_cost"] == pytest.approx(0.35)
    assert (bound["late"], bound["reclaims"], bound["end_hours"]) == (0, None, None)
    assert (found["length_hours"], found["deadline_hours"], found["limit_hours"]) == (12.0, 24.0, 24.0)
    assert (found["zones"], found["runs"], found["tick_hours"], found["seed"]) == (1, 1, 1.0, 0)
    assert found["traces"] == [str(eight_hours)]


def test_one_option_takes_many_traces_and_each_is_a_zone(trace):
    up, down = trace("up.json", [1] * 30), trace("down.json", [0] * 30)
    for words in (
        ["--trace", down, up],
        ["--trace", down, "--trace", up],
        [f"--trace={down}", "--trace", up],
    ):
        found = run_json(*words, *JOB, "--policy", "greedy", "optimum", "--spot-price", "0.5")
        assert found["zones"] == 2
        assert {name: one["mean_cost"] for name, one in found["policies"].items()} == {
            "greedy": pytest.approx(0.5),
            "optimum": pytest.approx(0.5),
        }


def test_a_zone_is_up_where_it_has_the_machines_that_the_job_needs(trace):
    path = trace("two.json", [2] * 30)
    costs = [
        run_json("--trace", path, *JOB, "--nodes", number, "--policy", "greedy")["policies"]["greedy"]
        for number in (2, 3)
    ]
    assert [one["spot_hours"] for one in costs] == [12.0, 0.0]


def test_the_finest_tick_counts_and_the_shortest_trace_ends_the_market(trace):
    # The second is up in every other half hour, of which the first sees nothing.
    hourly, finer = trace("hourly.json", [0] * 40), trace("finer.json", [1, 0] * 30, gap_seconds=1800)
    found = run_json("--trace", hourly, finer, *JOB, "--policy", "greedy")
    assert found["tick_hours"] == 0.5
    assert found["runs"] == 60 - 49 + 1  # 30 h, and a run needs 24.5 h
    assert found["policies"]["greedy"]["reclaims"] > 10


@pytest.mark.full
def test_the_same_seed_gives_the_same_runs_and_another_one_others():
    made_up = ["--length", "4h", "--deadline", "6h", "--starts", "20", "--policy", "greedy"]
    first, again, other = (run_json(*made_up, "--seed", seed) for seed in (1, 1, 2))
    assert first == again
    assert first["policies"] != other["policies"]
    assert first["runs"] == 20


@pytest.mark.full
def test_more_zones_of_a_made_up_market_are_cheaper():
    made_up = ["--length", "12h", "--deadline", "15h", "--starts", "50"]
    one, four = (run_json(*made_up, "--zones", number)["policies"] for number in (1, 4))
    for name in ("greedy", "uniform-progress", "deadline", "optimum"):
        assert four[name]["mean_cost"] < one[name]["mean_cost"], name


@pytest.mark.full
def test_what_is_learned_from_traces_makes_up_the_market(trace):
    steady, rare = trace("steady.json", [1] * 500), trace("rare.json", ([1] + [0] * 99) * 5)
    words = [*JOB, "--starts", "20", "--policy", "greedy"]
    costs = [
        run_json(*words, "--learn-from", path)["policies"]["greedy"]["mean_cost"] for path in (steady, rare)
    ]
    assert costs[0] < 0.5
    assert costs[1] > 0.9
    assert run_json(*words, "--learn-from", steady)["learned_from"] == [str(steady)]


def test_without_a_deadline_the_policies_that_need_none_are_compared(trace):
    path = trace("some.json", ([1] * 8 + [0] * 4) * 20)
    found = run_json("--trace", path, "--length", "12h", "--overhead", "0s")
    assert list(found["policies"]) == ["on-demand", "greedy", "spot-then-on-demand", "optimum"]
    assert (found["deadline_hours"], found["limit_hours"]) == (None, 120.0)
    assert found["policies"]["greedy"]["on_demand_hours"] == 0.0
    assert "with no deadline (a run may take 120 h)" in run("--trace", path, "--length", "12h").stdout
    assert refusal("--length", "1h", "--policy", "deadline") == "--policy deadline needs --deadline"


@pytest.mark.full
def test_a_picture_is_drawn(tmp_path, eight_hours):
    path = tmp_path / "costs.svg"
    assert run("--trace", eight_hours, *JOB, "--plot", path).stderr.endswith(f"drawn: {path}\n")
    text = path.read_text()
    assert all(f">{name}<" in text for name in ("greedy", "deadline", "optimum", "0.318"))
    assert refusal("--length", "1h", "--plot", "costs.txt").startswith(
        "--plot must end in .png, .svg or .pdf"
    )


def test_what_cannot_be_simulated_is_refused_with_its_numbers(trace, eight_hours, tmp_path):
    assert refusal("--trace", eight_hours, "--length", "40h", "--deadline", "48h") == (
        "--trace: 25.0 h are recorded, but with this --deadline a run needs 50.0 h; give longer traces"
    )
    assert refusal("--trace", eight_hours, "--length", "40h").startswith(
        "--trace: 25.0 h are recorded, but with this --length a run needs "
    )
    assert refusal("--length", "2h", "--deadline", "2h", "--overhead", "12m") == (
        "--deadline: 2h 00m is too short even on demand: --length and one --overhead take 2h 12m"
    )
    link = tmp_path / "link.json"
    link.symlink_to(eight_hours)
    assert refusal("--trace", eight_hours, "--learn-from", link, *JOB) == (
        f"--learn-from: {link} is also in --trace; a policy must not know its future"
    )
    assert refusal("--trace", eight_hours, "--zones", "2", *JOB) == (
        "--zones cannot be combined with --trace, where each file is a zone"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 0]", "Expected `object`, got `array`"),
        ('{"metadata": {}, "data": [1, 0]}', "missing required field `gap_seconds` - at `$.metadata`"),
        (
            '{"metadata": {"gap_seconds": 0}, "data": [1, 0]}',
            "Expected `float` >= 1.0 - at `$.metadata.gap_seconds`",
        ),
        (
            '{"metadata": {"gap_seconds": 60}, "data": [1, "up"]}',
            "Expected `float`, got `str` - at `$.data[1]`",
        ),
        ('{"metadata": {"gap_seconds": 60}, "data": [1, -1]}', "Expected `float` >= 0.0 - at `$.data[1]`"),
        ('{"metadata": {"gap_seconds": 60}, "data": []}', "Expected `array` of length >= 2 - at `$.data`"),
        ("\xff", "JSON is malformed"),
    ],
)
def test_what_is_not_a_trace_is_named_with_its_field(tmp_path, text, said):
    path = tmp_path / "odd.json"
    path.write_text(text)
    found = refusal("--trace", path, *JOB)
    assert found.startswith(
        f'{path} is not a trace of the form {{"metadata": {{"gap_seconds": N}}, "data": [...]}}: '
    )
    assert said in found


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert (
        refusal("--trace", tmp_path / "no.json", *JOB)
        == f"cannot read {tmp_path}/no.json: No such file or directory"
    )
    assert refusal("--learn-from", tmp_path, *JOB) == f"cannot read {tmp_path}: Is a directory"


# --- earlier runs ---------------------------------------------------------------------------------


@pytest.mark.full
def test_a_job_that_succeeded_tells_its_times_and_prices(jobs):
    job_id = jobs.reclaimed_and_finished()
    found = jobs.run_json("simulate", job_id, "--deadline", "1h", "--starts", "5")
    assert found["past_job"] == job_id
    shown = jobs.run_json("show", job_id)
    assert 3600 * found["length_hours"] == pytest.approx(shown["time"]["training"])
    # From a launch to its generation 60 s, and from the second generation to its training 12 s.
    assert 3600 * found["overhead_hours"] == pytest.approx(72.0)
    assert (found["spot_price"], found["on_demand_price"], found["currency"]) == (0.3, 1.0, "USD")
    one = found["policies"]["on-demand"]
    assert one["money"] == pytest.approx(found["length_hours"] + found["overhead_hours"])
    assert one["money_range"] == pytest.approx([one["money"]] * 2)
    text = jobs.run("simulate", job_id[:8], "--starts", "5").stdout
    assert f"values that were not given are taken from job {job_id}" in text.splitlines()


@pytest.mark.full
def test_what_is_given_overrides_the_earlier_run(jobs):
    job_id = jobs.reclaimed_and_finished()
    words = ["--length", "2h", "--overhead", "0s", "--spot-price", "0.5", "--on-demand-price", "7 EUR"]
    found = jobs.run_json("simulate", job_id, *words, "--starts", "5")
    assert (found["length_hours"], found["overhead_hours"], found["spot_price"]) == (2.0, 0.0, 0.5)
    assert (found["on_demand_price"], found["currency"]) == (7.0, "EUR")


def test_of_a_job_file_the_newest_success_counts(jobs):
    job_id = jobs.reclaimed_and_finished()
    write_summary(jobs.store, summarise(HistoryReader(jobs.store, job_id).read(), at(13)))
    jobs.submit("digits-zzzz")
    found = jobs.run_json("simulate", str(jobs.job_file), "--starts", "5")
    assert found["past_job"] == job_id


def test_a_job_that_has_not_trained_tells_nothing(jobs):
    jobs.submit("digits-zzzz")
    said = jobs.run("simulate", "digits-zzzz", status=2).stderr
    assert said == (
        "error: the records of job digits-zzzz do not show how long it trains; give --length instead of a job\n"
    )
    said = jobs.run("simulate", str(jobs.job_file), status=5).stderr
    assert said.startswith("error: no job 'digits' in file://")
    assert "shows how long it trains" in said
    assert refusal("--deadline", "1h") == "give --length, or a job that has trained"
