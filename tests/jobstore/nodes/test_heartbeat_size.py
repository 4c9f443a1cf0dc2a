"""What the size of a heartbeat tells."""

import pytest

from cloudspot.jobstore.nodes.heartbeat_size import MODULUS, change_count, fill_up


@pytest.mark.parametrize("length", [0, 1, 500, MODULUS - 1, MODULUS, 5000])
def test_a_size_tells_changes_and_differs_from_beat_to_beat(length):
    sizes = [len(fill_up(b"x" * length, num_beats=beats, num_changes=70)) for beats in range(100, 116)]
    assert len({size % MODULUS for size in sizes}) == 16
    assert {change_count(size) for size in sizes} == {70 % 64}
    assert all(length <= size < length + MODULUS for size in sizes)
