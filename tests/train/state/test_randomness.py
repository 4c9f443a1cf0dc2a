# ruff: noqa: NPY002 - the global generator of NumPy is meant
"""The state of the random generators, which each boundary notes."""

import random

import numpy as np
import pytest
import torch

from cloudspot.train.state import randomness


@pytest.fixture(autouse=True)
def seeded():
    """Begin each test with known generators, and leave them as they were."""
    before = randomness.capture()
    randomness.reseed(1, 2, 3)
    yield
    randomness.restore(before)


def test_what_is_captured_is_what_numpy_says_whatever_was_drawn():
    chance = random.Random(5)
    draws = (
        lambda: None,
        np.random.rand,
        np.random.normal,  # every second one only uses up what the one before has left
        lambda: np.random.rand(700),
        lambda: np.random.seed(3),
        lambda: np.random.set_state(kept),
    )
    kept = np.random.get_state()
    for _ in range(300):
        chance.choice(draws)()
        if chance.random() < 0.1:
            kept = np.random.get_state()
        found, expected = randomness.capture()["numpy"], np.random.get_state()
        assert (found[0], *found[2:]) == (expected[0], *expected[2:])
        assert (found[1] == expected[1]).all()


def test_a_state_that_nothing_was_drawn_from_is_not_asked_for_again(monkeypatch):
    np.random.rand()
    first = randomness.capture()["numpy"]
    monkeypatch.setattr(np.random, "get_state", lambda legacy: pytest.fail("asked again"))
    assert randomness.capture()["numpy"] is first
    with pytest.raises(ValueError, match="read-only"):
        first[1][0] = 0


def test_another_generator_in_place_of_numpys_is_captured_as_before():
    kept = np.random.get_bit_generator()
    randomness.capture()
    try:
        np.random.set_bit_generator(np.random.MT19937(9))
        state = randomness.capture()
        drawn = np.random.rand(3).tolist()
        randomness.restore(state)
        assert np.random.rand(3).tolist() == drawn
        np.random.set_bit_generator(np.random.PCG64(9))
        with pytest.warns(RuntimeWarning, match="MT19937"):
            assert randomness.capture()["numpy"]["bit_generator"] == "PCG64"
    finally:
        np.random.set_bit_generator(kept)


def test_a_captured_state_comes_back():
    state = randomness.capture()

    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    drawn = draw()
    assert randomness.drawn_since(state) == ["Python's", "NumPy's", "torch's"]
    randomness.restore(state)
    assert draw() == drawn
