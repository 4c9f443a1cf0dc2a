"""The state of the random generators that a training uses: Python's, NumPy's, torch's and CUDA's."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Collection
from typing import Any

import torch

_CUDA = "cuda"
_STATE_WORDS = 624
"""Of the Mersenne Twister: Python and NumPy say after seeding that as many are used up."""


def capture(devices: Collection[int] = ()) -> dict[str, Any]:
    """Return the state of every generator, these CUDA devices' too, as values that a checkpoint can hold."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=True)
    if devices:
        state[_CUDA] = [torch.cuda.get_rng_state(device) for device in sorted(devices)]
    return state


def drawn_since(state: dict[str, Any], devices: Collection[int] = ()) -> list[str]:
    """Return the names of the generators that were drawn from since a state was captured.

    One that was seeded and not drawn from since does not count.
    """
    names = []
    python = random.getstate()
    if python != state["python"] and python[1][-1] != _STATE_WORDS:
        names.append("Python's")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        now, then = numpy.random.get_state(legacy=True), state.get("numpy")
        is_moved = then is None or now[2] != then[2] or not numpy.array_equal(now[1], then[1])
        # Python draws nothing for a NumPy that was imported meanwhile, which seeds itself.
        if is_moved and now[2] != _STATE_WORDS:
            names.append("NumPy's")
    seeded = torch.Generator().manual_seed(torch.initial_seed()).get_state()
    if not any(torch.equal(torch.get_rng_state(), each) for each in (state["torch"], seeded)):
        names.append("torch's")
    for device, then in zip(sorted(devices), state.get(_CUDA, ()), strict=False):
        cuda = torch.cuda.get_rng_state(device)
        # The offset, which is 0 after seeding, is in the last eight bytes.
        if not torch.equal(cuda, then) and bool(cuda[-8:].any()):
            names.append(f"cuda:{device}'s")
    return names


def restore(state: dict[str, Any], devices: Collection[int] = ()) -> None:
    """Restore every generator to a captured state."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])  # noqa: NPY002 - the state of NumPy's global generator is meant
    for device, cuda in zip(sorted(devices), state.get(_CUDA, ()), strict=False):
        torch.cuda.set_rng_state(cuda, device)


def reseed(seed: int, step: int, rank: int) -> None:
    """Seed every generator anew from the step reached, for a world of another size."""
    digest = hashlib.sha256(f"{seed}:{step}:{rank}".encode()).digest()
    random.seed(digest)
    torch.manual_seed(int.from_bytes(digest[:7], "big"))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(digest[8:12], "big"))
