from __future__ import annotations

import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile.tables import convert
from cloudspot.local.machine_records import PlannedReclaim
from cloudspot.local.options import LocalOptions, RandomReclaims, Reclaim
from cloudspot.local.provider import LocalProvider


def decode(table: dict) -> LocalOptions:
    return convert(table, LocalOptions, at=("providers", "local"))


def test_an_empty_table_is_enough():
    options = decode({})
    assert options.zones == ("local-a", "local-b")
    assert options.notice == 10.0
    assert options.planned_reclaims(launch=1, rank=0) == ()


def test_a_whole_table_is_understood():
    options = decode(
        {
            "notice": "2m",
            "zones": ["a", "b"],
            "capacity": {"b": 2},
            "spot_price": 0.5,
            "boot_delay": "500ms",
            "reclaims": [
                {"after_steps": 300},
                {"launch": 2, "rank": 1, "after_seconds": "1m30s", "notice": "0s"},
            ],
            "random_reclaims": {"mean": "10m", "seed": 7, "max": 2},
        }
    )
    assert options == LocalOptions(
        notice=120.0,
        zones=("a", "b"),
        capacity={"b": 2},
        spot_price=0.5,
        boot_delay=0.5,
        reclaims=(Reclaim(after_steps=300), Reclaim(launch=2, rank=1, after_seconds=90.0, notice=0.0)),
        random_reclaims=RandomReclaims(mean=600.0, seed=7, max=2),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"reclaims": [{"after_step": 3}]}, "providers.local.reclaims"),
        ({"reclaims": [{}]}, "needs one of after_steps, after_seconds and after_share"),
        (
            {"reclaims": [{"after_steps": 3, "after_seconds": "3s"}]},
            "needs one of after_steps, after_seconds and after_share",
        ),
        ({"notice": "soon"}, "providers.local.notice"),
        ({"random_reclaims": {"mean": "0s"}}, "providers.local.random_reclaims.mean"),
        ({"zone": ["a"]}, "zones"),
        ({"capacity": {"local-a": -1}}, "providers.local.capacity"),
    ],
)
def test_a_mistake_is_named(table, message):
    with pytest.raises(SpecError, match=message):
        decode(table)


def test_a_zone_whose_capacity_is_given_must_exist():
    with pytest.raises(SpecError, match=r"providers\.local\.capacity: no zone 'c'"):
        LocalProvider(LocalOptions(capacity={"c": 0}))


def test_a_reclaim_is_planned_for_its_launch_and_rank_alone():
    options = LocalOptions(reclaims=(Reclaim(launch=2, rank=1, after_steps=5, notice=3.0),))
    planned = {
        (launch, rank): options.planned_reclaims(launch=launch, rank=rank)
        for launch in (1, 2)
        for rank in (0, 1)
    }
    assert planned.pop((2, 1)) == (PlannedReclaim(after_steps=5, notice_seconds=3.0),)
    assert set(planned.values()) == {()}


def test_random_reclaims_are_drawn_by_seed_launch_and_rank():
    def drawn(seed: int, launch: int, rank: int) -> float:
        options = LocalOptions(random_reclaims=RandomReclaims(mean=100.0, seed=seed))
        return options.planned_reclaims(launch=launch, rank=rank)[0].after_seconds

    assert drawn(0, 1, 0) == drawn(0, 1, 0)
    assert len({drawn(seed, launch, rank) for seed in (0, 1) for launch in (1, 2) for rank in (0, 1)}) == 8
    mean = sum(drawn(seed, 1, 0) for seed in range(2000)) / 2000
    assert 90 < mean < 110


def test_random_reclaims_stop_after_max_launches():
    options = LocalOptions(random_reclaims=RandomReclaims(mean=100.0, max=1))
    assert len(options.planned_reclaims(launch=1, rank=0)) == 1
    assert options.planned_reclaims(launch=2, rank=0) == ()


def test_the_longest_notice_is_that_of_any_reclaim():
    assert LocalOptions(notice=5.0).longest_notice_seconds == 5.0
    assert LocalOptions(notice=5.0, reclaims=(Reclaim(after_steps=1),)).longest_notice_seconds == 10.0
    chance = RandomReclaims(mean=1.0, notice=20.0)
    assert LocalOptions(notice=5.0, random_reclaims=chance).longest_notice_seconds == 20.0
