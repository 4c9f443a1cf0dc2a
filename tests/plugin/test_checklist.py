"""The lines of a check: what fails ends nothing, and the advice fits what is missing."""

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from support.records.made_records import Records

from cloudspot.calls import InstancesResult, OffersResult
from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.model import Market, Resources
from cloudspot.plugin.checklist import Checklist, NotKnown, cheapest_by_market, compare_clock


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


def test_what_cannot_be_tried_is_neither_ok_nor_a_failure():
    lines = Checklist(remedy="grant it")
    assert lines.attempt("ending", failing(NotKnown("not tried: there is no machine")))
    [found] = lines.results()
    assert (found.ok, found.is_known, found.detail) == (True, False, "not tried: there is no machine")


@pytest.mark.parametrize(
    ("error", "remedy", "advice"),
    [
        (AuthError("access denied: the right x is missing"), "", "grant it"),
        (AuthError("the credentials lack x"), "", "grant it"),
        (AuthError("the login has expired"), "", ""),
        (CloudspotError("access denied to a file"), "", ""),
        (AuthError("access denied"), "set the clock", "set the clock"),
    ],
)
def test_a_missing_right_is_to_be_granted_and_nothing_else_is(error, remedy, advice):
    lines = Checklist(remedy="grant it")
    lines.attempt("one", failing(error), remedy)
    assert lines.results()[0].remedy == advice


def ago(seconds):
    return format_datetime(datetime.now(timezone.utc) - timedelta(seconds=seconds), usegmt=True)


def test_a_clock_is_compared_with_the_date_of_an_answer():
    with pytest.raises(NotKnown, match=r"^the answer of AWS has no date$"):
        compare_clock(None, server="AWS")
    assert compare_clock(ago(0), server="AWS") == "within 2 s of AWS's"
    with pytest.raises(CloudspotError, match=r"^3\d\d s ahead of AWS's$"):
        compare_clock(ago(300), server="AWS")
    with pytest.raises(CloudspotError, match=r"^[23]\d\d s behind Google's$"):
        compare_clock(ago(-300), server="Google")


def offer(name, market, price):
    return Records.offer("sky-1a", market, price, instance_type=name)


class Shop:
    def __init__(self, *offers):
        self._offers = offers

    def offers(self, request):
        return OffersResult(offers=self._offers)

    def instances(self, request):
        return InstancesResult(instances=("one", "two"))


def test_offers_are_a_line_that_names_the_cheapest_and_come_back_cheapest_first():
    dear, cheap = offer("big", Market.ON_DEMAND, 2.0), offer("small", Market.SPOT, 0.5)
    lines = Checklist(remedy="")
    lines.attempt_listing(Shop())
    found = lines.attempt_offers(
        Shop(dear, cheap), Resources(), remark=lambda one: f"; by {one.instance_type}"
    )
    assert found == [cheap, dear]
    assert [(one.name, one.detail) for one in lines.results()] == [
        ("listing", "2 machines of cloudspot's"),
        ("offers", "2, from 0.5 USD an hour (spot small in sky-1a; by small)"),
    ]


def test_no_offer_is_a_failure():
    lines = Checklist(remedy="")
    assert lines.attempt_offers(Shop(), Resources()) == []
    (line,) = lines.results()
    assert not line.ok
    assert line.detail == "no machine type fits; ask for less in resources, or try another region"


def test_each_market_that_has_an_offer_comes_with_its_cheapest():
    spot, dear, on_demand = (
        offer("small", Market.SPOT, 0.5),
        offer("big", Market.SPOT, 0.9),
        offer("small", Market.ON_DEMAND, 2.0),
    )
    assert dict(cheapest_by_market([dear, on_demand, spot])) == {
        Market.SPOT: spot,
        Market.ON_DEMAND: on_demand,
    }
    assert dict(cheapest_by_market([on_demand])) == {Market.ON_DEMAND: on_demand}
