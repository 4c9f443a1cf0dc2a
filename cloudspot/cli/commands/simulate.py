"""``cloudspot simulate``: what a job would cost under each market policy; nothing is launched."""

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
"""What a machine with one V100 cost on the spot market in 2023, the year of the best public traces, as a
share of its price on demand: 0.9731 of 3.06 USD an hour."""
OVERHEAD_SECONDS = 300.0
MADE_UP_TICK_HOURS = 0.05
LONGEST = 10.0
"""Without a deadline, a run may take so many times as long as the job, if the traces are long enough."""
MANY_VALUES = ("--trace", "--learn-from", "--policy")


class _ManyValues(click.Command):
    """Options that take all words up to the next option, as in ``--trace A B C``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let click read them as if the option stood before each of these words."""
        return super().parse_args(ctx, _spelled_out(args))


def _spelled_out(words: Sequence[str]) -> list[str]:
    """Return ``--trace A --trace B`` for ``--trace A B``."""
    expanded: list[str] = []
    option, num_values = "", 0
    for word in words:
        if word.startswith("-"):
            option, num_values = word.partition("=")[0], int("=" in word)
        elif option in MANY_VALUES:
            if num_values:
                expanded.append(option)
            num_values += 1
        expanded.append(word)
    return expanded


def _positive_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"must be more than 0: got {text!r}")
    return seconds


def _known_policies(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, if each is one of ours or of an installed plugin."""
    from cloudspot.registry import policy_names

    for name in names:
        if name not in POLICIES and name not in policy_names():
            known = ", ".join((*POLICIES, *policy_names()))
            raise click.BadParameter(f"no policy {name!r}; there are {known}", ctx=ctx, param=param)
    return names


_FILES: dict[str, Any] = {"multiple": True, "metavar": "FILE...", "type": click.Path(path_type=Path)}


@click.command("simulate", cls=_ManyValues)
@click.argument("job", required=False)
@click.option("--trace", "traces", help="Recorded markets, one zone each. Default: a made-up one.", **_FILES)
@click.option(
    "--length",
    metavar="DURATION",
    callback=parsed(_positive_duration),
    help="How long the job trains on machines that nobody takes. Default: as long as JOB.",
)
@click.option(
    "--deadline", metavar="DURATION", callback=parsed(_positive_duration), help="When it has to be done."
)
@click.option(
    "--overhead",
    metavar="DURATION",
    callback=parsed(parse_duration),
    help="For how long each new machine does not train. Default: as JOB's, or 5m.",
)
@click.option(
    "--starts",
    "num_starts",
    type=click.IntRange(1, 10_000),
    default=300,
    show_default=True,
    help="How many runs, each from a random place.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of what is random."
)
@click.option(
    "--spot-price",
    type=click.FloatRange(0, 1, min_open=True),
    help=f"The price of spot machines as a share of on-demand's. Default: JOB's, or {SPOT_PRICE}.",
)
@click.option(
    "--on-demand-price",
    metavar="MONEY",
    callback=parsed(parse_money),
    help="What the job's machines cost an hour on demand, to tell costs in money. Default: as JOB's.",
)
@click.option(
    "--max-wait",
    metavar="DURATION",
    default="10m",
    show_default=True,
    callback=parsed(parse_duration),
    help="How long spot-then-on-demand waits for spot.",
)
@click.option(
    "--policy",
    "names",
    multiple=True,
    metavar="NAME...",
    callback=_known_policies,
    help=f"Only these: {', '.join(POLICIES)}, or a plugin's. Default: all of ours that can be followed.",
)
@click.option("--zones", type=click.IntRange(1, 20), help="How many zones the made-up market has; default 1.")
@click.option(
    "--nodes",
    "num_nodes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many machines a zone must have for the job.",
)
@click.option(
    "--learn-from", help="Traces by which the policies know the market. Default: built in.", **_FILES
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

    Plays the policies through recorded markets, or one that is made up, from many random places. The last
    line is what no policy can beat, as it knows the future.

    JOB is a job that has trained, or a job file (.toml), of whose name the newest such job in the store
    counts: what the options do not say is taken from it. It comes before the options.
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
        output.warn(f"the traces have only {result.num_runs} place(s) from which a run fits")
    if as_json:
        output.echo_json(result.as_json())
    else:
        result.echo()
    if plot is not None:
        plot_outcomes(plot, [(name, one.mean_cost, one.cost_range) for name, one in outcomes.items()])
        output.echo(f"drawn: {plot}", error=True)


@dataclass(frozen=True)
class _Asked:
    """The job, in seconds; the price is a share of on-demand's."""

    length: float
    deadline: float | None
    overhead: float
    spot_price: float

    def check(self) -> None:
        needed = self.length + self.overhead
        if self.deadline is not None and self.deadline < needed:
            raise SpecError(
                f"--deadline: {output.duration_text(self.deadline)} is too soon even on demand: --length and "
                f"one --overhead take {output.duration_text(needed)}"
            )

    def job(self, limit_hours: float) -> SimulatedJob:
        """Return it for the simulation; without a deadline, a run has to end within the limit."""
        from cloudspot.market.replay import SimulatedJob

        return SimulatedJob(
            length=self.length / 3600,
            deadline=limit_hours if self.deadline is None else self.deadline / 3600,
            overhead=self.overhead / 3600,
            spot_price=self.spot_price,
        )


@dataclass(frozen=True)
class _Market:
    """What the runs meet, and the job that can be played in it."""

    is_up: Bools
    tick_hours: float
    job: SimulatedJob


def _hazards(learn_from: Sequence[Path], traces: Sequence[Path], num_nodes: int) -> Hazards:
    """Return what the policies know; the built-in hazards if there is nothing to learn from."""
    from cloudspot.market.hazards import DEFAULT, estimate, tally_of, total
    from cloudspot.market.traces import read_market

    for path in learn_from:
        if any(path.resolve() == other.resolve() for other in traces):
            raise SpecError(f"--learn-from: {path} is among --trace; a policy must not know its future")
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
        raise SpecError("--zones: each file of --trace is a zone; leave one of them out")
    market = read_market(traces, num_nodes=num_nodes)
    # Half of what is recorded: runs are to begin at many places.
    job = asked.job(max(min(longest, market.hours / 2), (asked.length + 2 * asked.overhead) / 3600))
    num_ticks = num_ticks_needed(job, market.tick_hours)
    if num_ticks > len(market.is_up):
        until = "--length" if asked.deadline is None else "--deadline"
        raise SpecError(
            f"--trace: {market.hours:.1f} h are recorded, and with this {until} a run needs "
            f"{num_ticks * market.tick_hours:.1f} h; give longer traces"
        )
    is_up = windows(market, num_ticks=num_ticks, num_runs=num_runs, seed=seed)
    return _Market(is_up, market.tick_hours, job)
