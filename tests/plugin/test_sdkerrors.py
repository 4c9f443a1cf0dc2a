import json
import re

import pytest

from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
    SpecError,
    TransientError,
)
from cloudspot.plugin.sdkerrors import MAX_MESSAGE, SdkErrors, UnknownRole, launch_refusal


class CirrusError(Exception):
    def __init__(self, status, code, message="said so"):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class CirrusErrors(SdkErrors):
    cloud = "Cirrus"
    raised = (CirrusError,)
    secrets = re.compile(r"key=\w+")
    expired = frozenset({"Expired"})
    skewed = frozenset({"Skewed"})
    bad_keys = frozenset({"BadKey"})
    denied = frozenset({"Denied"})
    throttled = frozenset({"Slow"})
    passing = frozenset({"Busy"})

    def translation(self, error, what, codes):
        return self.refusal(error, what, codes)

    def code_of(self, error):
        return getattr(error, "code", "")

    def status_of(self, error):
        return getattr(error, "status", 0)

    def message_of(self, error):
        return self.one_line(str(error))


ERRORS = CirrusErrors()


@pytest.mark.parametrize(
    ("status", "code", "kind", "message"),
    [
        (400, "Full", CapacityError, "x: said so (Full)"),
        (400, "Expired", AuthError, "x: the Cirrus credentials have expired; renew them"),
        (403, "Skewed", AuthError, "x: this machine's clock differs too much from Cirrus's; set it (Skewed)"),
        (403, "BadKey", AuthError, "x: Cirrus does not accept the credentials: said so (BadKey)"),
        (400, "Denied", AuthError, "x: access denied: said so (Denied)"),
        (503, "Denied", AuthError, "x: access denied: said so (Denied)"),
        (403, "Odd", AuthError, "x: access denied: said so (Odd)"),
        (401, "", AuthError, "x: access denied: said so"),
        (403, "Slow", TransientError, "x: Cirrus throttles the requests: said so (Slow)"),
        (429, "Odd", TransientError, "x: Cirrus throttles the requests: said so (Odd)"),
        (400, "Busy", TransientError, "x: Cirrus failed: said so (Busy)"),
        (500, "Odd", TransientError, "x: Cirrus failed: said so (Odd)"),
        (408, "", TransientError, "x: Cirrus failed: said so"),
        (400, "Odd", CloudspotError, "x: Cirrus refuses: said so (Odd)"),
    ],
)
def test_the_class_says_what_to_do_next(status, code, kind, message):
    with pytest.raises(kind) as error, ERRORS.translated("x", {"Full": CapacityError}):
        raise CirrusError(status, code)
    assert (type(error.value), str(error.value)) == (kind, message)
    assert isinstance(error.value.__cause__, CirrusError)


def test_what_the_sdk_does_not_raise_passes_through():
    with pytest.raises(ZeroDivisionError), ERRORS.translated("x"):
        raise ZeroDivisionError


def test_a_message_is_one_line_without_secrets_and_not_too_long():
    assert ERRORS.one_line("a\n  b key=SECRET c") == "a b ... c"
    assert ERRORS.one_line("x" * 1000) == "x" * (MAX_MESSAGE - 3) + "..."
    assert ERRORS.shown(CirrusError(418, "Odd", "")) == "HTTP status 418 (Odd)"


def test_the_innermost_reason_is_named_without_urls():
    inner = OSError("refused at https://bucket.example/?key=1")
    middle = RuntimeError("Max retries", inner)
    outer = ConnectionError("aborted")
    outer.reason = middle
    assert ERRORS.innermost(outer) == "refused at ..."
    assert ERRORS.innermost(TimeoutError()) == "TimeoutError"


def test_only_a_throttled_call_is_made_again_and_no_more_than_twice(monkeypatch):
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    answers = [CirrusError(403, "Slow"), CirrusError(403, "Slow"), "made"]

    def call():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert ERRORS.unless_throttled(call) == "made"
    assert waits == [1.0, 2.0]
    answers += [CirrusError(403, "Slow")] * 3
    with pytest.raises(CirrusError):
        ERRORS.unless_throttled(call)
    answers[:] = [CirrusError(500, "Odd"), "made"]
    with pytest.raises(CirrusError):
        ERRORS.unless_throttled(call)


@pytest.mark.parametrize(
    ("found", "option", "kind", "message"),
    [
        (QuotaError("x"), None, QuotaError, "x; ask for more"),
        (CapacityError("x"), "providers.cirrus.image", CapacityError, "x"),
        (TransientError("x"), None, TransientError, "x"),
        (AuthError("x"), None, AuthError, "x"),
        (SpecError("x"), None, SpecError, "x"),
        (CloudspotError("x"), None, ProvisionError, "x"),
        (CloudspotError("x"), "providers.cirrus.image", ProvisionError, "providers.cirrus.image: x"),
        (ProvisionError("x"), "providers.cirrus.image", ProvisionError, "providers.cirrus.image: x"),
    ],
)
def test_a_launch_that_was_refused_for_no_known_reason_will_never_work(found, option, kind, message):
    error = launch_refusal(found, option=option, role_option="providers.x.role", quota_advice="ask for more")
    assert (type(error), str(error)) == (kind, message)


def test_a_launch_that_was_refused_for_the_machines_role_is_told_apart():
    found = ProvisionError("launching: no such role")
    error = launch_refusal(
        found, option="providers.x.role", role_option="providers.x.role", quota_advice="ask for more"
    )
    assert (type(error), str(error)) == (UnknownRole, "providers.x.role: launching: no such role")


def test_an_answer_that_is_nested_too_deeply_is_one_that_cannot_be_read():
    with pytest.raises(TransientError, match=r"^x: the answer cannot be read$"), ERRORS.translated("x"):
        json.loads("[" * 100_000)
