"""The stall of the training by a save, as a ratio to one copy of the same state into a warm buffer.

The floor is ``copy_`` of every tensor into one flat buffer with warm pages, in the same process. For
comparison, ``torch.save`` to a file in memory, the usual way of a script, is timed too.

    python benchmarks/checkpoint_stall.py [--gb 1.0] [--tensors 438] [--rounds 9]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

import cloudspot.train as spot
from cloudspot.train import handoff


def make_model(num_bytes: float, num_tensors: int) -> torch.nn.Module:
    # Adam keeps two values for each weight, so the weights are a third of the state.
    num_layers = num_tensors // 6  # weight and bias, each with two moments; "step" is not counted
    width = int((num_bytes / 3 / 4 / num_layers) ** 0.5)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(num_layers)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--tensors", type=int, default=438)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = make_model(options.gb * 1e9, options.tensors)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = [*model.state_dict().values()]
    for moments in optimizer.state.values():
        state.extend(moments.values())
    nbytes = sum(tensor.nbytes for tensor in state)
    print(f"state: {nbytes / 1e9:.2f} GB in {len(state)} tensors, {torch.get_num_threads()} threads")

    flat = torch.zeros(nbytes, dtype=torch.uint8)
    views, offset = [], 0
    for tensor in sorted(state, key=lambda t: -t.element_size()):
        views.append((flat[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape), tensor))
        offset += tensor.nbytes

    def copy() -> float:
        started = time.perf_counter()
        with torch.no_grad():
            for view, tensor in views:
                view.copy_(tensor)
        return time.perf_counter() - started

    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        directory = Path(name)
        os.environ[handoff.HANDOFF] = str(directory)
        os.environ[handoff.ARENA] = str(directory / "arena")
        os.environ[handoff.ARENA_SPILL] = str(directory / "spill")
        run = spot.session(model=model, optimizer=optimizer)
        steps = run.steps(1 << 40)
        for _ in range(2):
            next(steps)
        copies, stalls, bare, saves = [], [], [], []
        while not run._service._saver.can_save():  # noqa: SLF001 - the arena is claimed in the background
            time.sleep(0.01)
        for _ in range(options.rounds):
            copies.append(copy())
            # The stall is the duration of the step with the save, minus that of a step without one.
            run._service._link.rounds.request_interval()  # noqa: SLF001 - like the interval's clock
            known, longest = set(handoff.seals_directory(directory).iterdir()), 0.0
            while not (fresh := set(handoff.seals_directory(directory).glob("seal-*")) - known):
                started = time.perf_counter()
                next(steps)
                longest = max(longest, time.perf_counter() - started)
            (seal,) = fresh
            stalls.append(longest)
            bare.append(json.loads(seal.read_text())["stall_seconds"])
            seal.unlink()  # this frees the slot
            if len(saves) < 3:
                started = time.perf_counter()
                torch.save([model.state_dict(), optimizer.state_dict()], directory / "whole.pt")
                saves.append(time.perf_counter() - started)
                (directory / "whole.pt").unlink()
        del steps
        run.close()

    floor = statistics.median(copies)
    print(f"{'copy into a warm buffer':24} {1e3 * floor:8.1f} ms   1.00   {nbytes / floor / 1e9:.1f} GB/s")
    for what, found in (
        ("stall of a save", stalls),
        ("  of it copy and seal", bare),
        ("torch.save to memory", saves),
    ):
        each = statistics.median(found)
        print(f"{what:24} {1e3 * each:8.1f} ms   {each / floor:.2f}")


if __name__ == "__main__":
    main()
