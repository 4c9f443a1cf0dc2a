"""Six nodes of which two suffice, in a storm: whatever comes and goes, the job ends, and its bill is true.

Machines are lost, noticed and frozen; the job grows back and is moved; several command lines drive it; the store
goes away and loses answers. ``CLOUDSPOT_SOAK_STORMS`` says how many seeds the soak runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from e2e.test_kills import check_end
from e2e.test_random_faults import JOB, Run, begin, check_machines, check_records, go_through, wait_for_end
from support.jobs.acting_user import User, wait_for

from cloudspot.cli.exit_codes import SUCCEEDED
from cloudspot.local.machines import MachineDirectory

NUM_SEEDS = int(os.environ.get("CLOUDSPOT_SOAK_STORMS", "50"))
NUM_NODES = 6
KINDS = ("kill", "kill", "freeze", "notice", "notice", "move", "driver", "outage")
SETS = (
    f"nodes={{min=2, max={NUM_NODES}}}",
    'run.env.TINY_EPOCHS="600"',
    'run.env.TINY_STEP_SECONDS="0.05"',
)


def outlive_storm(user: User, seed: int) -> None:
    """Draw a storm from the seed, run it, and check all that must hold."""
    rng = random.Random(seed)
    kinds = [rng.choice(KINDS) for _ in range(rng.randrange(4, 9))]
    print(f"seed {seed}: {kinds}")
    run = begin(user, rng, NUM_NODES, SETS, num_outages=kinds.count("outage"), within=120.0)
    try:
        go_through(run, [kind for kind in kinds if kind != "outage"], longest_pause=30.0)
        wait_for_end(run, seconds=1200.0)
        check(run)
    except BaseException:
        for path in sorted(user.home.glob("cli-*.out")):
            print(f"{path.name}:\n{path.read_text()[-6000:]}")
        raise


def check(run: Run) -> None:
    """Check the end, the machines and the bill."""
    user = run.user
    for driver in run.others:
        wait_for("the end of a driver", lambda one=driver: one.poll() is not None)
        assert driver.returncode == SUCCEEDED, user.output(driver)[-6000:]
    check_end(user, JOB)
    check_records(user)
    check_machines(user, NUM_NODES)
    shown = user.show(JOB)
    print([(one["nodes"], one["why"]) for one in shown["generations"]])
    print([(one["why"], one["outcome"], one["num_nodes"]) for one in shown["launches"]])
    check_bill(user, shown)


def check_bill(user: User, shown: Mapping[str, Any]) -> None:
    """Each machine is on the bill, from its start to its end, by the provider's clock and to the second."""
    machines = {machine.id: machine for machine in map(MachineDirectory, user.machines())}
    lines = {line["instance_id"]: line for line in shown["ledger"]}
    assert lines.keys() == machines.keys()
    for name, machine in machines.items():
        truth = machine.record().launched_at, machine.state().ended_at
        told = [datetime.fromisoformat(lines[name][moment]) for moment in ("started", "ended")]
        for one, other in zip(told, truth, strict=True):
            assert other is not None
            assert abs(one - other) <= timedelta(seconds=1), (name, told, truth)


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", range(9000, 9000 + NUM_SEEDS))
def test_six_nodes_of_which_two_suffice_outlive_a_storm(user: User, seed: int) -> None:
    outlive_storm(user, seed)
