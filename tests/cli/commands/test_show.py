"""``cloudspot show``."""

from datetime import datetime

import pytest
from support.records.jobclock import at

from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Final, SaveId, Slot


def test_json_has_the_whole_story(jobs):
    value = jobs.run_json("show", jobs.reclaimed_and_finished(), "--verify")
    assert value["id"] == "digits-7k3f"
    assert (value["state"], value["exit_code"]) == ("succeeded", 0)
    assert [launch["outcome"] for launch in value["launches"]] == ["reclaimed", "succeeded"]
    assert [notice["step"] for notice in value["notices"]] == [39]
    assert (value["step"], value["steps_total"], value["steps_lost"]) == (100, 100, 0)
    assert value["last_commit"] == {
        "generation": 2,
        "step": 100,
        "verified": True,
        "bytes": 1000,
        "shared_bytes": 0,
        "evidence": None,
        "rescue": None,
    }
    assert value["cost"]["spent"] == 0.06
    assert value["cost"]["on_demand_equivalent"] == 0.2
    assert value["cost"]["currency"] == "USD"
    assert value["final"] == {
        "step": 100,
        "weights_sha256": "ab" * 32,
        "are_weights_sharded": False,
        "metrics": {"accuracy": 0.975},
    }


def test_json_accounts_for_the_jobs_time_its_machines_and_its_notice(jobs):
    value = jobs.run_json("show", jobs.reclaimed_and_finished())
    total = value["time"].pop("total")
    assert sum(value["time"].values()) == pytest.approx(total)
    assert value["time"]["training"] == pytest.approx(value["goodput"] * total, rel=1e-3)
    assert sum(value["time"].values()) == pytest.approx(
        sum(_seconds(span["start"], span["end"]) for span in value["timeline"])
    )
    assert value["timeline"][-1]["end"] == value["finished"]
    [notice] = value["notices"]
    assert notice["commit"] == {"generation": 1, "step": 40}
    assert notice["commit_seconds"] == 9.0
    assert [(line["instance_id"], line["seconds"], line["spent"]) for line in value["ledger"]] == [
        ("m-1", 360.0, 0.03),
        ("m-2", 360.0, 0.03),
    ]
    assert [(one["last_step"], one["steps_lost"]) for one in value["generations"]] == [(40, 0), (100, 0)]


def tables(lines):
    """Return the lines of each table below its head, by the head's first word."""
    parts = "\n".join(lines).split("\n\n")
    return {part.split(None, 1)[0]: part.splitlines()[1:] for part in parts}


def _seconds(start, end):
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def test_text_tells_where_the_time_went_and_what_each_generation_and_machine_did(jobs):
    text = jobs.run("show", jobs.reclaimed_and_finished(), "--all").stdout
    times = [line.split() for line in text.splitlines() if "█" in line or "░" in line][1:]
    assert [(state, seconds) for state, *seconds, _, _ in times] == [
        ("launching", ["1m", "00s"]),
        ("setup", ["30s"]),
        ("restoring", ["30s"]),
        ("starting", ["24s"]),
        ("training", ["8m", "12s"]),
        ("saving", ["36s"]),
        ("waiting", ["48s"]),
    ]
    found = tables(text.splitlines())
    assert [line.split() for line in found["GENERATION"]] == [
        ["1", "1.0", "start", "40", "0", "3m", "57s", "first"],
        ["2", "2.0", "40", "100", "0", "4m", "18s", "relaunched"],
    ]
    [notice] = found["NOTICE"]
    assert notice.split()[1:] == ["1.0", "39", "30s", "step", "40", "after", "9.0s", "metadata"]
    assert [" ".join(line.split()) for line in found["MACHINE"]] == [
        "m-1 1.0 6m 00s 0.3000 USD 0.0300 USD",
        "m-2 2.0 6m 00s 0.3000 USD 0.0300 USD",
        "total 12m 00s 0.0600 USD",
        "of it: starting 2m 00s 0.0100 USD",
        "on demand 12m 00s 0.2000 USD",
        "saved 0.1400 USD (70%)",
    ]


def test_goodput_is_said_to_be_unknown_or_a_lower_bound_where_nodes_have_not_told(jobs):
    job_id = jobs.reclaimed_and_finished()
    jobs.add_heartbeat(job_id, 1, step=40, minutes=5, state="ending")
    assert "at least " in _field(jobs.run("show", job_id), "goodput")
    jobs.add_heartbeat(job_id, 2, step=40, minutes=5, state="ending")
    assert _field(jobs.run("show", job_id), "goodput") == "unknown"


def _field(result, name):
    [line] = [line for line in result.stdout.splitlines() if line.startswith(f"  {name} ")]
    return line.split(None, 1)[1]


def test_text_has_the_block_of_figures_and_the_launches(jobs):
    lines = jobs.run("show", jobs.reclaimed_and_finished(), "--all").stdout.splitlines()
    assert lines[0] == "job digits-7k3f succeeded"
    fields = {line.split()[0]: line.split(None, 1)[1] for line in lines[1:] if line.startswith("  ")}
    assert fields["starts"] == "2"
    assert fields["notices"] == "1"
    assert fields["steps"] == "100/100, 0 lost"
    assert fields["last"] == "commit  step 100, 1000 B"
    assert fields["cost"] == "0.0600 USD (on demand 0.2000 USD: 70% saved)"
    assert fields["weights"] == "sha256 " + "ab" * 32
    assert fields["metrics"] == "accuracy 0.975"
    assert fields["logs"] == f"cloudspot logs digits-7k3f --store {jobs.store.url}"
    launches = [line.split() for line in tables(lines)["LAUNCH"]]
    for launch in launches:
        del launch[2]  # When it started.
    assert [" ".join(launch) for launch in launches] == [
        "1 spot/local-a/local reclaimed: the provider took back m-1 (node 1.0) first",
        "2 spot/local-a/local succeeded reclaimed",
    ]


def test_what_matters_is_in_the_first_five_lines(jobs):
    for job in (jobs.reclaimed_and_finished(), jobs.running("going-1")):
        lines = jobs.run("show", job).stdout.splitlines()
        assert [line.split()[0] for line in lines[:5]] == ["job", "steps", "cost", "duration", "next"]


def test_the_steps_that_a_script_without_a_session_lost_are_unknown(jobs):
    job_id = jobs.reclaimed_and_finished()
    own = {"has_session": False}
    jobs.add_heartbeat(job_id, 1, step=0, minutes=5, steps_total=None, **own)
    jobs.add_heartbeat(job_id, 2, step=40, minutes=11, steps_total=None, **own)
    jobs.add_exit(job_id, 1, "drained", step=0, minutes=5.2, **own)
    final = Final(step=None, weights_sha256=None, metrics={})
    jobs.add_exit(job_id, 2, "succeeded", step=40, minutes=12, restored_step=40, final=final, **own)
    value = jobs.run_json("show", job_id)
    assert (value["step"], value["steps_total"], value["steps_lost"]) == (100, None, None)
    assert value["final"]["step"] == 100
    [line] = [line for line in jobs.run("show", job_id).stdout.splitlines() if line.startswith("  last save")]
    assert line.split(None, 2)[2] == "100; steps lost: unknown"


LAST_LINES = [
    "last lines of node 1.0 (exit code 3):",
    "  Traceback (most recent call last):",
    "  ValueError: no data",
]


def test_a_failed_job_shows_the_end_of_its_log(jobs):
    lines = jobs.run("show", jobs.failed()).stdout.splitlines()
    assert lines[0] == "job broken-abcd failed: train.py ended with 3"
    assert lines[-5:-2] == LAST_LINES
    lines = jobs.run("show", "broken-abcd", "--section", "log").stdout.splitlines()
    assert [*filter(None, lines)] == ["job broken-abcd failed: train.py ended with 3", *LAST_LINES]


@pytest.fixture
def eventful(jobs):
    """A job of which there is much to tell."""
    job_id = jobs.reclaimed_and_finished()
    jobs.delete_end(job_id)
    for number in range(20):
        jobs.store.put(keys.output(job_id, f"out/model-{number}.safetensors"), b"x" * number)
    warnings = tuple(f"node 2.0 is short of memory {number}: " + "so it swaps, " * 40 for number in range(9))
    jobs.add_exit(
        job_id, 2, "failed", step=100, minutes=12, exit_code=1, permanent=True,
        log_tail=tuple(f"line {number}" for number in range(40)),
    )  # fmt: skip
    jobs.add_heartbeat(job_id, 2, step=100, minutes=11.5, state="ending", warnings=warnings)
    jobs.add_finished(job_id, "failed", minutes=12.5)
    return job_id


def test_an_eventful_job_fits_one_screen_and_names_what_else_there_is(jobs, eventful):
    lines = jobs.run("show", eventful).stdout.replace(jobs.store.url, "s3://bucket/jobs").splitlines()
    assert sum(max(1, -(-len(line) // 80)) for line in lines) <= 38
    assert "  line 39" in lines
    assert "  line 30" not in lines
    assert lines[-1] == (
        f"more: cloudspot show {eventful} --store s3://bucket/jobs --section NAME, of time, launches (2), "
        "generations (2), notices (1), machines (2), warnings (9), log; or --all"
    )
    calm = jobs.run("show", jobs.running("calm-1")).stdout.splitlines()
    assert len(calm) <= 24


def test_a_section_is_shown_alone_below_the_jobs_state(jobs, eventful):
    lines = jobs.run("show", eventful, "--section", "machines", "--section", "notices").stdout.splitlines()
    assert lines[0].startswith(f"job {eventful} failed")
    assert list(tables(lines[2:])) == ["NOTICE", "MACHINE"]
    warned = jobs.run("show", eventful, "--section", "warnings").stdout
    assert warned.count("node 2.0 is short of memory") == 9
    assert "so it swaps, so it swaps" in warned


def test_all_has_every_section(jobs, eventful):
    lines = jobs.run("show", eventful, "--all").stdout.splitlines()
    found = tables(lines)
    assert {"where", "LAUNCH", "GENERATION", "NOTICE", "MACHINE", "last"} <= found.keys()
    assert "  line 0" in lines


def test_a_job_without_a_launch_can_be_shown(jobs):
    jobs.submit("new-1")
    lines = jobs.run("show", "new-1").stdout.splitlines()
    assert lines[0] == "job new-1 queued"
    assert "  last commit  none" in lines
    assert jobs.run_json("show", "new-1")["last_commit"] is None


def test_verify_ends_with_8_when_the_newest_checkpoint_is_corrupt(jobs):
    jobs.reclaimed_and_finished()
    key = keys.chunk("digits-7k3f", SaveId(2, 100, 0), 0, 0)
    jobs.store.put(key, jobs.store.get(key)[:-1])
    assert jobs.run_json("show", "digits-7k3f")["last_commit"]["verified"] is None
    assert jobs.run_json("show", "digits-7k3f", "--verify", status=8)["last_commit"]["verified"] is False
    assert "step 100, 1000 B, CORRUPT" in jobs.run("show", "digits-7k3f", "--verify", status=8).stdout


def test_a_checkpoint_that_the_job_deletes_while_it_is_read_is_not_corrupt(jobs, before_reading):
    jobs.running()
    checkpoint = jobs.add_checkpoint("going-abcd", 1, 40)

    def go_on():
        jobs.add_checkpoint("going-abcd", 1, 60)
        jobs.delete_checkpoint("going-abcd", checkpoint)

    before_reading("*/chunks/*", go_on)
    found = jobs.run_json("show", "going-abcd", "--verify")["last_commit"]
    assert (found["step"], found["verified"]) == (40, None)


def test_the_newest_checkpoint_of_all_is_never_deleted_so_it_is_corrupt_if_it_is_not_there(jobs):
    jobs.running()
    jobs.delete_checkpoint("going-abcd", jobs.add_checkpoint("going-abcd", 1, 40))
    found = jobs.run_json("show", "going-abcd", status=8)["last_commit"]
    assert (found["step"], found["verified"]) == (40, False)


def test_artifacts_are_named_where_there_are_some(jobs):
    jobs.submit("new-1")
    assert "  artifacts" not in jobs.run("show", "new-1").stdout
    jobs.store.put(keys.artifact("new-1", "plot.png"), b"x" * 2048)
    for number in range(11):
        jobs.store.put(keys.output("new-1", f"out/{number:02}"), b"x")
    overview = jobs.run("show", "new-1").stdout
    assert "and 10 more; 2.0 KiB in all" in overview
    assert f"get them: cloudspot artifacts download new-1 --store {jobs.store.url}" in overview
    lines = [line.strip() for line in jobs.run("show", "new-1", "--all").stdout.splitlines()]
    first = lines.index("artifacts    plot.png, 2.0 KiB")
    assert lines[first + 1 : first + 12] == [
        *(f"out/{number:02}, 1 B" for number in range(9)),
        "and 2 more; 2.0 KiB in all",
        f"get them: cloudspot artifacts download new-1 --store {jobs.store.url}",
    ]
    jobs.store.delete(keys.output("new-1", "out/09"))
    lines = [line.strip() for line in jobs.run("show", "new-1", "--all").stdout.splitlines()]
    assert lines[first + 9 : first + 11] == ["out/08, 1 B", "out/10, 1 B"], "no line counts a single file"


@pytest.mark.parametrize("text", ["digits-7", "digits-7k3f"])
def test_a_beginning_of_the_id_will_do(jobs, text):
    jobs.submit("digits-7k3f")
    jobs.submit("digits-8aaa")
    assert jobs.run_json("show", text)["id"] == "digits-7k3f"


def test_the_exact_id_wins_over_longer_ones(jobs):
    jobs.submit("digits")
    jobs.submit("digits-2")
    assert jobs.run_json("show", "digits")["id"] == "digits"


def test_an_ambiguous_id_lists_the_jobs(jobs):
    jobs.submit("digits-1")
    jobs.submit("digits-2")
    result = jobs.run("show", "digits", status=5)
    assert result.stderr == "error: 'digits' matches 2 jobs: digits-1, digits-2\n"


@pytest.mark.parametrize("text", ["other", "../secrets", "", "UPPER"])
def test_an_unknown_id_is_an_error_of_its_own(jobs, text):
    jobs.submit("digits-1")
    assert jobs.run("show", text, status=5).stderr.startswith("error: ")


def submit_nodes(jobs, job_id, num_nodes, **exit_fields):
    """A job whose nodes have all come up, and trained."""
    jobs.submit(job_id, minutes=0)
    jobs.add_intent(job_id, 1, minutes=0, num_nodes=num_nodes)
    for rank in range(num_nodes):
        slot = Slot(instance_id=f"m-1-{rank}", address="127.0.0.1", at=at(1), writer="w")
        jobs.put(keys.slot(job_id, 1, rank), slot)
        state = "uploading" if rank in {3, 4} else "running"
        warnings = (f"node {rank} is short of memory",)
        fields = {"instance_id": f"m-1-{rank}", "state": state, "warnings": warnings}
        jobs.add_heartbeat(job_id, 1, step=5, minutes=2, rank=rank, **fields)
        if exit_fields:
            jobs.add_exit(
                job_id, 1, "failed", step=5, minutes=3, rank=rank, instance_id=f"m-1-{rank}", **exit_fields
            )


@pytest.mark.full
def test_many_nodes_are_counted_and_their_warnings_bounded(jobs):
    submit_nodes(jobs, "wide-1", 64)
    lines = jobs.run("show", "wide-1", "--all").stdout.splitlines()
    assert tables(lines)["LAUNCH"][0].endswith("62 running, 2 uploading  first")
    warned = [line.removeprefix("  warnings").strip() for line in lines if "short of memory" in line]
    assert warned == [f"node {rank} is short of memory" for rank in range(7)]
    assert "and 57 more: --section warnings" in "\n".join(lines)
    assert len(jobs.run_json("show", "wide-1")["warnings"]) == 65


@pytest.mark.full
def test_of_many_nodes_that_failed_the_last_lines_of_some_will_do(jobs):
    submit_nodes(jobs, "wide-1", 64, permanent=True, exit_code=1, log_tail=("ValueError: no data",))
    lines = jobs.run("show", "wide-1", "--section", "log").stdout.splitlines()
    assert [line for line in lines if line.startswith("last lines of node")] == [
        f"last lines of node 1.{rank} (exit code 1):" for rank in range(4)
    ]
    assert lines[-1] == (
        "60 more nodes failed; see their last lines with: "
        f"cloudspot logs wide-1 --store {jobs.store.url} --node NODE"
    )
