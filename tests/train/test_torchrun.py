"""The session in several ranks, gloo on the CPU, with a courier in the agent's place; some under torchrun."""

import json
import random
import re
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cloudspot.train import handoff


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """``undisturbed(script, courier_type, num_ranks)``: final.json of a run that nobody disturbs, once each."""
    found = {}

    def run(script, courier, num_ranks):
        if num_ranks not in found:
            other = type(courier)(tmp_path_factory.mktemp("undisturbed"))
            other.run_ranks(script, num_ranks=num_ranks, environment=other.begin())
            found[num_ranks] = other.final()
        return found[num_ranks]

    return run


@pytest.mark.full
def test_two_ranks_drain_at_one_step_and_resume_bit_equal(courier, script, undisturbed):
    expected = undisturbed(script, courier, 2)
    assert expected["step"] == 48
    output = courier.run_torchrun(script, "--drain-at", "17", num_ranks=2, environment=courier.begin())
    assert "ended" not in output
    assert courier.drained(0) == courier.drained(1)
    step = courier.drained(0)["step"]
    assert step >= 18
    assert {rank: handoff.read_progress(courier.handoff, rank) for rank in range(2)} == {
        0: (step, 48, step),
        1: (step, 48, step),
    }
    seals = {rank: json.loads(path.read_text()) for rank, path in courier.seals()[step].items()}
    assert {seal["kind"] for seal in seals.values()} == {"drain"}
    assert all(seal["nbytes"] > 1000 for seal in seals.values())
    assert seals[0]["rank_states"]["0"]["random"] != seals[1]["rank_states"]["1"]["random"]
    output = courier.run_ranks(script, num_ranks=2, environment=courier.begin(courier.carry(step)))
    assert f"rank 1 of 2 begins at {step}" in output
    assert courier.final() == expected
    assert sorted(courier.seals()) == [48]


@pytest.mark.full
@pytest.mark.parametrize("saved_at", [None, 17], ids=["alone", "at the step of an interval save"])
def test_a_rank_killed_when_it_has_handed_over_is_not_missed(courier, script, undisturbed, saved_at):
    """Its part was still to be uploaded, and the drain was lost with it, though all had agreed in time."""
    how = ["--drain-at", "17"] if saved_at is None else ["--save-at", "17", "--drain-with-save"]
    assert courier.run_nodes(script, *how, "--die-relieved", num_nodes=2) == [0, -9]
    step = courier.drained(0)["step"]
    seals = {rank: json.loads(path.read_text()) for rank, path in courier.seals()[step].items()}
    assert set(seals) == {0}
    assert (seals[0]["kind"], seals[0]["relieved"], set(seals[0]["rank_states"])) == (
        "drain",
        [1],
        {"0", "1"},
    )
    kinds = [
        json.loads(path.read_text())["kind"]
        for path in handoff.seals_directory(courier.handoffs[1]).iterdir()
    ]
    assert kinds == ([] if saved_at is None else ["interval"])
    courier.run_ranks(script, num_ranks=2, environment=courier.begin(courier.carry(step)))
    assert courier.final() == undisturbed(script, courier, 2)


@pytest.mark.full
def test_an_interval_save_of_two_ranks_resumes_bit_equal_after_a_kill(courier, script, undisturbed):
    expected = undisturbed(script, courier, 2)
    process = courier.start_torchrun(
        script, "--save-at", "10", "--kill-at", "30", num_ranks=2, environment=courier.begin()
    )
    output, _ = process.communicate(timeout=240)
    assert process.returncode != 0
    (step,) = (step for step, seals in courier.seals().items() if len(seals) == 2)
    assert 11 <= step <= 30
    # The other rank fails in its next collective, and only there.
    assert output.count("[rank0]: Traceback") <= 1, output
    assert "Exception in thread" not in output
    courier.run_ranks(script, num_ranks=2, environment=courier.begin(courier.carry(step)))
    assert courier.final() == expected


@pytest.mark.full
def test_ranks_that_gather_gradients_of_their_own_drain_where_they_have_used_them(courier, script):
    accumulate = ("--accumulate", "4")
    courier.run_ranks(script, *accumulate, num_ranks=2, environment=courier.begin())
    expected = courier.final()
    courier.run_ranks(script, *accumulate, "--drain-at", "17", num_ranks=2, environment=courier.begin())
    step = courier.drained(0)["step"]
    assert (step % 4, courier.drained(1)) == (0, {"step": step})
    courier.run_ranks(script, *accumulate, num_ranks=2, environment=courier.begin(courier.carry(step)))
    assert courier.final() == expected


@pytest.mark.full
def test_two_ranks_that_leave_their_loop_after_one_step_save_it(courier, script):
    output = courier.run_ranks(script, "--leave-at", "9", num_ranks=2, environment=courier.begin())
    assert "rank 1 ended at 10" in output
    final = courier.final()
    assert (final["step"], final["left_early"], final["planned"]) == (10, True, 48)
    assert {step: sorted(seals) for step, seals in courier.seals().items()} == {10: [0, 1]}
    again = courier.run_ranks(
        script, "--leave-at", "9", num_ranks=2, environment=courier.begin(courier.carry(10))
    )
    assert "rank 0 ended at 10" in again
    assert (courier.final(), courier.seals()) == (final, {})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(2, 1, marks=pytest.mark.soak),
        pytest.param(1, 2, marks=pytest.mark.soak),
        pytest.param(2, 3, marks=pytest.mark.soak),
    ],
)
def test_a_world_of_another_size_loads_and_goes_on(courier, script, old, new):
    courier.run_ranks(script, "--drain-at", "10", num_ranks=old, environment=courier.begin())
    step = courier.drained()["step"]
    restore = courier.carry(step)
    samples = json.loads((restore / "restore.json").read_text())["parts"][0]["seal"]["objects"]["position"]
    output = courier.run_ranks(script, num_ranks=new, environment=courier.begin(restore))
    assert f"rank 0 of {new} begins at {step}" in output
    assert output.count(f"a checkpoint of {old} ranks is resumed by {new}") == 1
    # Four epochs of 192 samples, 8 a rank and step; the position is kept in samples of the whole world.
    per_epoch = 192 // (8 * new)
    done = samples["epoch"] * per_epoch + samples["samples"] // (8 * new)
    assert courier.final()["step"] == step + 4 * per_epoch - done


def read_taken(directory):
    """Return, for each step in order, its epoch, the samples that all ranks took, and the loss."""
    steps = {}
    for path in sorted(directory.iterdir()):
        for line in path.read_text().splitlines():
            taken = json.loads(line)
            epoch, indices, loss = steps.setdefault(taken["step"], (taken["epoch"], [], taken["loss"]))
            assert (epoch, loss) == (taken["epoch"], taken["loss"])
            indices += taken["indices"]
    assert sorted(steps) == list(range(len(steps)))
    return [steps[step] for step in range(len(steps))]


def train_on(job, batches):
    """Return the losses of one process that nobody disturbs, on the given samples."""
    dataset = job["Indexed"]()
    model, optimizer, scheduler = job["make_training"]()
    losses = []
    for indices in batches:
        loss = torch.nn.functional.mse_loss(model(dataset.x[indices]), dataset.y[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.full
@pytest.mark.parametrize(
    ("sizes", "drains"),
    [
        ((2, 1), (4,)),
        ((1, 2), (8,)),
        pytest.param((2, 3), (6,), marks=pytest.mark.soak),
        pytest.param((3, 1, 2), (3, 8), marks=pytest.mark.soak),
        pytest.param((2, 1, 3, 2), (29, 31, 40), marks=pytest.mark.soak),
    ],
)
def test_another_world_takes_each_sample_once_and_its_loss_goes_on(courier, tmp_path, sizes, drains):
    script = Path(__file__).parent / "jobs" / "counted.py"
    job = runpy.run_path(str(script))
    directory = tmp_path / "taken"
    directory.mkdir()
    restore, bounds = None, []
    for num_ranks, drain_at in zip(sizes, (*drains, -1), strict=True):
        courier.run_ranks(
            script,
            *("--taken", str(directory), "--drain-at", str(drain_at)),
            num_ranks=num_ranks,
            environment=courier.begin(restore),
        )
        if drain_at >= 0:
            bounds.append(courier.drained()["step"])
            restore = courier.carry(bounds[-1])
    steps = read_taken(directory)
    assert courier.final()["step"] == len(steps)
    for epoch in range(job["EPOCHS"]):
        taken = [index for number, indices, _ in steps if number == epoch for index in indices]
        assert set(taken) == set(range(job["NUM_SAMPLES"]))
        assert len(taken) < job["NUM_SAMPLES"] + max(sizes)
        # At no change of the world has any sample come twice.
        before = [index for number, indices, _ in steps[: bounds[-1]] if number == epoch for index in indices]
        if len(before) < job["NUM_SAMPLES"]:
            assert len(set(before)) == len(before)
    losses = [loss for *_, loss in steps]
    # What one training that goes on without a break computes: with a part of the state lost, it would not.
    assert losses == pytest.approx(train_on(job, [indices for _, indices, _ in steps]), rel=1e-9)


@pytest.mark.full
def test_rank_0_leaves_last_and_nothing_complains(courier, script):
    output = courier.run_ranks(script, "--drain-at", "5", num_ranks=3, environment=courier.begin())
    lines = [line for line in output.splitlines() if not re.match(r"rank \d of 3 begins at 0$", line)]
    assert not [line for line in lines if "rror" in line or "arning" in line or "Traceback" in line], output
    assert len({courier.drained(rank)["step"] for rank in range(3)}) == 1


@pytest.mark.full
def test_a_stopped_peer_makes_the_others_leave_without_a_save_at_the_guard(courier, tmp_path, wait_until):
    """Rank 1 never answers: the drain is off at its guard, and rank 0 leaves."""
    script = tmp_path / "mute.py"
    script.write_text(
        "import os, time, pathlib\n"
        "import torch\n"
        "import cloudspot.train as spot\n"
        "spot.init_process_group()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "if int(os.environ['RANK']) == 1:\n"
        "    while not pathlib.Path(os.environ['CLOUDSPOT_HANDOFF'], 'drained-0.json').exists():\n"
        "        time.sleep(0.05)\n"
        "    os._exit(0)\n"
        "run = spot.session(model=model)\n"
        "for step in run.steps(10**9):\n"
        "    time.sleep(0.001)\n"
    )
    environment = courier.begin()
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(courier.run_ranks, script, num_ranks=2, environment=environment)
        wait_until(lambda: handoff.read_progress(courier.handoff, 0) not in {None, (0, None, 0)})
        courier.drain(seconds=1.0)
        ended.result(120)
    assert courier.drained(0) == {"step": None}
    assert courier.seals() == {}


@pytest.mark.soak
def test_three_exact_ranks_resume_bit_equal(courier, script, tmp_path_factory):
    other = type(courier)(tmp_path_factory.mktemp("undisturbed"))
    other.run_ranks(script, "--exact", num_ranks=3, environment=other.begin())
    courier.run_ranks(script, "--exact", "--drain-at", "9", num_ranks=3, environment=courier.begin())
    courier.run_ranks(script, "--exact", num_ranks=3, environment=courier.begin(courier.carry()))
    assert courier.final() == other.final()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_random_moments_resume_bit_equal(courier, script, undisturbed, num_ranks):
    expected = undisturbed(script, courier, num_ranks)
    chance = random.Random(num_ranks)
    restore, begun = None, 0
    while True:
        drain_at = chance.randrange(begun, expected["step"] + 4)
        courier.run_ranks(
            script, "--drain-at", str(drain_at), num_ranks=num_ranks, environment=courier.begin(restore)
        )
        if courier.final() is not None:
            break
        begun = courier.drained()["step"]
        restore = courier.carry(begun)
    assert courier.final() == expected


EVALUATING = Path(__file__).parent / "jobs" / "evaluating.py"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """``evaluated(options, courier)``: final.json of a run that nobody disturbs, once for each options."""
    found = {}

    def run(options, courier):
        if options not in found:
            other = type(courier)(tmp_path_factory.mktemp("undisturbed"))
            other.run_ranks(EVALUATING, *options, num_ranks=2, environment=other.begin())
            found[options] = other.final()
        return found[options]

    return run


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "noticed"),
    [
        (("--evaluates", "all"), 1),
        (("--evaluates", "0"), 0),  # the other one has gone on into the next epoch
        (("--evaluates", "0", "--head"), 0),  # the other one has gone on in the same step
        (("--evaluates", "1"), 1),
    ],
    ids=["all", "one", "one, at the head of a step", "the other one"],
)
def test_a_notice_in_an_evaluation_loses_no_step(courier, evaluated, options, noticed):
    expected = evaluated(options, courier)
    notice = ("--drain-in", "1", "--noticed", str(noticed))
    output = courier.run_ranks(EVALUATING, *options, *notice, num_ranks=2, environment=courier.begin())
    step = 7 if "--head" in options else 12
    assert courier.drained(0) == courier.drained(1) == {"step": step}, output
    assert "Traceback" not in output
    assert "evaluated 1" not in output
    assert not handoff.failed_path(courier.handoff, 0).exists()
    restored = courier.carry(step)
    output = courier.run_ranks(EVALUATING, *options, num_ranks=2, environment=courier.begin(restored))
    assert f"rank 0 begins at {step}" in output
    assert "evaluated 1" in output
    assert courier.final() == expected


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("options", [("--evaluates", each) for each in ("all", "0", "1")], ids=" ".join)
def test_a_notice_at_any_moment_among_evaluations_changes_no_bit(courier, evaluated, wait_until, options):
    chance = random.Random(options[1])
    expected = evaluated(options, courier)
    restore, num_drained = None, 0
    for _ in range(20):
        environment = courier.begin(restore)
        with ThreadPoolExecutor() as pool:
            ended = pool.submit(courier.run_ranks, EVALUATING, *options, num_ranks=2, environment=environment)
            wait_until(handoff.begun_loop_path(courier.handoff, 1).exists)
            time.sleep(chance.uniform(0.0, 0.4))
            courier.drain()
            output = ended.result(120)
        assert "Traceback" not in output
        if courier.final() is not None:
            assert courier.final() == expected
            restore = None
            continue
        assert courier.drained(0) == courier.drained(1), output
        step = courier.drained(0)["step"]
        restore = courier.carry(step) if step is not None else restore
        num_drained += 1
    assert num_drained > 3
