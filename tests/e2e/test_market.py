"""A job goes from spot to on-demand when there is no spot, and back by a stand-in."""

from __future__ import annotations

import re
from math import ceil

import pytest
from e2e.test_replacement import pauses
from support.clouds.sandboxed import run_sandboxed
from support.jobs.acting_user import JOBS, User
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot.local.machines import MachineDirectory

SPOT_PRICE, ON_DEMAND_PRICE = 36.0, 108.0
"""A cent and three cents a second."""


@pytest.mark.full
def test_a_job_leaves_spot_in_a_gap_and_comes_back_to_it(user: User) -> None:
    """In the gap the job waits for nothing; a minute later it asks again what can be bought."""
    sets = (
        'run.env.TINY_EPOCHS="90"',
        'run.env.TINY_STEP_SECONDS="0.08"',
        'spot.max_wait="0s"',
        "providers.local.reclaims=[{ after_steps = 60, notice = 6 }]",
        "providers.local.refused_launches=[2, 3]",
        f"providers.local.spot_price={SPOT_PRICE}",
        f"providers.local.on_demand_price={ON_DEMAND_PRICE}",
    )
    user.run_tiny("market", sets=sets, timeout=600.0)
    shown = user.show("market", "--verify")
    assert (shown["state"], shown["last_commit"]["verified"], shown["steps_lost"]) == ("succeeded", True, 0)
    launches = [(one["market"], one["outcome"]) for one in shown["launches"]]
    assert launches == [
        ("spot", "reclaimed"),
        ("spot", "capacity"),
        ("spot", "capacity"),
        ("on-demand", "left"),
        ("spot", "succeeded"),
    ]
    first, *stand_ins, back = (one["why"] for one in shown["launches"])
    assert (first, back) == ("first", "market")
    # The machine may be gone before the driver has asked for the next one, or for each next one.
    assert set(stand_ins) <= {"notice", "reclaimed", "capacity"}
    for older, newer, seconds in pauses(shown):
        print(f"from the last step of generation {older} to the first of generation {newer}: {seconds:.1f} s")
    machines = [MachineDirectory(path) for path in user.machines()]
    spent = 0.0
    for machine in machines:
        told = machine.instance()
        assert told.ended_at is not None
        assert told.launched_at is not None
        price = SPOT_PRICE if told.market is not None and told.market.value == "spot" else ON_DEMAND_PRICE
        # Each second that has begun is charged.
        spent += ceil((told.ended_at - told.launched_at).total_seconds()) * price / 3600
    assert len(machines) == 3
    assert shown["cost"]["spent"] == pytest.approx(spent, abs=0.005)


@pytest.mark.soak
@pytest.mark.timeout(900)
@needs_isolated_machines
def test_on_the_emulated_aws_it_does_so_by_a_plan_of_capacity_and_prices(user: User) -> None:
    """The zone that was the cheapest costs twice as much afterwards, so the job comes back to another."""
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

    from cloudspot_aws_sandbox import prices

    m5 = INSTANCE_TYPES["m5.large"]
    offerings = INSTANCE_TYPE_OFFERINGS["availability-zone"]["us-east-1"]
    zones = [one["Location"] for one in offerings if one["InstanceType"] == "m5.large"]
    first, second, *_ = sorted(zones, key=lambda zone: prices.spot_price(m5, zone))
    sets = (
        'providers.aws.instance_types=["m5.large"]',
        'run.env.TINY_EPOCHS="45"',
        'run.env.TINY_STEP_SECONDS="0.2"',
        'spot.max_wait="0s"',
    )
    plan = ("after=10s,lasts=45s,capacity=0", f"zone={first},after=10s,price=2")
    options = ["--reclaim", "launch=1,rank=0,after_steps=60,notice=60"]
    seen = run_sandboxed(
        user,
        "aws",
        JOBS / "tiny" / "job.toml",
        arguments=[word for one in sets for word in ("--set", one)],
        options=[*options, *(word for one in plan for word in ("--market", one))],
    )
    shown = seen.show
    assert (shown["state"], shown["steps_lost"], len(shown["notices"])) == ("succeeded", 0, 1)
    launches = [(one["market"], one["zone"]) for one in shown["launches"] if one["outcome"] != "capacity"]
    assert [market for market, _ in launches] == ["spot", "on-demand", "spot"]
    assert (launches[0][1], launches[2][1]) == (first, second)
    for older, newer, seconds in pauses(shown):
        print(f"from the last step of generation {older} to the first of generation {newer}: {seconds:.1f} s")
    # Each second that has begun, at least a minute; and the disk (65 GiB, as the image) and the address of each machine.
    beside = 0.08 * 65 / 730 + 0.005
    rates = [prices.spot_price(m5, first), prices.on_demand_price(m5), prices.spot_price(m5, second)]
    spent = 0.0
    machines = sorted(
        (MachineDirectory(path).instance() for path in (seen.state / "machines").iterdir()),
        key=lambda one: one.launch,
    )
    for one, rate in zip(machines, rates, strict=True):
        seconds = ceil((one.ended_at - one.launched_at).total_seconds())
        spent += max(60, seconds) * (rate + beside) / 3600
    assert shown["cost"]["spent"] == pytest.approx(spent, rel=0.02)
    assert seen.account["states"] == ["terminated"] * 3


@pytest.mark.soak
@pytest.mark.timeout(900)
@needs_isolated_machines
def test_on_the_emulated_aws_a_job_goes_on_in_another_region_when_its_own_has_no_spot(user: User) -> None:
    """The machine there resumes from the bucket at home, logs to the group at home, and ends itself there."""
    sets = (
        'providers.aws.instance_types=["m5.large"]',
        'providers.aws.regions=["us-east-1", "us-west-2"]',
        'run.env.TINY_EPOCHS="20"',
        'run.env.TINY_STEP_SECONDS="0.2"',
        'spot.policy="spot"',
    )
    seen = run_sandboxed(
        user,
        "aws",
        JOBS / "tiny" / "job.toml",
        arguments=[word for one in sets for word in ("--set", one)],
        options=[
            *("--reclaim", "launch=1,rank=0,after_steps=60,notice=60"),
            *("--market", "zone=us-east-1*,after=10s,capacity=0"),
        ],
    )
    shown = seen.show
    assert (shown["state"], shown["steps_lost"], len(shown["notices"])) == ("succeeded", 0, 1)
    bought = [one for one in shown["launches"] if one["outcome"] != "capacity"]
    refused = [one["zone"] for one in shown["launches"] if one["outcome"] == "capacity"]
    assert [(one["market"], one["zone"][:-1]) for one in bought] == [
        ("spot", "us-east-1"),
        ("spot", "us-west-2"),
    ]
    assert all(zone.startswith("us-east-1") for zone in refused)
    assert [one["outcome"] for one in bought] == ["reclaimed", "succeeded"]
    assert shown["generations"][-1]["restored"]["step"] >= 60, "it resumed from what the first had saved"
    machines = [MachineDirectory(path).instance() for path in (seen.state / "machines").iterdir()]
    assert sorted(one.launch for one in machines) == [1, bought[1]["launch"]]
    assert all(one.ended_at is not None for one in machines)
    moved = {one["launch"]: (one["transfer_bytes"], one["transfer_spent"]) for one in shown["ledger"]}
    assert moved[1] == (0, 0.0), "moving within the region is free"
    num_bytes, spent = moved[bought[1]["launch"]]
    assert num_bytes >= shown["last_commit"]["bytes"], "it has restored and saved"
    assert spent == pytest.approx(num_bytes / 2**30 * bought[1]["transfer_price_per_gib"], abs=1e-6)
    # What both have said is in the one log, whichever region they said it in.
    steps = {int(found[1]) for line in seen.log if (found := re.search(r"step (\d+) loss", line))}
    assert sorted(steps) == list(range(shown["steps_total"]))
    for older, newer, seconds in pauses(shown):
        print(f"from the last step of generation {older} to the first of generation {newer}: {seconds:.1f} s")


@pytest.mark.soak
@pytest.mark.timeout(600)
@needs_isolated_machines
def test_on_the_emulated_alibaba_cloud_a_machine_away_from_the_bucket_trains_and_releases_itself(
    user: User,
) -> None:
    """All that it needs comes from the bucket at home; it asks the control plane of its own region for its end."""
    sets = (
        'providers.aliyun.instance_types=["ecs.g7.large"]',
        'providers.aliyun.regions=["cn-beijing"]',
        "providers.aliyun.public_bandwidth=100",
    )
    seen = run_sandboxed(
        user,
        "aliyun",
        JOBS / "tiny" / "job.toml",
        arguments=[word for one in sets for word in ("--set", one)],
    )
    assert seen.show["state"] == "succeeded"
    (launch,) = seen.show["launches"]
    assert launch["zone"].startswith("cn-beijing")
    released = [one for one in seen.trail if one["by"] == "machine" and one["action"] == "DeleteInstance"]
    assert [one["error"] for one in released] == [None]
