"""The output of a simulation, as a table or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudspot.cli.screen import output
from cloudspot.jobfile.amounts import money_text

if TYPE_CHECKING:
    from cloudspot.market.hazards import Hazards
    from cloudspot.market.replay import SimulatedJob
    from cloudspot.market.simulation import Outcome


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A job and its outcome in a market under each policy."""

    job: SimulatedJob
    has_deadline: bool
    """If false, the deadline in ``job`` is the maximum time that a run may take."""
    outcomes: Mapping[str, Outcome]
    traces: Sequence[Path]
    """Empty if the market was generated."""
    learned_from: Sequence[Path]
    """Empty if the hazards are built in."""
    hazards: Hazards
    num_zones: int
    num_runs: int
    tick_hours: float
    seed: int
    on_demand_price: tuple[float, str | None] | None
    """The price per hour of all the job's machines, and its currency."""
    past_job: str | None
    """The earlier job that provides the times and prices."""

    def _money(self, share: float) -> float | None:
        if self.on_demand_price is None:
            return None
        return share * self.job.length * self.on_demand_price[0]

    def as_json(self) -> dict[str, Any]:
        """Return the value that ``--json`` prints."""
        job, price = self.job, self.on_demand_price or (None, None)
        return {
            "length_hours": job.length,
            "deadline_hours": job.deadline if self.has_deadline else None,
            "limit_hours": job.deadline,
            "overhead_hours": job.overhead,
            "spot_price": job.spot_price,
            "on_demand_price": price[0],
            "currency": price[1],
            "past_job": self.past_job,
            "traces": [str(path) for path in self.traces],
            "learned_from": [str(path) for path in self.learned_from],
            "losses_per_hour": self.hazards.loss,
            "gains_per_hour": self.hazards.gain,
            "zones": self.num_zones,
            "tick_hours": self.tick_hours,
            "runs": self.num_runs,
            "seed": self.seed,
            "policies": {
                name: {
                    **dataclasses.asdict(one),
                    "money": self._money(one.mean_cost),
                    "money_range": None if price[0] is None else [*map(self._money, one.cost_range)],
                }
                for name, one in self.outcomes.items()
            },
        }

    def echo(self) -> None:
        """Print the simulation for people."""
        job = self.job
        until = f"due after {_time(job.deadline)}"
        if not self.has_deadline:
            until = f"with no deadline (a run may take {_time(job.deadline)})"
        output.echo(
            f"a job of {_time(job.length)}, {until}; a new machine trains after {_time(job.overhead)}; "
            f"spot costs {job.spot_price:g} of the on-demand price"
        )
        output.echo(
            f"{self.num_runs} run(s) in {self.num_zones} {'recorded' if self.traces else 'generated'} "
            f"zone(s), seed {self.seed}; hazards {'learned' if self.learned_from else 'built in'}"
        )
        if self.past_job is not None:
            output.echo(f"values that were not given are taken from job {self.past_job}")
        output.echo()
        money = () if self.on_demand_price is None else ("MONEY",)
        headers = ("POLICY", "COST", "10% TO 90%", *money, "LATE", "RECLAIMS", "STARTS", "SPOT", "ON DEMAND")
        rows = [self._row(name, one) for name, one in self.outcomes.items()]
        output.echo_table((*headers, "IDLE", "END", "10% TO 90%"), rows)
        output.echo()
        output.echo("COST: the mean, as a share of the work's cost on demand; times are mean hours")

    def _row(self, name: str, one: Outcome) -> list[str]:
        low, high = one.cost_range
        row = [name, f"{one.mean_cost:.3f}", f"{low:.3f} to {high:.3f}"]
        money = self._money(one.mean_cost)
        if self.on_demand_price is not None and money is not None:
            row.append(money_text(money, self.on_demand_price[1] or "").rstrip())
        figures = (
            one.reclaims,
            one.starts,
            one.spot_hours,
            one.on_demand_hours,
            one.idle_hours,
            one.end_hours,
        )
        row += [str(one.late), *("-" if value is None else f"{value:.1f}" for value in figures)]
        return [*row, "" if one.end_range is None else "{:.1f} to {:.1f}".format(*one.end_range)]


def _time(hours: float) -> str:
    return f"{hours:.4g} h"
