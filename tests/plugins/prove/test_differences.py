"""How a cloud's answers differ from an emulation's: ten differences are planted, and all ten are named."""

import copy

import msgspec
import pytest

from cloudspot_prove.differences import Pair, find_differences
from cloudspot_prove.recording import Exchange


def exchange(action, answer, *, at=0.0, code="", status=200, seconds=0.1, request=None):
    return Exchange(
        step="launch",
        at=at,
        service="ec2",
        action=action,
        request=request or {},
        answer=answer,
        status=status,
        code=code,
        seconds=seconds,
    )


MACHINE = {
    "InstanceId": "~1",
    "State": {"Name": "running"},
    "Zone": "us-east-1a",
    "Size": "~number",
    "At": "~time",
}
RECORDING = (
    exchange("RunInstances", {"Instances": [MACHINE]}, at=1.0),
    exchange("DescribeInstances", {"Instances": [MACHINE]}, at=2.0, request={"n": 1}),
    exchange("DescribeInstances", {"Instances": [MACHINE]}, at=40.0, request={"n": 1}),
    exchange("DescribeZones", {"Zones": [{"Zone": "us-east-1a"}, {"Zone": "us-east-1b"}]}, at=50.0),
    exchange("CreateTags", {"Return": True}, at=51.0),
    exchange("CreateFunction", None, at=52.0, status=400, code="InvalidParameterValue"),
)


def pairs_of(cloud):
    return [
        Pair(
            recorded=ours,
            status=other.status,
            code=other.code,
            answer=copy.deepcopy(other.answer),
            seconds=other.seconds,
            is_same_request=True,
            names={"~1": "~1"},
        )
        for ours, other in zip(cloud, RECORDING, strict=True)
    ]


def changed(number, **fields):
    return [
        msgspec.structs.replace(one, **(fields if i == number else {})) for i, one in enumerate(RECORDING)
    ]


def machine(**fields):
    return {"Instances": [{**MACHINE, **fields}]}


def without(name):
    return {"Instances": [{key: value for key, value in MACHINE.items() if key != name}]}


PLANTED = {
    "a field that the emulation lacks": (0, {"answer": machine(Extra="~2")}, ("field", "Instances[].Extra")),
    "a field that the cloud lacks": (0, {"answer": without("Zone")}, ("field", "Instances[].Zone")),
    "a number in place of a text": (
        0,
        {"answer": machine(InstanceId="~number")},
        ("field", "Instances[].InstanceId"),
    ),
    "a text in place of an object": (4, {"answer": {"Return": {"Ok": True}}}, ("field", "Return")),
    "a field within a field": (
        0,
        {"answer": machine(State={"Name": "running", "Code": 16})},
        ("field", "Instances[].State.Code"),
    ),
    "another order": (
        3,
        {"answer": {"Zones": [{"Zone": "us-east-1b"}, {"Zone": "us-east-1a"}]}},
        ("order", "Zones"),
    ),
    "another code": (5, {"code": "InvalidRole"}, ("code", "400 InvalidRole")),
    "another status": (4, {"status": 202}, ("code", "202")),
    "a late answer": (4, {"seconds": 30.0}, ("delay", "the answer")),
    "a machine that shows later": (1, {"answer": {"Instances": []}}, ("delay", "what is new")),
}


def test_equal_answers_do_not_differ():
    assert find_differences(pairs_of(RECORDING)) == []


@pytest.mark.parametrize(("number", "fields", "expected"), PLANTED.values(), ids=PLANTED)
def test_each_planted_difference_is_named(number, fields, expected):
    found = find_differences(pairs_of(changed(number, **fields)))
    assert [(one.kind, one.where) for one in found] == [expected]


def test_ten_planted_differences_are_all_named_at_once():
    cloud = list(RECORDING)
    for number, fields, _ in PLANTED.values():
        merged = dict(fields)
        if "answer" in merged and number == 0:
            mixed = copy.deepcopy(cloud[0].answer)
            first = mixed["Instances"][0]
            first.update({k: v for k, v in merged["answer"]["Instances"][0].items() if v != MACHINE.get(k)})
            if "Zone" not in merged["answer"]["Instances"][0]:
                del first["Zone"]
            merged["answer"] = mixed
        cloud[number] = msgspec.structs.replace(cloud[number], **merged)
    found = {(one.kind, one.where) for one in find_differences(pairs_of(cloud))}
    assert {expected for _, _, expected in PLANTED.values()} <= found


def test_what_only_one_state_has_is_compared_with_the_same_state():
    ended = machine(State={"Name": "terminated"}, Reason="~3")
    assert find_differences(pairs_of(changed(0, answer=ended))) == []


def test_a_name_that_does_not_identify_an_object_may_come_and_go():
    """A role's name, which several instances have, is missing once an instance has ended."""
    no_role = machine(Role="~role", InstanceId="~other")
    shown = machine(Role="~role")
    cloud = [
        exchange("RunInstances", shown, at=1.0),
        exchange("DescribeInstances", machine(), at=2.0, request={"n": 1}),
        exchange("DescribeInstances", no_role, at=40.0, request={"n": 1}),
    ]
    pairs = [
        Pair(
            recorded=one,
            status=one.status,
            code="",
            answer=shown,
            seconds=0.1,
            is_same_request=True,
            names={"~role": "~role"},
        )
        for one in cloud
    ]
    assert not [one for one in find_differences(pairs) if one.kind == "delay"]


def test_a_code_that_rests_on_a_made_up_name_says_nothing():
    pairs = pairs_of(changed(5, code="InvalidRole"))
    assert find_differences([msgspec.structs.replace(one, is_same_request=False) for one in pairs]) == []
