"""Many machines are ended, and those that are refused are told, whatever becomes of the others."""

import pytest

from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.plugin.terminating import end_all


class Cloud:
    """Refuses a whole call on account of one machine."""

    def __init__(self, **refusals):
        self.refusals = refusals
        self.calls = []

    def end(self, ids):
        self.calls.append(tuple(ids))
        for one in ids:
            if one in self.refusals:
                raise self.refusals[one]


def told(result):
    return {one.instance_id: one.reason for one in result.refused}


def test_a_machine_that_is_refused_keeps_no_other_of_its_call():
    cloud = Cloud(b=CloudspotError("it is protected"))
    assert told(end_all(["a", "b", "c", "d", "a"], cloud.end, at_once=3)) == {"b": "it is protected"}
    assert cloud.calls == [("a", "b", "c"), ("a",), ("b",), ("c",), ("d",)]


def test_a_service_that_does_not_answer_is_not_asked_again_for_each_machine():
    cloud = Cloud(b=TransientError("no answer"))
    assert told(end_all(["a", "b", "c"], cloud.end, at_once=2)) == {"a": "no answer", "b": "no answer"}
    assert cloud.calls == [("a", "b"), ("c",)]


@pytest.mark.parametrize(
    ("refusals", "kind"),
    [
        ({"a": TransientError("later"), "b": TransientError("later")}, TransientError),
        ({"a": TransientError("later"), "b": AuthError("no right")}, AuthError),
    ],
)
def test_where_none_can_be_ended_for_a_reason_of_the_account_it_is_raised(refusals, kind):
    with pytest.raises(kind):
        end_all(["a", "b"], Cloud(**refusals).end)


def test_where_none_can_be_ended_for_reasons_of_their_own_they_are_told():
    cloud = Cloud(a=CloudspotError("protected"), b=TransientError("later"))
    assert told(end_all(["a", "b"], cloud.end)) == {"a": "protected", "b": "later"}


def test_nothing_to_end_is_no_call():
    cloud = Cloud()
    assert end_all([], cloud.end).problem == ""
    assert cloud.calls == []
