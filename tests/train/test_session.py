"""The session in one process: with an agent's directory, and without."""

import errno
import faulthandler
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import cloudspot.train as spot
from cloudspot.train import handoff
from cloudspot.train.distributed import World
from cloudspot.train.rounds import interval
from cloudspot.train.sessions import opening, saving, service
from cloudspot.train.state.checkpoint import weights_sha256


def make_objects():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.4), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def train_step(objects):
    loss = objects["model"](torch.randn(4, 8)).square().mean()
    objects["optimizer"].zero_grad()
    loss.backward()
    objects["optimizer"].step()
    objects["scheduler"].step()
    return loss.item()


@pytest.fixture
def train(open_session, courier, until_held):
    """Train in one generation; drain at a step if told to; return the session."""

    def run_generation(total, *, drain_at=None, restore=None, on_step=lambda run: None, **options):
        objects = make_objects()
        run = open_session(courier.begin(restore), **objects, **options)
        for step in run.steps(total):
            assert run.step == step
            train_step(objects)
            on_step(run)
            if step == drain_at:
                courier.drain()
                until_held(run)
        return run

    return run_generation


# --- without an agent ---------------------------------------------------------------------------


def test_importing_the_package_imports_no_torch():
    code = "import sys, cloudspot.train as s; s.handoff if False else None; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_an_agent_a_session_counts_steps_and_starts_nothing(open_session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = set(threading.enumerate())
    objects = make_objects()
    run = open_session({}, **objects)
    seen = []
    for step in run.steps(3):
        run.log(loss=train_step(objects))
        seen.append((step, run.step, run.draining()))
    assert seen == [(0, 0, False), (1, 1, False), (2, 2, False)]
    assert run.step == 3
    assert (run.rank, run.world_size, run.resumed, run.epoch) == (0, 1, False, 0)
    assert set(threading.enumerate()) <= threads
    assert list(tmp_path.iterdir()) == []
    assert run.artifacts.samefile(tmp_path / "artifacts")


def test_a_session_draws_no_random_numbers(open_session):
    plain = make_objects()
    losses = [train_step(plain) for _ in range(5)]
    tracked = make_objects()
    run = open_session({}, **tracked)
    assert [train_step(tracked) for _ in run.steps(5)] == losses


def test_a_process_outside_of_torchrun_has_no_process_group():
    assert spot.init_process_group() == torch.device("cuda", 0) if torch.cuda.is_available() else True
    assert not torch.distributed.is_initialized()


def test_several_ranks_without_a_process_group_are_told_what_to_call(open_session, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(spot.SessionError, match=r"call cloudspot.train.init_process_group\(\) before"):
        open_session({})


# --- saving and leaving -------------------------------------------------------------------------


def test_a_drain_saves_and_leaves_and_code_after_the_loop_does_not_run(train, courier):
    ran = []
    with pytest.raises(SystemExit) as left:
        train(100, drain_at=7)
        ran.append("after the loop")
    assert left.value.code == 0
    assert ran == []
    ((step, seals),) = courier.seals().items()
    assert step >= 8
    assert courier.drained() == {"step": step}
    assert courier.final() is None
    assert handoff.read_progress(courier.handoff, 0) == (step, 100, step)
    seal = json.loads(seals[0].read_text())
    assert (seal["kind"], seal["rank"], seal["world_size"]) == ("drain", 0, 1)
    assert seal["nbytes"] <= Path(seal["slot"]).stat().st_size
    assert seal["nbytes"] == sum(item["nbytes"] for item in seal["items"])
    assert 0 < seal["stall_seconds"] < 60


@pytest.mark.parametrize("kind", ["notice", "stop"])
def test_a_stop_is_a_drain_too(train, courier, kind):
    def stop(run):
        if run.step == 3:
            courier.drain(kind=kind)

    with pytest.raises(SystemExit):
        train(1_000_000, on_step=stop)
    assert courier.drained()["step"] >= 4


@pytest.mark.full
@pytest.mark.parametrize("drain_at", [0, 1, 13, 58])
def test_resumed_weights_are_bit_equal(train, courier, drain_at):
    train(60)
    expected = courier.final()
    assert expected["step"] == 60
    with pytest.raises(SystemExit):
        train(60, drain_at=drain_at)
    step = courier.drained()["step"]
    run = train(60, restore=courier.carry(step))
    assert run.resumed
    assert courier.final() == expected


@pytest.mark.full
def test_many_interruptions_change_nothing(train, courier):
    train(60)
    expected = courier.final()
    restore = None
    for drain_at in (5, 17, 18, 40):
        with pytest.raises(SystemExit):
            train(60, drain_at=drain_at, restore=restore)
        restore = courier.carry()
    train(60, restore=restore)
    assert courier.final() == expected


@pytest.mark.full
def test_an_interval_save_is_as_good_as_a_drains(train, courier, until_held):
    train(60)
    expected = courier.final()

    def save(run):
        if run.step == 20:
            run._service._saver._claiming.join()
            run._service._link.rounds.request_interval()
            until_held(run)

    train(60, on_step=save)
    assert courier.final() == expected
    first, last = sorted(courier.seals())
    assert last == 60
    assert json.loads(courier.seals()[first][0].read_text())["kind"] == "interval"
    train(60, restore=courier.carry(first))
    assert courier.final() == expected


@pytest.mark.full
def test_a_full_disk_costs_an_interval_save_and_metrics_and_not_the_training(
    train, courier, until_held, monkeypatch, caplog
):
    train(60)
    expected = courier.final()

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def save(run):
        if run.step == 20:
            run._service._saver._claiming.join()
            monkeypatch.setattr(saving, "write_json", fail)
            monkeypatch.setattr(run._service._figures, "write", fail, raising=False)
            run._service._link.rounds.request_interval()
            until_held(run)
            run.log(loss=1.0)
        if run.step == 40:
            monkeypatch.undo()

    train(60, on_step=save)
    assert courier.final() == expected
    assert list(courier.seals()) == [60]
    assert "was not saved: [Errno 28] No space left on device" in caplog.text
    assert "metrics cannot be written, from step 20 on: [Errno 28]" in caplog.text


def test_an_error_at_a_boundary_comes_after_a_whole_step(open_session, courier, monkeypatch):
    objects = make_objects()
    run = open_session(courier.begin(), **objects)

    def pass_boundary(step):
        if step == 3:
            raise ValueError("no boundary")

    monkeypatch.setattr(run._service, "pass_boundary", pass_boundary)
    steps = run.steps(10)
    with pytest.raises(ValueError, match="no boundary"):
        for _ in steps:
            train_step(objects)
    assert handoff.read_progress(courier.handoff, 0) == (2, 10, 3)
    run.close()  # as at the end of a script that has caught the error: what it holds are three steps
    assert courier.final()["step"] == 3
    assert handoff.read_progress(courier.handoff, 0).reached_step == 3


@pytest.mark.full
def test_the_end_of_the_loop_saves_without_a_round(train, courier):
    train(12)
    assert sorted(courier.seals()) == [12]
    seal = json.loads(courier.seals()[12][0].read_text())
    assert seal["kind"] == "final"
    assert handoff.read_progress(courier.handoff, 0) == (12, 12, 12)


@pytest.mark.full
def test_a_session_resumed_at_its_end_says_so_again_and_saves_nothing(train, courier):
    train(12)
    expected = courier.final()
    train(12, restore=courier.carry(12))
    assert courier.final() == expected
    assert courier.seals() == {}
    assert not courier.final()["left_early"]


def test_batches_resumed_at_their_end_say_so_again_and_save_nothing(open_session, courier):
    loader = torch.utils.data.DataLoader(torch.zeros(6, 2), batch_size=2)
    for restore in (None, "newest"):
        run = open_session(courier.begin(restore and courier.carry()), model=torch.nn.Linear(2, 2))
        num_batches = len(list(run.batches(loader, epochs=2)))
        assert courier.final()["step"] == 6
    assert (num_batches, courier.seals()) == (0, {})


def test_a_drain_before_any_step_leaves_nothing_to_upload(open_session, courier, until_held):
    objects = make_objects()
    run = open_session(courier.begin(), **objects)
    courier.drain()
    until_held(run)
    with pytest.raises(SystemExit):
        next(run.steps(10))
    assert courier.drained() == {"step": None}
    assert courier.seals() == {}


@pytest.mark.full
def test_a_drain_takes_an_upload_back_that_has_not_started(train, courier):
    def fill_both_slots(run):
        if run.step in {10, 12}:
            run._service._saver._claiming.join()
            run._service._link.rounds.request_interval()
            while run._service._link.rounds._hold is None:
                pass
        if run.step == 30:
            assert len(courier.seals()) == 2
            (oldest, *_) = sorted(courier.seals())
            path = courier.seals()[oldest][0]
            path.rename(path.with_name(path.name.replace("seal-", "taken-")))
            courier.drain()

    with pytest.raises(SystemExit):
        train(10_000_000, on_step=fill_both_slots)
    step = courier.drained()["step"]
    assert step > 30
    oldest, newest = sorted(courier.seals())
    assert newest == step
    assert handoff.parse_seal_name(courier.seals()[oldest][0].name).taken


@pytest.mark.full
def test_a_drain_whose_slots_are_being_uploaded_leaves_without_a_save_at_the_guard(train, courier):
    def fill_both_slots(run):
        if run.step in {10, 12}:
            run._service._saver._claiming.join()
            run._service._link.rounds.request_interval()
            while run._service._link.rounds._hold is None:
                pass
        if run.step == 30:
            for seals in courier.seals().values():
                seals[0].rename(seals[0].with_name(seals[0].name.replace("seal-", "taken-")))
            courier.drain(seconds=0.5)

    with pytest.raises(SystemExit):
        train(10_000_000, on_step=fill_both_slots)
    assert courier.drained() == {"step": None}
    assert len(courier.seals()) == 2


@pytest.fixture
def upload_both_slots(courier):
    """``on_step`` of a training: from step 30 on both slots are being uploaded."""

    def fill(run):
        if run.step in {10, 12}:
            run._service._saver._claiming.join()
            run._service._link.rounds.request_interval()
            while run._service._link.rounds._hold is None:
                pass
        if run.step == 30:
            for seals in courier.seals().values():
                seals[0].rename(seals[0].with_name(seals[0].name.replace("seal-", "taken-")))

    return fill


@pytest.mark.full
def test_a_notice_ends_the_wait_for_a_slot_at_the_end_of_the_loop(
    train, courier, upload_both_slots, wait_until
):
    def give_notice():
        wait_until(lambda: handoff.read_progress(courier.handoff, 0) == (40, 40, 40))
        courier.drain(seconds=0.3)

    def on_step(run):
        upload_both_slots(run)
        if run.step == 39:
            giver.start()

    giver = threading.Thread(target=give_notice)
    train(40, on_step=on_step)
    giver.join()
    assert (courier.drained(), courier.final()) == ({"step": None}, None)
    assert len(courier.seals()) == 2


@pytest.mark.full
def test_a_last_state_that_finds_no_slot_is_no_end_of_the_training(
    train, courier, upload_both_slots, monkeypatch
):
    monkeypatch.setattr(service, "FINAL_SLOT_SECONDS", 0.0)
    train(40, on_step=upload_both_slots)
    assert (courier.drained(), courier.final()) == ({"step": None}, None)


@pytest.mark.full
def test_the_last_state_waits_for_an_upload_to_end(train, courier, upload_both_slots, wait_until):
    def end_an_upload():
        wait_until(lambda: handoff.read_progress(courier.handoff, 0) == (40, 40, 40))
        courier.seals()[min(courier.seals())][0].unlink()

    def on_step(run):
        upload_both_slots(run)
        if run.step == 39:
            ender.start()

    ender = threading.Thread(target=end_an_upload)
    train(40, on_step=on_step)
    ender.join()
    assert (courier.drained(), courier.final()["step"], max(courier.seals())) == (None, 40, 40)


@pytest.mark.full
def test_interval_saves_follow_the_tuning(train, courier, monkeypatch):
    monkeypatch.setattr(interval, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(interval, "_REREAD_SECONDS", 0.01)

    def carry(run):
        if run.step == 2:
            courier.tune(0.05)
        for step, seals in courier.seals().items():
            # A save may be due once more before the drain.
            if len(saved) < 3 and len(seals) == 1 and step < run.step - 5:
                seals[0].unlink()
                saved.append(step)
        if len(saved) == 3 and not run.draining():
            courier.drain()

    saved = []
    with pytest.raises(SystemExit):
        train(10_000_000, on_step=carry)
    assert len(set(saved)) == 3
    assert saved == sorted(saved)


def test_draining_tells_a_rank_at_once(train, courier):
    def drain(run):
        if run.step == 4:
            assert not run.draining()
            courier.drain()
            while not run.draining():
                pass

    with pytest.raises(SystemExit):
        train(10_000_000, on_step=drain)


def leave(run, objects, *, at, total=100):
    """Leave the loop at a step, after its work."""
    for step in run.steps(total):
        train_step(objects)
        if step == at:
            break


@pytest.mark.full
def test_the_state_in_which_a_loop_is_left_early_is_the_last_one(open_session, courier):
    objects = make_objects()
    run = open_session(courier.begin(), **objects)
    leave(run, objects, at=5)
    assert run.step == 6
    assert run._service._link.rounds.begin(6) is None
    weights = weights_sha256(objects["model"])
    expected = {"step": 6, "weights_sha256": weights, "are_weights_sharded": False}
    expected |= {"left_early": True, "planned": 100}
    assert courier.final() == expected
    train_step(objects)  # what comes after the loop changes nothing
    objects = make_objects()
    open_session(courier.begin(courier.carry(6)), **objects)
    assert weights_sha256(objects["model"]) == weights


@pytest.mark.full
def test_a_loop_that_was_left_early_is_not_gone_on_with(open_session, courier):
    """The code after it may have failed, or its machine may have been taken."""
    run = open_session(courier.begin(), **(objects := make_objects()))
    leave(run, objects, at=5)
    expected, restore = courier.final(), courier.carry(6)
    run = open_session(courier.begin(restore), **make_objects())
    assert list(run.steps(100)) == []
    assert (courier.final(), courier.seals(), run.step) == (expected, {}, 6)
    run = open_session(courier.begin(restore), **make_objects())
    assert list(run.steps(10)) == [6, 7, 8, 9]
    assert courier.final()["left_early"] is False


@pytest.mark.full
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_step_that_is_left_before_it_changes_anything_does_not_count(
    open_session, courier, until_held, is_sealed
):
    objects = make_objects()
    run = open_session(courier.begin(), **objects)
    for step in run.steps(100):
        if step == 5:
            break
        train_step(objects)
        if step == 4 and is_sealed:
            run._service._saver._claiming.join()
            run._service._link.rounds.request_interval()
            until_held(run)
    # A checkpoint of 5 steps is there already, without what says that the loop was left.
    assert sorted(courier.seals()) == ([5, 6] if is_sealed else [5])
    assert courier.final()["step"] == run.step == max(courier.seals())


@pytest.mark.full
def test_a_rank_that_leaves_without_the_others_says_so_and_saves_nothing(
    open_session, courier, caplog, monkeypatch
):
    objects = make_objects()
    run = open_session(courier.begin(), **objects)
    monkeypatch.setattr(run._service, "_world", World(0, 2, 0, 2))
    leave(run, objects, at=5)
    assert courier.seals() == {}
    assert courier.final() is None
    assert not handoff.ended_loop_path(courier.handoff, 0).exists()
    assert "rank 0 left its loop after 6 steps, but rank 1 did not: the state is not saved" in caplog.text


def test_growing_state_is_planned_anew(open_session, courier, until_held):
    objects = make_objects()
    del objects["scheduler"]
    run = open_session(courier.begin(), **objects)
    with pytest.raises(SystemExit):
        for step in run.steps(100_000):
            loss = objects["model"](torch.randn(4, 8)).square().mean()
            loss.backward()
            if step == 20:  # after long accumulation, Adam's state appears
                run._service._saver._claiming and run._service._saver._claiming.join()
                objects["optimizer"].step()
                courier.drain()
                until_held(run)
    names = {
        item["name"] for item in json.loads(next(iter(courier.seals().values()))[0].read_text())["items"]
    }
    assert "optimizer/state/0/exp_avg" in names


# --- what a session tells -----------------------------------------------------------------------


def test_logged_figures_are_lines_with_their_step(train, courier):
    def log(run):
        run.log(loss=torch.tensor(0.5), rate=run.step / 2)

    train(3, on_step=log)
    lines = [json.loads(line) for line in handoff.metrics_path(courier.handoff, 0).read_text().splitlines()]
    assert [(line["step"], line["values"]) for line in lines] == [
        (0, {"loss": 0.5, "rate": 0.0}),
        (1, {"loss": 0.5, "rate": 0.5}),
        (2, {"loss": 0.5, "rate": 1.0}),
    ]
    assert all(abs(line["time"] - lines[0]["time"]) < 60 for line in lines)


def test_progress_is_there_from_the_start(open_session, courier):
    run = open_session(courier.begin(), **make_objects())
    assert handoff.read_progress(courier.handoff, 0) == (0, None, 0)
    steps = run.steps(7)
    next(steps)
    next(steps)
    assert handoff.read_progress(courier.handoff, 0) == (1, 7, 2)


@pytest.fixture
def ask_for_dump(open_session, courier, capfd):
    """Open a session, and ask it for the stacks of its threads, as the agent does."""
    open_session(courier.begin(), **make_objects())
    pid = int(handoff.worker_pid_path(courier.handoff, 0).read_text())

    def ask():
        os.kill(pid, handoff.DUMP_SIGNAL)
        # Any thread may get it, and on a busy machine late.
        dump, until = "", time.monotonic() + 30.0
        while "link.py" not in dump and time.monotonic() < until:
            time.sleep(0.01)
            dump += capfd.readouterr().err
        return dump

    yield ask
    faulthandler.unregister(handoff.DUMP_SIGNAL)
    signal.signal(handoff.DUMP_SIGNAL, signal.SIG_DFL)


def test_the_worker_answers_the_dump_signal(ask_for_dump):
    assert "test_the_worker_answers_the_dump_signal" in ask_for_dump()


def test_the_dump_signal_ends_no_worker_whose_libraries_put_back_the_handlers_that_they_found(
    ask_for_dump, open_session, courier
):
    """Lightning does so at the end of each ``fit``; what faulthandler has set is unknown to ``signal``."""
    signal.signal(handoff.DUMP_SIGNAL, signal.getsignal(handoff.DUMP_SIGNAL))
    os.kill(os.getpid(), handoff.DUMP_SIGNAL)
    # The next session's are answered again.
    open_session(courier.begin(), **make_objects())
    assert "test_session.py" in ask_for_dump()


def test_artifacts_lie_where_the_agent_says(open_session, courier):
    run = open_session(courier.begin(), **make_objects())
    (run.artifacts / "figure.txt").write_text("x")
    assert (courier.directory / "artifacts" / "figure.txt").exists()


def test_final_hash_is_of_the_bare_model(train, courier, open_session):
    objects = make_objects()
    run = open_session(courier.begin(), **objects)
    for _ in run.steps(4):
        train_step(objects)
    weights = weights_sha256(objects["model"])
    expected = {"step": 4, "weights_sha256": weights, "are_weights_sharded": False}
    assert courier.final() == expected | {"left_early": False, "planned": None}


# --- what a session refuses ---------------------------------------------------------------------


def test_a_second_loop_is_refused(open_session):
    run = open_session({}, **make_objects())
    list(run.steps(2))
    with pytest.raises(spot.SessionError, match="a session drives a single loop"):
        list(run.steps(2))


def test_a_second_session_with_an_agent_is_refused(open_session, courier):
    environment = courier.begin()
    open_session(environment, **make_objects())
    with pytest.raises(spot.SessionError, match="already has a session"):
        open_session(environment, **make_objects())


def test_state_that_cannot_be_saved_is_refused_when_the_session_opens(open_session):
    class Odd:
        def state_dict(self):
            return {"when": object()}

        def load_state_dict(self, state):
            """Never called."""

    with pytest.raises(spot.SessionError, match=r"odd/when is a builtins\.object"):
        open_session({}, odd=Odd())


def test_a_model_that_does_not_load_what_it_saves_is_refused_when_the_session_opens(open_session):
    """As one whose weights bitsandbytes has quantized to 4 bits; its job ended at its first notice."""

    class Quantized(torch.nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "weight.absmax"] = torch.ones(2)

    class Counting(torch.nn.Linear):
        loads = 0

        def get_extra_state(self):
            return {"seen": 3}

        def set_extra_state(self, state):
            Counting.loads += 1

    with pytest.raises(spot.SessionError, match=r"does not load its own state_dict, (?s:.)*weight.absmax"):
        open_session({}, model=torch.nn.Sequential(Quantized(2, 2)))

    class Adapted(torch.nn.Linear):
        def state_dict(self, **options):
            return {"bias": super().state_dict(**options)["bias"]}

    with pytest.raises(spot.SessionError, match=r"Missing key\(s\) in state_dict: \"weight\""):
        open_session({}, model=Adapted(2, 2))
    open_session({}, model=torch.nn.Sequential(Counting(2, 2)))
    assert Counting.loads == 0


def test_a_checkpoint_of_other_objects_is_refused(train, courier, open_session):
    train(3)
    restore = courier.carry(3)
    objects = make_objects()
    del objects["scheduler"]
    with pytest.raises(spot.CheckpointError, match=r"session\(\) lacks scheduler"):
        open_session(courier.begin(restore), **objects)


@pytest.fixture
def wrapped_model():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield lambda **options: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), **options)
    torch.distributed.destroy_process_group()


def test_exact_with_three_ranks_insists_on_buckets_that_stay(wrapped_model):
    three, two = World(0, 3, 0, 3), World(0, 2, 0, 2)
    with pytest.raises(spot.SessionError, match="find_unused_parameters=True"):
        opening.check_exact(wrapped_model(), three, exact=True)
    opening.check_exact(wrapped_model(find_unused_parameters=True), three, exact=True)
    opening.check_exact(wrapped_model(), three, exact=False)
    opening.check_exact(wrapped_model(), two, exact=True)


@pytest.mark.parametrize("state", [None, {}, {"python": 3}, {"python": {"$reduce": ["os.system", "true"]}}])
def test_malformed_random_state_is_a_checkpoint_error(train, courier, open_session, state):
    train(3)
    restore = courier.carry(3)
    manifest = json.loads((restore / "restore.json").read_text())
    manifest["parts"][0]["seal"]["rank_states"]["0"]["random"] = state
    (restore / "restore.json").write_text(json.dumps(manifest))
    with pytest.raises(spot.CheckpointError, match="malformed"):
        next(open_session(courier.begin(restore), **make_objects()).steps(5))


# --- the pieces that people track ---------------------------------------------------------------

SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3),
    "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5, 25]),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=40),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.001, 0.1, cycle_momentum=False),
    "chain": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[10],
    ),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.01),
    "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "tensor rate": lambda p: torch.optim.Adam(p, torch.tensor(0.01), foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.01),
    "groups": lambda p: torch.optim.Adam([{"params": [each], "lr": 0.01, "name": "g"} for each in p]),
}
PAIRS = [("momentum", name) for name in SCHEDULERS] + [(name, None) for name in OPTIMIZERS]


@pytest.mark.full
@pytest.mark.parametrize(("optimizer", "scheduler"), PAIRS)
def test_common_optimizers_and_schedulers_resume_bit_equal(
    open_session, courier, until_held, optimizer, scheduler
):
    def train(restore, drain_at=None):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.4), torch.nn.Linear(4, 1))
        tracked = {"model": model, "optimizer": OPTIMIZERS[optimizer](list(model.parameters()))}
        if scheduler is not None:
            tracked["scheduler"] = SCHEDULERS[scheduler](tracked["optimizer"])
        average = torch.optim.swa_utils.AveragedModel(model)
        scaler = torch.amp.GradScaler("cpu")
        run = open_session(courier.begin(restore), **tracked, scaler=scaler, average=average)

        def closure():
            tracked["optimizer"].zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            return loss

        for step in run.steps(30):
            tracked["optimizer"].step(closure)
            if scheduler is not None:
                tracked["scheduler"].step()
            average.update_parameters(model)
            if step == drain_at:
                courier.drain()
                until_held(run)
        return weights_sha256(average)

    expected, expected_final = train(None), courier.final()
    with pytest.raises(SystemExit):
        train(None, drain_at=12)
    assert train(courier.carry()) == expected
    assert courier.final() == expected_final


def test_a_loss_that_is_no_number_is_logged_as_such(train, courier):
    train(1, on_step=lambda run: run.log(loss=math.nan))
    (line,) = handoff.metrics_path(courier.handoff, 0).read_text().splitlines()
    assert math.isnan(json.loads(line)["values"]["loss"])
