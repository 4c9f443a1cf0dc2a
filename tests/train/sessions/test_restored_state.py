"""What a rank resumes from that was lost when survivors saved."""

from types import SimpleNamespace

import pytest
import torch

from cloudspot.train.distributed import World
from cloudspot.train.sessions.restored_state import RestoredState
from cloudspot.train.state import randomness
from cloudspot.train.state.tree import flatten


@pytest.fixture
def resume():
    """``resume(state)``: what rank 1 of two resumes from, where rank 0 has saved that state."""

    def make(state, *, is_exact=True):
        saved = {0: flatten("rank", state, None)}
        checkpoint = SimpleNamespace(
            load=lambda objects, world: None,
            step=20,
            seed=7,
            world_size=2,
            rescue={"is_exact": is_exact},
            rank_state=saved.get,
        )
        world = World(rank=1, local_rank=1, world_size=2, local_world_size=2)
        return RestoredState(checkpoint, {}, world=world)

    return make


def test_a_lost_rank_takes_a_savers_place_in_the_data_and_generators_of_its_own(resume):
    before = randomness.capture()
    place = {"used": 3, "random": before, "moments": [(4, before)], "first": "a fingerprint"}
    state = {"random": before, "dataloader": place, "loader_generators": [11], "is_common": True}
    found = resume(state)
    own = randomness.reseeded(7, 20, 1)
    assert randomness.is_same(randomness.capture(), before)
    assert not randomness.is_same(own, before)
    loader = found.loader_state
    assert (loader["used"], loader.keys()) == (3, {"used", "random", "moments"})
    assert randomness.is_same(loader["random"], own)
    assert randomness.is_same(loader["moments"][0][1], own)
    assert found.loader_generators == [11]
    found.restore_randomness(())
    assert randomness.is_same(randomness.capture(), own)
    randomness.restore(before)


def test_a_place_that_only_its_own_rank_knows_is_no_others(resume):
    state = {"random": randomness.capture(), "dataloader": {"used": 3}, "is_common": False}
    assert resume(state).loader_state is None


@pytest.mark.parametrize("is_exact", [True, False])
def test_generators_that_are_seeded_anew_are_told_of_where_they_count(resume, caplog, is_exact):
    resume({"random": randomness.capture(), "is_common": True}, is_exact=is_exact)
    assert ("without rank 1" in caplog.text) is not is_exact
    assert torch.initial_seed() != 7
