"""Trainings with saves at random moments, each save compared with the state that an undisturbed run had at its boundary.

``play`` makes both runs in this process. As a script, it does so in each rank of a sharded or replicated training
(``--layout``), or for all kinds of models, on a GPU too (``--all``). Everything that may make a save go wrong next to a step happens here: buffers that
forward passes change, writes between a boundary and an optimizer's step by all the ways in which scripts write, weights
that are swapped and put back, and copies that take about as long as a step.
"""

import argparse
import contextlib
import copy
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch

import cloudspot.train as spot
from cloudspot.train import handoff
from cloudspot.train.rounds.step_seconds import StepSeconds
from cloudspot.train.sessions import overlapped_save
from cloudspot.train.sessions.saving import Saver
from cloudspot.train.state import arena, overlapped_copy
from cloudspot.train.state.checkpoint import take, weights_sha256
from cloudspot.train.state.overlapped_copy import OverlappedCopy

NUM_STEPS = 20
WIDTH = 48


@dataclass
class Training:
    """What a session tracks, and a step of it."""

    objects: dict
    step: object
    """Called with the number of the step."""


@dataclass
class Outcome:
    """What became of the saves of a run."""

    num_sealed: dict = field(default_factory=lambda: {"boundary": 0, "overlapped": 0})
    wrong: list = field(default_factory=list)
    """Each difference between a save and the state at its boundary, in words."""
    num_spoilt: int = 0
    excluded: set = field(default_factory=set)
    is_equal: bool = True
    """Whether the run ended with the weights of the undisturbed one."""


# --- the models -----------------------------------------------------------------------------------


def layers(*middle):
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), *middle, torch.nn.Dropout(0.3), torch.nn.Linear(WIDTH, WIDTH)
    )


def forward(model):
    return model(torch.randn(8, WIDTH)).square().mean()


def simple(model, optimizer, *, before=lambda _step: None, after=lambda _step: None, **more):
    """Return a usual training with something before the forward pass, and after the optimizer's step."""

    def step(number):
        before(number)
        optimizer.zero_grad()
        forward(model).backward()
        optimizer.step()
        after(number)

    return Training({"model": model, "optimizer": optimizer, **more}, step)


def batch_norm():
    model = layers(torch.nn.BatchNorm1d(WIDTH))
    return simple(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))


def foreach():
    model = layers()
    return simple(model, torch.optim.AdamW(model.parameters(), 0.01, foreach=True))


def fused():
    model = layers()
    return simple(model, torch.optim.AdamW(model.parameters(), 0.01, fused=True))


def one_by_one():
    model = layers()
    return simple(model, torch.optim.RMSprop(model.parameters(), 0.01, foreach=False))


def tied():
    model = layers()
    model[2].weight = model[0].weight
    return simple(model, torch.optim.Adam(model.parameters(), 0.01))


def shared_layer():
    layer = torch.nn.Linear(WIDTH, WIDTH)
    model = torch.nn.Sequential(layer, torch.nn.ReLU(), layer)
    return simple(model, torch.optim.Adam(model.parameters(), 0.01))


def views_of_one_tensor():
    """As optimizers that flatten parameters have it."""
    model = layers()
    weights = list(model.parameters())
    flat = torch.cat([each.detach().reshape(-1) for each in weights])
    for each, part in zip(weights, flat.split([each.numel() for each in weights]), strict=True):
        each.data = part.view_as(each)
    return simple(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))


def permuted():
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 3, padding=1))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def step(_number):
        optimizer.zero_grad()
        model(torch.randn(2, 4, 6, 6)).square().mean().backward()
        optimizer.step()

    return Training({"model": model, "optimizer": optimizer}, step)


class Renormalized(torch.nn.Module):
    """Whose forward pass writes to a parameter."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(64, WIDTH, max_norm=0.5)
        self.rest = layers()

    def forward(self, inputs):
        return self.rest(inputs + self.words(torch.randint(64, (len(inputs),))))


def renormalized():
    model = Renormalized()
    return simple(model, torch.optim.Adam(model.parameters(), 0.05))


def clipped_by_data():
    """Written to where torch counts nothing, between the boundary and the optimizer's step, and only in part."""
    model = layers()

    def clip(_number):
        model[0].weight.data[3:5].mul_(0.9)

    return simple(model, torch.optim.Adam(model.parameters(), 0.01), before=clip)


def average():
    model = layers(torch.nn.BatchNorm1d(WIDTH))
    mean = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return simple(model, optimizer, after=lambda _: mean.update_parameters(model), average=mean)


def average_at_the_beginning():
    """It is written to before the optimizer steps."""
    model = layers()
    mean = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return simple(model, optimizer, before=lambda _: mean.update_parameters(model), average=mean)


def swapped():
    """A moving average by hand that takes the weights' place in an evaluation now and then, and gives it back."""
    model = layers()
    mean = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def update(_number):
        for one, other in zip(mean.parameters(), model.parameters(), strict=True):
            one.data.mul_(0.9).add_(other.data, alpha=0.1)

    def evaluate(number):
        if number % 5 == 3:
            kept = [each.detach().clone() for each in model.parameters()]
            for one, other in zip(model.parameters(), mean.parameters(), strict=True):
                one.data.copy_(other.data)
            time.sleep(0.004)
            for one, other in zip(model.parameters(), kept, strict=True):
                one.data.copy_(other)

    return simple(model, optimizer, before=evaluate, after=update, mean=mean)


def replaced():
    """Other tensors in the place of the weights, as where they are offloaded; the old ones are written to."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def replace(_number):
        for each in model.parameters():
            each.data = each.data.clone()

    return simple(model, optimizer, before=replace)


def accumulating():
    model = layers(torch.nn.BatchNorm1d(WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def step(number):
        (forward(model) / 2).backward()
        if number % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()

    return Training({"model": model, "optimizer": optimizer}, step)


def with_closure():
    model = layers()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = forward(model)
        loss.backward()
        return loss

    return Training({"model": model, "optimizer": optimizer}, lambda _: optimizer.step(closure))


class SharpnessAware(torch.optim.SGD):
    """Writes to the weights before it calls its closure (arXiv 2010.01412)."""

    def step(self, closure):
        with torch.no_grad():
            moved = []
            for group in self.param_groups:
                for each in group["params"]:
                    if each.grad is not None:
                        each.add_(each.grad, alpha=0.05)
                        moved.append((each, each.grad.clone()))
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            for each, gradient in moved:
                each.sub_(gradient, alpha=0.05)
        return super().step()


def sharpness_aware():
    model = layers()
    optimizer = SharpnessAware(model.parameters(), 0.05, momentum=0.9)

    def step(_number):
        optimizer.zero_grad()
        forward(model).backward()

        def closure():
            optimizer.zero_grad()
            forward(model).backward()

        optimizer.step(closure)

    return Training({"model": model, "optimizer": optimizer}, step)


def in_the_backward_pass():
    """An optimizer for each parameter, which steps as soon as its gradient is there."""
    model = layers()
    optimizers = {each: torch.optim.Adam([each], 0.01) for each in model.parameters()}

    def step_one(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step_one)
    named = {f"optimizer_{number}": each for number, each in enumerate(optimizers.values())}
    return Training({"model": model, **named}, lambda _: forward(model).backward())


def two_optimizers():
    one, other = layers(), layers()
    first, second = (
        torch.optim.Adam(one.parameters(), 0.01),
        torch.optim.SGD(other.parameters(), 0.05, momentum=0.9),
    )

    def step(number):
        first.zero_grad()
        forward(one).backward()
        first.step()
        if number % 2:
            second.zero_grad()
            forward(torch.nn.Sequential(one, other)).backward()
            second.step()
            first.zero_grad()

    return Training({"model": one, "other": other, "first": first, "second": second}, step)


def compiled_step():
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=True)
    make_step = torch.compile(optimizer.step, backend="eager")

    def step(_number):
        optimizer.zero_grad()
        forward(model).backward()
        make_step()

    return Training({"model": model, "optimizer": optimizer}, step)


def captured():
    """The steps are replays of a CUDA graph: torch tells of none of them, and counts nothing that they write."""
    model = layers()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, capturable=True)
    batch, graph = torch.randn(8, WIDTH), torch.cuda.CUDAGraph()

    def make_step():
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            make_step()
    torch.cuda.current_stream().wait_stream(side)

    def step(number):
        if number < 4:
            make_step()
        elif number == 4:
            with torch.cuda.graph(graph):
                make_step()
            graph.replay()
        else:
            graph.replay()

    return Training({"model": model, "optimizer": optimizer}, step)


def capturable():
    model = layers()
    return simple(model, torch.optim.Adam(model.parameters(), 0.01, capturable=True, foreach=True))


def nccl():
    """A rank of a process group, which is NCCL's on a GPU."""
    if not torch.distributed.is_initialized():
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1"
        )
        os.environ["MASTER_PORT"] = str(free_port())
        spot.init_process_group()
    model = torch.nn.parallel.DistributedDataParallel(layers(torch.nn.BatchNorm1d(WIDTH)))
    return simple(model, torch.optim.AdamW(model.parameters(), 0.01))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def by_hand():
    """No optimizer of torch: the loop writes to the weights."""
    model = layers()

    def step(_number):
        forward(model).backward()
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(each.grad, alpha=0.05)
                each.grad = None

    return Training({"model": model}, step)


KINDS = (
    *(
        batch_norm,
        foreach,
        fused,
        one_by_one,
        tied,
        shared_layer,
        views_of_one_tensor,
        permuted,
        renormalized,
    ),
    *(clipped_by_data, average, average_at_the_beginning, swapped, replaced, accumulating, with_closure),
    *(sharpness_aware, in_the_backward_pass, two_optimizers, by_hand),
)


ON_A_GPU = (capturable, captured)
GROUPS = {"nccl": nccl}


# --- the runs -------------------------------------------------------------------------------------


def bytes_of(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def state_of(run, objects):
    """Return the bytes of each tensor, and the rest of what a save at the boundary behind holds."""
    taken = take(objects)
    tensors = {name: bytes_of(each) for name, each in taken.tensors.items()}
    rest = {"objects": taken.objects, "rank": run._describe().flatten_rank_state()}
    return tensors, json.loads(json.dumps(rest))


@contextlib.contextmanager
def slow_copies(chance):
    """Have threads copy a little at a time, so that a copy takes about as long as a step."""
    copy_piece, pause = OverlappedCopy._copy_piece, chance.choice((0.0, 0.0002, 0.001))

    def slowly(self, *, with_threads):
        if not with_threads:
            time.sleep(pause)
        return copy_piece(self, with_threads=with_threads)

    with (
        mock.patch.object(OverlappedCopy, "_copy_piece", slowly),
        mock.patch.object(overlapped_copy, "PIECE_BYTES", 1 << 10),
        mock.patch.object(overlapped_copy, "_BETWEEN_BYTES", 1 << 10),
        mock.patch.object(arena, "_MIN_LATER_BYTES", 1),
        mock.patch.object(StepSeconds, "lookahead", side_effect=lambda: chance.randrange(2)),
        mock.patch.object(overlapped_save, "QUIET_SECONDS", chance.choice((0.05, 1.0))),
    ):
        yield


def compare(expected, seal, rank):
    """Yield what differs in a seal, and the bytes of its slot, from the state at its boundary."""
    if expected is None:
        yield f"step {seal['step']} was no boundary"
        return
    tensors, rest = expected
    data = Path(seal["slot"]).read_bytes()
    for item in seal["items"]:
        if data[item["offset"] : item["offset"] + item["nbytes"]] != tensors[item["name"]]:
            yield f"step {seal['step']}: {item['name']} is another one ({seal['way']})"
    found = {"objects": seal["objects"]["state"], "rank": seal["rank_states"][str(rank)]}
    if found != rest:
        yield f"step {seal['step']}: what it holds beside tensors is something else"


def play(make, seed, open_session, *, num_steps=NUM_STEPS):
    """Train undisturbed, and with saves; ``open_session(with_agent=..., **objects)`` opens a session."""
    torch.manual_seed(seed)
    training = make()
    run = open_session(with_agent=False, **training.objects)
    expected = {}
    for step in run.steps(num_steps):
        expected[step] = state_of(run, training.objects)
        training.step(step)
    weights = weights_of(training)
    run.close()

    chance, outcome = random.Random(seed), Outcome()
    seal, lock = Saver.seal, threading.Lock()

    def compared_seal(self, copied, **options):
        seal(self, copied, **options)
        path = copied.slot.seal
        sealed = json.loads(path.read_text())
        with lock:
            if sealed["kind"] == "interval":
                outcome.num_sealed[sealed["way"]] += 1
                outcome.wrong += compare(expected.get(sealed["step"]), sealed, sealed["rank"])
        path.unlink()  # as the agent does: the slot is free

    torch.manual_seed(seed)
    training = make()
    with mock.patch.object(Saver, "seal", compared_seal), slow_copies(chance):
        run = open_session(with_agent=True, **training.objects)
        rounds = run._service._link.rounds
        for step in run.steps(num_steps):
            time.sleep(chance.choice((0, 0, 0.002)))
            training.step(step)
            if run.rank == 0 and chance.random() < 0.7:
                rounds.request_interval()
            if run.world_size == 1 and chance.random() < 0.8:
                end = time.monotonic() + 0.2
                while rounds._hold is None and time.monotonic() < end:
                    time.sleep(0.0005)
        way = run._service._interval_saves._way
        outcome.num_spoilt, outcome.excluded = way._num_spoilt, way.excluded
        outcome.is_equal = weights_of(training) == weights
        run.close()
    return outcome


def weights_of(training):
    tensors = take({"model": training.objects["model"]}).tensors
    return {name: bytes_of(each) for name, each in tensors.items()} or weights_sha256(
        training.objects["model"]
    )


# --- ranks ----------------------------------------------------------------------------------------


def sharded(layout):
    from sharded import BATCH, LENGTH, WORDS, Model, shard

    world_size = torch.distributed.get_world_size()
    model = Model(0.2)
    if layout == "ddp":
        num_data, place = world_size, torch.distributed.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        num_data, place = shard(model, layout, world_size)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def step(number):
        words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(number))
        words = words.chunk(num_data)[place]
        logits = model(words[:, :-1]).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training({"model": model, "optimizer": optimizer}, step)


def play_all(kinds, num_runs, device):
    """Play each kind of a training several times, and print a line of JSON for each kind."""
    torch.set_default_device(device)
    if device != "cpu":  # else not even two undisturbed runs need be equal
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(mode=True)
        torch.backends.cudnn.benchmark = False
    known = {each.__name__: each for each in (*KINDS, *(ON_A_GPU if device != "cpu" else ()))} | GROUPS
    names = kinds.split(",") if kinds else [name for name in known if name not in GROUPS]
    for name in names:
        outcomes = [play_alone(known[name], seed) for seed in range(num_runs)]
        found = {
            "kind": name,
            "runs": num_runs,
            "sealed": {
                way: sum(each.num_sealed[way] for each in outcomes) for way in ("overlapped", "boundary")
            },
            "spoilt": sum(each.num_spoilt for each in outcomes),
            "wrong": [wrong for each in outcomes for wrong in each.wrong],
            "is_equal": all(each.is_equal for each in outcomes),
        }
        print(json.dumps(found), flush=True)


def play_alone(make, seed):
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        directory = Path(name)
        environment = {
            handoff.HANDOFF: str(directory / "handoff"),
            handoff.GENERATION: "1",
            handoff.ARENA: str(directory / "arena"),
            handoff.ARENA_SPILL: str(directory / "spill"),
        }

        def open_session(*, with_agent, **objects):
            os.environ.pop(handoff.HANDOFF, None)
            if with_agent:
                handoff.seals_directory(directory / "handoff").mkdir(parents=True)
                os.environ.update(environment)
            return spot.session(**objects)

        return play(make, seed, open_session)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kinds")
    parser.add_argument("--layout", choices=("ddp", "fsdp", "tp", "fsdp-tp", "hsdp"))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    if options.all:
        play_all(options.kinds, options.runs, options.device)
        return
    spot.init_process_group()
    directory = os.environ[handoff.HANDOFF]

    def open_session(*, with_agent, **objects):
        os.environ.pop(handoff.HANDOFF, None)
        if with_agent:
            os.environ[handoff.HANDOFF] = directory
        return spot.session(**objects)

    outcome = play(lambda: sharded(options.layout), options.seed, open_session)
    found = {
        "wrong": outcome.wrong,
        "sealed": outcome.num_sealed,
        "spoilt": outcome.num_spoilt,
        "is_equal": outcome.is_equal,
    }
    (options.results / f"outcome-{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
