import msgspec
import pytest

from cloudspot.model import Market, Offer
from cloudspot.plugin.priceparts import price_with_extras, with_extras

MACHINE = Offer(
    instance_type="c",
    zone="sky-1a",
    market=Market.SPOT,
    price_per_hour=0.0318,
    on_demand_price_per_hour=0.1,
    details={"image": "i"},
)


def test_an_offers_prices_count_what_is_billed_beside_the_machine_and_its_details_say_so():
    offer = with_extras(MACHINE, {"disk": 0.00712345, "address": 0.005})
    assert offer.price_per_hour == 0.043923
    assert offer.on_demand_price_per_hour == 0.112123
    assert offer.details == {
        "image": "i",
        "extras_per_hour": "0.012123",
        "price_parts": "machine 0.0318, disk 0.007123, address 0.005",
    }
    assert price_with_extras(offer, 0.5) == 0.512123


def test_what_nobody_can_price_is_left_out_and_named():
    offer = with_extras(MACHINE, {"disk": None, "address": 0.005})
    assert (offer.price_per_hour, offer.price_parts) == (
        0.0368,
        "machine 0.0318, disk not counted, address 0.005",
    )
    assert price_with_extras(offer, 0.5) == 0.505


def test_on_demand_the_same_may_cost_something_else():
    offer = with_extras(MACHINE, {"address": 0.0025}, on_demand={"address": 0.005})
    assert (offer.price_per_hour, offer.on_demand_price_per_hour) == (0.0343, 0.105)


def test_a_machine_alone_and_an_offer_without_parts_count_nothing_besides():
    assert price_with_extras(MACHINE, 0.5) == 0.5
    alone = with_extras(MACHINE, {})
    assert (alone.price_per_hour, alone.price_parts) == (0.0318, "machine 0.0318")
    assert price_with_extras(alone, 0.5) == 0.5


@pytest.mark.parametrize("text", ["", "much", "nan", "-1", "-inf"])
def test_extras_that_are_no_amount_count_as_nothing(text):
    """The detail comes back from a record in the bucket."""
    offer = msgspec.structs.replace(MACHINE, details={"extras_per_hour": text})
    assert (offer.extras_per_hour, price_with_extras(offer, 0.5)) == (0.0, 0.5)
    beyond = msgspec.structs.replace(MACHINE, details={"extras_per_hour": "inf"})
    assert beyond.extras_per_hour == MACHINE.price_per_hour
