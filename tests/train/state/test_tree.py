"""State dicts become JSON and named tensors, and come back as they were."""

import collections
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloudspot.train import CheckpointError, SessionError
from cloudspot.train.state.tree import DTYPES, flatten, rebuild

keys = st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.tuples(st.integers()))
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(max_size=9)
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=20,
)


def there_and_back(value, *, inline=False):
    tensors = None if inline else {}
    text = json.dumps(flatten("state", value, tensors), allow_nan=False)
    return rebuild("state", json.loads(text), lambda name, _: tensors[name].clone())


@pytest.mark.full
@given(values)
def test_plain_values_come_back_equal_and_of_the_same_type(value):
    back = there_and_back(value)
    assert repr(back) == repr(value)


def test_special_values_come_back():
    value = {
        "nan": math.nan,
        "inf": -math.inf,
        "set": {3, 1},
        "frozen": frozenset("ab"),
        "counter": collections.Counter({30: 2, 80: 1}),
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "scalar": np.float64(0.1),
        "$odd": {"$tuple": "a key of ours"},
        7: ((), {}, []),
    }
    back = there_and_back(value)
    assert math.isnan(back.pop("nan"))
    value.pop("nan")
    assert back == value
    assert [type(each) for each in back.values()] == [type(each) for each in value.values()]


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("inline", [False, True])
def test_tensors_of_every_type_come_back_bit_for_bit(name, inline):
    noise = torch.randint(0, 2 if name == "bool" else 256, (3, 16), dtype=torch.uint8)
    tensor = noise.view(DTYPES[name])
    back = there_and_back({"a": [tensor]}, inline=inline)["a"][0]
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 2, 1)])
@pytest.mark.parametrize("inline", [False, True])
def test_shapes_come_back(shape, inline):
    assert there_and_back(torch.zeros(shape), inline=inline).shape == shape


def test_numpy_arrays_come_back():
    for array in (np.arange(6, dtype=">i2").reshape(2, 3), np.zeros((0, 2)), np.array(True)):
        back = there_and_back(array)
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tolist() == array.tolist()


def test_item_names_are_paths_in_which_a_slash_of_a_key_is_escaped():
    tensors = {}
    flatten("optimizer", {"state": {0: {"a/b~": torch.zeros(1)}}, "list": [torch.ones(1)]}, tensors)
    assert sorted(tensors) == ["optimizer/list/0", "optimizer/state/0/a~1b~0"]


def test_tied_weights_are_one_item():
    weight = torch.randn(4, 4)
    tensors = {}
    tree = flatten("model", {"embed": weight, "head": weight, "half": weight[:2]}, tensors)
    assert sorted(tensors) == ["model/embed", "model/half"]
    back = rebuild("model", tree, lambda name, _: tensors[name])
    assert back["head"] is tensors["model/embed"]


@pytest.mark.parametrize("inline", [True, False])
def test_a_conjugate_is_no_tied_weight_though_it_shares_its_memory(inline):
    weight = torch.tensor([1 + 2j])
    state = {"weight": weight, "conjugate": weight.conj(), "negative": weight.conj().imag}
    tensors = None if inline else {}
    tree = flatten("state", state, tensors)
    back = rebuild("state", tree) if inline else rebuild("state", tree, lambda name, _: tensors[name])
    assert {name: each.tolist() for name, each in back.items()} == {
        "weight": [1 + 2j],
        "conjugate": [1 - 2j],
        "negative": [-2.0],
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [object()]}, "state/a/0 is a builtins.object"),
        ({"hook": lambda x: x}, "state/hook is a builtins.function"),
        ({"s": torch.eye(3).to_sparse()}, "state/s is a torch.sparse_coo tensor"),
        ({"m": torch.empty(3, device="meta")}, "state/m is a torch.strided tensor of torch.float32 on meta"),
        ({"o": np.array([object()])}, "state/o is a numpy.ndarray"),
        ({0: torch.zeros(1), "0": torch.zeros(2)}, "two tensors of the state are called state/0"),
    ],
)
def test_what_cannot_be_saved_is_named_by_its_path(value, message):
    with pytest.raises(SessionError, match=message.replace("[", r"\[")):
        flatten("state", value, {})


@pytest.mark.parametrize(
    "value",
    [
        {"$item": "nowhere"},
        {"$item": ["a"]},
        {"$reduce": ["os.system", "true"]},
        {"$tuple": 3},
        {"$dict": [[{"$dict": []}, 1]]},
        {"$dict": [["a"]]},
        {"$bytes": "!"},
        {"$float": "one"},
        {"$dtype": "float33"},
        {"$device": "toaster"},
        {"$counter": [["a", "b"]]},
        {"$tensor": {"dtype": "float32", "shape": [9], "data": ""}},
        {"$tensor": {"dtype": "float32", "shape": [-1, -1], "data": "AAAAAA=="}},
        {"$tensor": {"dtype": "object", "shape": [1], "data": "AAAAAA=="}},
        {"$ndarray": {"dtype": "|O", "shape": [1], "data": "AAAAAAAAAAA="}},
        {"$ndarray": {"dtype": "V8", "shape": [1], "data": "AAAAAAAAAAA="}},
        {"$ndarray": {"dtype": "<f4", "shape": [7], "data": "AAAAAA=="}},
    ],
)
def test_malformed_json_raises_an_error_that_names_the_object(value):
    with pytest.raises(CheckpointError, match=r"the checkpoint's scheduler is malformed|holds no"):
        rebuild("scheduler", {"a": value})


def test_json_nested_beyond_reason_is_malformed_and_no_crash():
    value = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(CheckpointError, match="malformed"):
        rebuild("scheduler", value)
