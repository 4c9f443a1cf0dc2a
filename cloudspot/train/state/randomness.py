"""The state of the random generators that training uses: Python's, NumPy's, torch's and CUDA's."""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

_CUDA = "cuda"
_STATE_WORDS = 624
"""The number of words in the Mersenne Twister's state. After seeding, Python and NumPy report this number as
their position."""
_numpy_known: tuple[bytes, Any] = (b"", None)
"""The memory of NumPy's generator, and the state that it returned while its memory was the same."""


def capture(devices: Collection[int] = ()) -> dict[str, Any]:
    """Return the state of all generators, including CUDA's for ``devices``, as values for a checkpoint."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = _numpy_state(numpy)
    if devices:
        state[_CUDA] = [torch.cuda.get_rng_state(device) for device in sorted(devices)]
    return state


def _numpy_state(numpy: Any) -> Any:
    """Return the state of NumPy's generator, which is read only if it changed: reading takes 40 µs."""
    global _numpy_known  # noqa: PLW0603 - as there is one generator, there is one state
    memory = _numpy_memory(numpy)
    if memory and memory == _numpy_known[0]:
        return _numpy_known[1]
    state = numpy.random.get_state(legacy=True)
    if memory and memory == _numpy_memory(numpy):  # no other thread has drawn since
        state[1].setflags(write=False)  # it will be returned again
        _numpy_known = memory, state
    return state


def _numpy_memory(numpy: Any) -> bytes:
    """Return the memory of NumPy's generator; if it is equal at two times, the state is equal too."""
    own, bits = numpy.random.mtrand._rand, numpy.random.get_bit_generator()  # noqa: SLF001 - it has no public name
    if type(bits) is not numpy.random.MT19937:
        return b""
    head = object.__basicsize__  # without the reference count
    body = ctypes.string_at(id(own) + head, type(own).__basicsize__ - head)
    return body + ctypes.string_at(bits.ctypes.state_address, 4 * (_STATE_WORDS + 1))


def is_same(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Return whether two captured states are equal, so no number was drawn between them."""
    return (
        one.keys() == two.keys()
        and one["python"] == two["python"]
        and torch.equal(one["torch"], two["torch"])
        and all(map(torch.equal, one.get(_CUDA, ()), two.get(_CUDA, ())))
        and _is_same_of_numpy(one.get("numpy"), two.get("numpy"))
    )


def after_seeds(state: Mapping[str, Any], most: int = 4) -> Iterator[Mapping[str, Any]]:
    """Yield a captured state, and the states after torch's loaders draw up to ``most`` worker seeds."""
    generator = torch.Generator()
    generator.set_state(state["torch"])
    yield state
    for _ in range(most):
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        yield {**state, "torch": generator.get_state()}


def _is_same_of_numpy(one: Any, two: Any) -> bool:
    if one is two:
        return True
    return bool((one[1] == two[1]).all()) and one[2:] == two[2:]


def drawn_since(state: dict[str, Any], devices: Collection[int] = ()) -> list[str]:
    """Return the names of the generators from which numbers were drawn since a state was captured.

    A generator that was seeded, but not used after that, does not count.
    """
    names = []
    python = random.getstate()
    if python != state["python"] and python[1][-1] != _STATE_WORDS:
        names.append("Python's")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        now, then = numpy.random.get_state(legacy=True), state.get("numpy")
        is_moved = then is None or now[2] != then[2] or not numpy.array_equal(now[1], then[1])
        # If NumPy was imported in the meantime, it has seeded itself without using Python's generator.
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
    """Restore all generators to a captured state."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])  # noqa: NPY002 - the state of NumPy's global generator is meant
    for device, cuda in zip(sorted(devices), state.get(_CUDA, ()), strict=False):
        torch.cuda.set_rng_state(cuda, device)


def reseeded(seed: int, step: int, rank: int, devices: Collection[int] = ()) -> dict[str, Any]:
    """Return the state that ``reseed`` would set, without changing the generators."""
    before = capture(devices)
    try:
        reseed(seed, step, rank)
        return capture(devices)
    finally:
        restore(before, devices)


def reseed(seed: int, step: int, rank: int) -> None:
    """Seed all generators from the current step, for a world of a different size."""
    digest = hashlib.sha256(f"{seed}:{step}:{rank}".encode()).digest()
    random.seed(digest)
    torch.manual_seed(int.from_bytes(digest[:7], "big"))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(digest[8:12], "big"))
