"""Boxes: what each rank of a mesh holds, found without asking it, and whether boxes make up a tensor."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudspot.train.state import boxes
from cloudspot.train.state.boxes import Box, Runs, Split

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


def cells(box):
    ranges = (range(start, start + length) for start, length in zip(box.offset, box.shape, strict=True))
    return set(itertools.product(*ranges))


@st.composite
def layouts(draw):
    """A tensor's shape, a mesh's shape, and how the tensor is divided along each dimension of the mesh."""
    shape = draw(SHAPES)
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    dims = st.one_of(st.none(), st.integers(0, len(shape) - 1).map(Split))
    return shape, mesh, [draw(dims) for _ in mesh]


@pytest.mark.full
@given(layout=layouts())
def test_the_boxes_of_a_mesh_make_up_the_tensor(layout):
    shape, mesh, splits = layout
    held = [boxes.held(shape, mesh, splits, place) for place in itertools.product(*map(range, mesh))]
    assert boxes.problem(sorted({box for box in held if box.num_elements}), shape) is None


@given(length=st.integers(1, 20), num_data=st.integers(1, 4), num_tensor=st.integers(2, 4))
def test_fsdp_divides_what_tensor_parallelism_has_divided_before(length, num_data, num_tensor):
    splits = [Split(0, factor=num_tensor), Split(0)]
    chunk = -(-length // num_tensor)
    for tensor_place in range(num_tensor):
        mine = list(range(length))[chunk * tensor_place : chunk * (tensor_place + 1)]
        size = -(-len(mine) // num_data)
        for data_place in range(num_data):
            box = boxes.held((length,), (num_data, num_tensor), splits, (data_place, tensor_place))
            assert [index for (index,) in sorted(cells(box))] == mine[size * data_place :][:size]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([Split(0, factor=2), None], "in strides"),
        ([Split(0, factor=3), Split(0)], "2 chunks when it is divided again, but its split factor is 3"),
        ([Split(0), Split(0, factor=2)], "in strides"),
    ],
)
def test_what_is_no_box_is_refused(splits, message):
    with pytest.raises(ValueError, match=message):
        boxes.held((8,), (2, 2), splits, (0, 0))


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ([[0, 1], [2, 3]], {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}),
        ([0, 2], {0: (0,), 1: (0,), 2: (1,), 3: (1,)}),  # a slice, as the ranks 0 and 2 see it
        ([1, 3], {0: (0,), 1: (0,), 2: (1,), 3: (1,)}),  # the same one, as the others see it
        ([2, 3], {0: (0,), 1: (1,), 2: (0,), 3: (1,)}),
        ([0, 1, 2, 3], {0: (0,), 1: (1,), 2: (2,), 3: (3,)}),  # flattened
        ([[0, 2], [1, 3]], {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)}),  # turned
        ([3], {0: (0,), 1: (0,), 2: (0,), 3: (0,)}),
    ],
)
def test_places_in_the_copies_of_a_slice(mesh, expected):
    assert boxes.places([[0, 1], [2, 3]], mesh) == expected


@pytest.mark.parametrize("mesh", [[0, 1, 2], [0, 3], [4, 5]])
def test_a_mesh_that_is_no_slice_is_refused(mesh):
    with pytest.raises(ValueError, match="mesh"):
        boxes.places([[0, 1], [2, 3]], mesh)


def random_box(draw, shape):
    offset = tuple(draw(st.integers(0, length - 1)) for length in shape)
    return Box(offset, tuple(draw(st.integers(1, n - start)) for n, start in zip(shape, offset, strict=True)))


@pytest.mark.full
@given(shape=SHAPES, data=st.data())
def test_a_problem_is_found_exactly_if_an_element_is_there_twice_or_not_at_all(shape, data):
    splits = data.draw(st.lists(st.integers(0, len(shape) - 1).map(Split), min_size=1, max_size=3))
    mesh = [data.draw(st.integers(1, 3)) for _ in splits]
    found = {boxes.held(shape, mesh, splits, place) for place in itertools.product(*map(range, mesh))}
    made = [box for box in sorted(found) if box.num_elements]
    change = data.draw(st.sampled_from(["none", "drop", "add", "replace"]))
    if change in {"drop", "replace"}:
        made.pop(data.draw(st.integers(0, len(made) - 1)))
    if change in {"add", "replace"}:
        made.append(random_box(data.draw, shape))
    counts = [cell for box in made for cell in cells(box)]
    is_sound = sorted(counts) == sorted(cells(boxes.whole(shape)))
    assert (boxes.problem(made, shape) is None) == is_sound


@pytest.mark.parametrize(
    ("found", "shape", "message"),
    [
        ([Box((0,), (3,))], (2,), "a box of shape"),
        ([Box((-1,), (3,))], (2,), "a box of shape"),
        ([Box((0,), (0,)), Box((0,), (2,))], (2,), "a box of shape"),
        ([Box((0, 0), (2,))], (2,), "dimensions"),
        ([Box((0,), (1,))], (2,), "a hole of 1 elements"),
        ([Box((0,), (2,)), Box((1,), (1,))], (2,), "two boxes that overlap"),
        ([Box((), ()), Box((), ())], (), "two boxes that overlap"),
        ([Box((0,), (1 << 62,)), Box((1 << 61,), (1,))], (1 << 62,), "two boxes that overlap"),
        ([], (), "a hole of 1 elements"),
    ],
)
def test_a_problem_says_what_it_is(found, shape, message):
    assert message in boxes.problem(found, shape)


@pytest.mark.full
@given(shape=SHAPES, data=st.data())
def test_the_runs_of_a_box_lie_where_its_elements_do(shape, data):
    box = random_box(data.draw, shape)
    runs = Runs(box, shape)
    num_runs, rest = divmod(box.num_elements, runs.length)
    assert rest == 0
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    expected = [sum(map(int.__mul__, cell, strides)) for cell in sorted(cells(box))]
    assert [
        runs.start(number) + each for number in range(num_runs) for each in range(runs.length)
    ] == expected


@pytest.mark.full
@given(shape=SHAPES, data=st.data())
def test_an_overlap_is_what_two_boxes_share(shape, data):
    one, other = random_box(data.draw, shape), random_box(data.draw, shape)
    common = boxes.overlap(one, other)
    assert (set() if common is None else cells(common)) == cells(one) & cells(other)
