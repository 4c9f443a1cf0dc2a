"""``cloudspot simulate``: show what a job would cost under each market policy, without launching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudspot.cli.charts.plots import check_plot, plot_outcomes
from cloudspot.cli.screen import output
from cloudspot.cli.screen.simulated import Simulated
from cloudspot.cli.sharedoptions import json_option, parsed, store_option
from cloudspot.cli.stored.pastrun import find_past_run
from cloudspot.errors import SpecError
from cloudspot.jobfile.quantities import parse_duration, parse_money

if TYPE_CHECKING:
    from cloudspot.market.hazards import Hazards
    from cloudspot.market.replay import SimulatedJob
    from cloudspot.market.situation import Bools

POLICIES = ("on-demand", "greedy", "uniform-progress", "spot-then-on-demand", "deadline", "optimum")
NEEDS_DEADLINE = ("uniform-progress", "deadline")
SPOT_PRICE = 0.318
"""The spot price of a machine with one V100 in 2023, the year of the best public traces, as a share of its
on-demand price: 0.9731 of 3.06 USD per hour."""
OVERHEAD_SECONDS = 300.0
MADE_UP_TICK_HOURS = 0.05
LONGEST = 10.0
"""Without a deadline, a run may take up to this many times as long as the job, if the traces are long enough.
"""
MANY_VALUES = ("--trace", "--learn-from", "--policy")


class _ManyValues(click.Command):
    """A command whose options take all words up to the next option, as in ``--trace A B C``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its words, so that click can parse them."""
        return super().parse_args(ctx, _spelled_out(args))


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """Return ``--trace A --trace B`` for ``--trace A B``."""
    expanded: list[str] = []
    option, num_values = "", 0
    for argument in arguments:
        if argument.startswith("-"):
            option, num_values = argument.partition("=")[0], int("=" in argument)
        elif option in MANY_VALUES:
            if num_values:
                expanded.append(option)
            num_values += 1
        expanded.append(argument)
    return expanded


def _positive_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"must be more than 0: got {text!r}")
    return seconds


def _known_policies(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names if each is a built-in policy or a policy of an installed plugin."""
    from cloudspot.registry import policy_names

    for name in names:
        if name not in POLICIES and name not in policy_names():
            known = ", ".join((*POLICIES, *policy_names()))
            raise click.BadParameter(f"unknown policy {name!r}; known: {known}", ctx=ctx, param=param)
    return names


_FILES: dict[str, Any] = {"multiple": True, "metavar": "FILE...", "type": click.Path(path_type=Path)}


@click.command("simulate", cls=_ManyValues)
@click.argument("job", required=False)
@click.option("--trace", "traces", help="Recorded markets, one zone each. Default: generated.", **_FILES)
@click.option(
    "--length",
    metavar="DURATION",
    callback=parsed(_positive_duration),
    help="The training time on machines that are never reclaimed. Default: that of JOB.",
)
@click.option("--deadline", metavar="DURATION", callback=parsed(_positive_duration), help="The time allowed.")
@click.option(
    "--overhead",
    metavar="DURATION",
    callback=parsed(parse_duration),
    help="How long each new machine takes until it trains. Default: that of JOB, or 5m.",
)
@click.option(
    "--starts",
    "num_starts",
    type=click.IntRange(1, 10_000),
    default=300,
    show_default=True,
    help="The number of runs, each from a random start.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="The random seed."
)
@click.option(
    "--spot-price",
    type=click.FloatRange(0, 1, min_open=True),
    help=f"The spot price as a share of the on-demand price. Default: that of JOB, or {SPOT_PRICE}.",
)
@click.option(
    "--on-demand-price",
    metavar="MONEY",
    callback=parsed(parse_money),
    help="The on-demand price of the job's machines per hour, for costs in money. Default: that of JOB.",
)
@click.option(
    "--max-wait",
    metavar="DURATION",
    default="10m",
    show_default=True,
    callback=parsed(parse_duration),
    help="How long the policy spot-then-on-demand waits for spot machines.",
)
@click.option(
    "--policy",
    "names",
    multiple=True,
    metavar="NAME...",
    callback=_known_policies,
    help=f"Only these policies: {', '.join(POLICIES)}, or a plugin's. Default: all built-in ones that apply.",
)
@click.option("--zones", type=click.IntRange(1, 20), help="Zones of a generated market; default 1.")
@click.option(
    "--nodes",
    "num_nodes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="The number of machines that a zone must have for the job.",
)
@click.option(
    "--learn-from", help="Traces from which policies learn the market. Default: built in.", **_FILES
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the costs into FILE (.png, .svg or .pdf).",
)
@store_option
@json_option
def simulate(
    job: str | None,
    traces: tuple[Path, ...],
    length: float | None,
    deadline: float | None,
    overhead: float | None,
    num_starts: int,
    seed: int,
    spot_price: float | None,
    on_demand_price: tuple[float, str | None] | None,
    max_wait: float,
    names: tuple[str, ...],
    zones: int | None,
    num_nodes: int,
    learn_from: tuple[Path, ...],
    plot: Path | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Show what a job would cost under each market policy.

    Simulates the policies in recorded markets, or in a generated one, from many random starts. The last line
    shows the optimum, which knows the future and which no policy can beat.

    JOB is a job that has trained, or a job file (.toml), which means the newest such job in the store with
    its name. JOB comes before the options, and provides the values that they do not give.
    """
    from cloudspot.market.simulation import simulate as play

    if plot is not None:
        check_plot(plot)
    past = None if job is None else find_past_run(store_url, job, datetime.now(timezone.utc))
    if past is not None:
        length, deadline = length or past.length, deadline or past.deadline
        overhead = past.overhead if overhead is None else overhead
        spot_price = spot_price or past.spot_price
        on_demand_price = on_demand_price or (past.on_demand_price, past.currency)
    if length is None:
        raise SpecError("give --length, or a job that has trained")
    overhead = OVERHEAD_SECONDS if overhead is None else overhead
    asked = _Asked(length, deadline, overhead, spot_price or SPOT_PRICE)
    asked.check()
    chosen = names or tuple(name for name in POLICIES if deadline or name not in NEEDS_DEADLINE)
    of_plugins = [name for name in dict.fromkeys(chosen) if name not in POLICIES]
    for name in NEEDS_DEADLINE:
        if name in chosen and deadline is None:
            raise SpecError(f"--policy {name} needs --deadline")
    hazards = _hazards(learn_from, traces, num_nodes)
    market = _market(asked, hazards, traces, zones, num_nodes=num_nodes, num_runs=num_starts, seed=seed)
    outcomes = play(
        market.is_up,
        market.tick_hours,
        market.job,
        names=[*of_plugins, *(name for name in POLICIES if name in chosen)],
        hazards=hazards,
        max_wait_hours=max_wait / 3600,
    )
    result = Simulated(
        job=market.job,
        has_deadline=deadline is not None,
        outcomes=outcomes,
        traces=traces,
        learned_from=learn_from,
        hazards=hazards,
        num_zones=market.is_up.shape[1],
        num_runs=market.is_up.shape[2],
        tick_hours=market.tick_hours,
        seed=seed,
        on_demand_price=on_demand_price,
        past_job=None if past is None else past.job_id,
    )
    if len(traces) and result.num_runs < num_starts:
        output.warn(f"the traces have only {result.num_runs} start(s) from which a whole run fits")
    if as_json:
        output.echo_json(result.as_json())
    else:
        result.echo()
    if plot is not None:
        plot_outcomes(plot, [(name, one.mean_cost, one.cost_range) for name, one in outcomes.items()])
        output.echo(f"drawn: {plot}", error=True)


@dataclass(frozen=True)
class _Asked:
    """The job, with times in seconds; the price is a share of the on-demand price."""

    length: float
    deadline: float | None
    overhead: float
    spot_price: float

    def check(self) -> None:
        needed = self.length + self.overhead
        if self.deadline is not None and self.deadline < needed:
            raise SpecError(
                f"--deadline: {output.duration_text(self.deadline)} is too short even on demand: --length "
                f"and one --overhead take {output.duration_text(needed)}"
            )

    def job(self, limit_hours: float) -> SimulatedJob:
        """Return the job for the simulation; without a deadline, a run has to end within the limit."""
        from cloudspot.market.replay import SimulatedJob

        return SimulatedJob(
            length=self.length / 3600,
            deadline=limit_hours if self.deadline is None else self.deadline / 3600,
            overhead=self.overhead / 3600,
            spot_price=self.spot_price,
        )


@dataclass(frozen=True)
class _Market:
    """The availability during the runs, and the job to simulate with it."""

    is_up: Bools
    tick_hours: float
    job: SimulatedJob


def _hazards(learn_from: Sequence[Path], traces: Sequence[Path], num_nodes: int) -> Hazards:
    """Return the hazards that the policies know, or the built-in ones if there is nothing to learn from."""
    from cloudspot.market.hazards import DEFAULT, estimate, tally_of, total
    from cloudspot.market.traces import read_market

    for path in learn_from:
        if any(path.resolve() == other.resolve() for other in traces):
            raise SpecError(f"--learn-from: {path} is also in --trace; a policy must not know its future")
    if not learn_from:
        return DEFAULT
    markets = [read_market([path], num_nodes=num_nodes) for path in learn_from]
    return estimate(total(tally_of(one.is_up[:, 0], one.tick_hours) for one in markets))


def _market(
    asked: _Asked,
    hazards: Hazards,
    traces: Sequence[Path],
    zones: int | None,
    *,
    num_nodes: int,
    num_runs: int,
    seed: int,
) -> _Market:
    from cloudspot.market.made_up import made_up
    from cloudspot.market.simulation import num_ticks_needed
    from cloudspot.market.traces import read_market, windows

    longest = LONGEST * (asked.length + asked.overhead) / 3600
    if not traces:
        job, tick_hours = asked.job(longest), MADE_UP_TICK_HOURS
        num_ticks = num_ticks_needed(job, tick_hours)
        is_up = made_up(
            hazards,
            num_ticks=num_ticks,
            tick_hours=tick_hours,
            num_zones=zones or 1,
            num_runs=num_runs,
            seed=seed,
        )
        return _Market(is_up, tick_hours, job)
    if zones is not None:
        raise SpecError("--zones cannot be combined with --trace, where each file is a zone")
    market = read_market(traces, num_nodes=num_nodes)
    # Use at most half of the recorded time, so that runs can start at many points.
    job = asked.job(max(min(longest, market.hours / 2), (asked.length + 2 * asked.overhead) / 3600))
    num_ticks = num_ticks_needed(job, market.tick_hours)
    if num_ticks > len(market.is_up):
        until = "--length" if asked.deadline is None else "--deadline"
        raise SpecError(
            f"--trace: {market.hours:.1f} h are recorded, but with this {until} a run needs "
            f"{num_ticks * market.tick_hours:.1f} h; give longer traces"
        )
    is_up = windows(market, num_ticks=num_ticks, num_runs=num_runs, seed=seed)
    return _Market(is_up, market.tick_hours, job)
