"""Prints the details of one job: where the time went, launches, generations, notices, machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobsummary import steps_lost_text

_TIME_STYLES = {"training": "green", "lost": "red"}


def echo_details(value: Mapping[str, Any]) -> None:
    """Print the tables of a job; ``value`` is what ``show --json`` prints. Empty tables are left out."""
    _echo_time(value)
    _echo_launches(value)
    _echo_generations(value)
    _echo_notices(value)
    _echo_machines(value)


def _echo_time(value: Mapping[str, Any]) -> None:
    total = value["time"]["total"]
    shown = [
        (state, seconds) for state, seconds in value["time"].items() if state != "total" and seconds >= 0.05
    ]
    if total <= 0 or not shown:
        return
    output.echo()
    output.echo("where the time went", style="bold")
    for state, seconds in shown:
        share = seconds / total
        filled = output.Styled(output.bar(share), _TIME_STYLES.get(state))
        output.echo(f"  {state:<9}  {output.duration_text(seconds):>8}  {100 * share:3.0f}%  ", filled)


def _echo_launches(value: Mapping[str, Any]) -> None:
    attempts = {attempt["launch"]: number for number, attempt in enumerate(value["attempts"], start=1)}
    nodes = {attempt["launch"]: attempt["nodes"] for attempt in value["attempts"]}
    providers = {launch["provider"] for launch in value["launches"]}
    rows = [
        (
            str(launch["launch"]),
            str(attempts.get(launch["launch"], "-")),
            _offer(launch, show_provider=len(providers) > 1),
            output.moment_text(launch["started"]),
            _outcome(launch, nodes.get(launch["launch"], [])),
        )
        for launch in value["launches"]
    ]
    _echo(("LAUNCH", "ATTEMPT", "OFFER", "STARTED", "OUTCOME"), rows)


def _offer(launch: Mapping[str, Any], *, show_provider: bool) -> str:
    offer = f"{launch['market']}/{launch['zone']}/{launch['instance_type']}"
    return f"{launch['provider']}/{offer}" if show_provider else offer


def _outcome(launch: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    if launch["outcome"] is None:
        return _states(node["state"] for node in nodes) or "launching"
    detail = f": {launch['detail']}" if launch["detail"] else ""
    return f"{launch['outcome']}{detail}"


def _states(states: Iterable[str]) -> str:
    """Return ``running`` if all nodes are, else ``62 running, 2 uploading``."""
    counts = Counter(states)
    if len(counts) < 2:
        return next(iter(counts), "")
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def _echo_generations(value: Mapping[str, Any]) -> None:
    rows = [
        (
            str(one["generation"]),
            _ranges(one["nodes"]),
            "start" if one["restored"] is None else str(one["restored"]["step"]),
            str(one["last_step"]),
            steps_lost_text(one),
            _training_time(one),
            _why(one),
        )
        for one in value["generations"]
    ]
    _echo(("GENERATION", "NODES", "FROM", "TO", "LOST", "TRAINED", "WHY"), rows)


def _ranges(names: Sequence[str]) -> str:
    """Return ``1.0-7,9 2.3`` for nodes by their names: launch 1's 0 to 7 and 9, and launch 2's 3."""
    runs: dict[str, list[list[int]]] = {}
    for launch, _, rank in (name.partition(".") for name in names):
        of_launch, number = runs.setdefault(launch, []), int(rank)
        if of_launch and of_launch[-1][1] == number - 1:
            of_launch[-1][1] = number
        else:
            of_launch.append([number, number])
    return " ".join(
        f"{launch}." + ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
        for launch, found in runs.items()
    )


def _training_time(one: Mapping[str, Any]) -> str:
    if one["training_from"] is None or one["training_until"] is None:
        return "unknown"
    return output.duration_text(_seconds_between(one["training_from"], one["training_until"]))


def _why(one: Mapping[str, Any]) -> str:
    skipped = ", ".join(one["skipped"])
    return f"{one['why']}; {skipped} did not verify" if skipped else str(one["why"])


def _echo_notices(value: Mapping[str, Any]) -> None:
    rows = [
        (
            output.moment_text(one["at"]),
            str(one["launch"]),
            str(one["rank"]),
            str(one["step"]),
            output.duration_text(_seconds_between(one["at"], one["deadline"])),
            _commit(one),
            one["source"],
        )
        for one in value["notices"]
    ]
    _echo(("NOTICE", "LAUNCH", "NODE", "STEP", "LEFT", "COMMIT", "SOURCE"), rows)


def _commit(one: Mapping[str, Any]) -> str:
    if one["commit_seconds"] is None:
        return "-"
    return f"step {one['commit']['step']} after {output.duration_text(one['commit_seconds'])}"


def _echo_machines(value: Mapping[str, Any]) -> None:
    cost, currency = value["cost"], value["cost"]["currency"]
    rows = [
        (
            one["instance_id"],
            str(one["launch"]),
            "-" if one["rank"] is None else str(one["rank"]),
            output.duration_text(one["seconds"]) + ("" if one["ended"] else " so far"),
            output.money_text(one["price_per_hour"], one["currency"]),
            output.money_text(one["spent"], one["currency"]),
        )
        for one in value["ledger"]
    ]
    if not rows:
        return
    spent, on_demand = cost["spent"], cost["on_demand_equivalent"]
    total = output.duration_text(cost["machine_seconds"])
    rows.append(("total", "", "", total, "", output.money_text(spent, currency)))
    for other, amount in cost["others"].items():
        rows.append(("and", "", "", "", "", output.money_text(amount, other)))
    rows.append(("on demand", "", "", total, "", output.money_text(on_demand, currency)))
    if on_demand > 0:
        saved = output.money_text(on_demand - spent, currency)
        rows.append(("saved", "", "", "", "", f"{saved} ({100 * (1 - spent / on_demand):.0f}%)"))
    _echo(("MACHINE", "LAUNCH", "NODE", "TIME", "PER HOUR", "SPENT"), rows)


def _echo(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        output.echo()
        output.echo_table(headers, rows)


def _seconds_between(start: str, end: str) -> float:
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
