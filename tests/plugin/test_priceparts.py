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


def test_an_offers_prices_count_what_is_billed_beside_the_machine_and_its_parts_say_so():
    offer = with_extras(MACHINE, {"disk": 0.00712345, "address": 0.005})
    assert offer.price_per_hour == 0.043923
    assert offer.on_demand_price_per_hour == 0.112123
    assert offer.extras_per_hour == 0.012123
    assert offer.price_text == "machine 0.0318, disk 0.007123, address 0.005"
    assert offer.details == {"image": "i"}
    assert price_with_extras(offer, 0.5) == 0.512123


def test_what_nobody_can_price_is_left_out_and_named():
    offer = with_extras(MACHINE, {"disk": None, "address": 0.005})
    assert (offer.price_per_hour, offer.price_text) == (
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
    assert (alone.price_per_hour, alone.price_text) == (0.0318, "machine 0.0318")
    assert price_with_extras(alone, 0.5) == 0.5
