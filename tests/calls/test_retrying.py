"""The one retry loop."""

import pytest

from cloudspot.calls.retrying import SHORT_WAITS, doubling, retry, until
from cloudspot.errors import AuthError, CapacityError, TransientError


class Failing:
    """Fails a number of times, then answers."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.num_calls = 0

    def __call__(self):
        self.num_calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_a_call_that_succeeds_is_made_once_and_without_a_wait():
    call = Failing()
    assert retry(call, sleep=pytest.fail) == "answer"
    assert call.num_calls == 1


def test_the_default_is_five_calls_and_then_the_last_error():
    errors = [TransientError(str(number)) for number in range(9)]
    call, slept = Failing(*errors), []
    with pytest.raises(TransientError) as caught:
        retry(call, sleep=slept.append)
    assert caught.value is errors[4]
    assert (call.num_calls, slept) == (5, list(SHORT_WAITS))


def test_only_an_error_of_the_kind_is_waited_out():
    call = Failing(TransientError("a"), AuthError("b"), TransientError("c"))
    slept, told = [], []
    with pytest.raises(AuthError):
        retry(call, sleep=slept.append, on_wait=told.append)
    assert slept == [0.1]
    assert [str(error) for error in told] == ["a"]


def test_an_error_that_the_caller_rules_out_is_raised_at_once():
    call, slept = Failing(CapacityError("throttled"), CapacityError("no room")), []
    with pytest.raises(CapacityError, match="no room"):
        retry(
            call,
            kind=Exception,
            when=lambda error: str(error) == "throttled",
            waits=(1, 2),
            sleep=slept.append,
        )
    assert slept == [1]


def test_the_last_error_is_not_told_as_one_that_is_waited_out():
    told = []
    with pytest.raises(TransientError):
        retry(Failing(TransientError("a")), waits=(), sleep=pytest.fail, on_wait=told.append)
    assert told == []


def test_waits_double_up_to_the_most_and_never_overflow():
    assert list(doubling(0.25, most=1.5, num=5)) == [0.25, 0.5, 1.0, 1.5, 1.5]
    waits = doubling(0.1, most=10.0)
    assert [next(waits) for _ in range(5000)][-1] == 10.0


def test_the_last_try_before_a_deadline_is_made_at_the_deadline():
    now, tries = [0.0], []

    def sleep(seconds):
        now[0] += seconds

    def call():
        tries.append(now[0])
        now[0] += 0.5  # what the call itself takes
        raise TransientError("down")

    with pytest.raises(TransientError):
        retry(call, waits=until(4.0, doubling(1.0), clock=lambda: now[0]), sleep=sleep)
    assert tries == [0.0, 1.5, 4.0]
    with pytest.raises(TransientError):  # the deadline has passed: one try, no wait
        retry(call, waits=until(4.0, doubling(1.0), clock=lambda: now[0]), sleep=pytest.fail)
    assert len(tries) == 4
