"""The lines of a check: what fails ends nothing, and the advice fits what is missing."""

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.plugin.checklist import Checklist, compare_clock


def failing(error):
    def ask():
        raise error

    return ask


def test_each_thing_has_its_line_in_order_and_one_that_fails_ends_nothing():
    lines = Checklist(remedy="grant it")
    assert lines.attempt("region", lambda: "us-east-1")
    assert not lines.attempt("listing", failing(TransientError("no answer")))
    assert lines.attempt("offers", lambda: "3")
    assert [(one.name, one.ok, one.detail, one.remedy) for one in lines.results()] == [
        ("region", True, "us-east-1", ""),
        ("listing", False, "no answer", ""),
        ("offers", True, "3", ""),
    ]


@pytest.mark.parametrize(
    ("error", "words", "remedy", "advice"),
    [
        (AuthError("access denied: the right x is missing"), ("access denied",), "", "grant it"),
        (AuthError("the credentials lack x"), ("access denied", "lack"), "", "grant it"),
        (AuthError("the login has expired"), ("access denied", "lack"), "", ""),
        (CloudspotError("access denied to a file"), ("access denied",), "", ""),
        (AuthError("access denied"), ("access denied",), "set the clock", "set the clock"),
    ],
)
def test_a_missing_right_is_to_be_granted_and_nothing_else_is(error, words, remedy, advice):
    lines = Checklist(remedy="grant it", words=words)
    lines.attempt("one", failing(error), remedy)
    assert lines.results()[0].remedy == advice


def ago(seconds):
    return format_datetime(datetime.now(timezone.utc) - timedelta(seconds=seconds), usegmt=True)


def test_a_clock_is_compared_with_the_date_of_an_answer():
    assert compare_clock(None, whose="AWS") == "unknown: AWS did not say"
    assert compare_clock(ago(0), whose="AWS") == "within 2 s of AWS's"
    with pytest.raises(CloudspotError, match=r"^3\d\d s ahead of AWS's$"):
        compare_clock(ago(300), whose="AWS")
    with pytest.raises(CloudspotError, match=r"^[23]\d\d s behind Google's$"):
        compare_clock(ago(-300), whose="Google")
