"""Print the details of one job: where the time went, launches, nodes, generations, notices, machines."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobsummary import steps_lost_text
from cloudspot.host.size_text import size_text
from cloudspot.jobfile.amounts import money_text
from cloudspot.story.node_names import parse_seat, ranges

_TIME_STYLES = {"training": "green", "lost": "red"}


MOST_ROWS = 8
"""The number of rows beyond which a table is folded."""
KEPT_ROWS = 4
"""How many of its newest rows a folded table shows, in addition to those of live launches, nodes and
machines."""


def echo_details(value: Mapping[str, Any], sections: Collection[str], *, show_all: bool = False) -> None:
    """Print the given tables of a job; ``value`` is the value that ``show --json`` prints.

    Empty tables are omitted.

    Unless ``show_all``, long tables show the newest and the live rows, and count the other rows in one line.
    """
    most = sys.maxsize if show_all else MOST_ROWS
    for section, echo in _TABLES.items():
        if section in sections:
            echo(value, most)


def _echo_time(value: Mapping[str, Any], _most: int) -> None:
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


def _echo_launches(value: Mapping[str, Any], most: int) -> None:
    nodes: dict[int, list[Mapping[str, Any]]] = {}
    for node in value["nodes"]:
        nodes.setdefault(node["launch"], []).append(node)
    providers = {launch["provider"] for launch in value["launches"]}
    kept, folded = _folded(value["launches"], most, lambda launch: launch["outcome"] is None)
    has_many = any(launch["num_nodes"] > 1 for launch in value["launches"])
    rows = [
        (
            str(launch["launch"]),
            *([str(launch["num_nodes"])] if has_many else []),
            _offer(launch, show_provider=len(providers) > 1),
            output.moment_text(launch["started"]),
            _outcome(launch, nodes.get(launch["launch"], [])),
            _launch_reason(launch),
        )
        for launch in kept
    ]
    headers = ("LAUNCH", *(["NODES"] if has_many else []), "OFFER", "STARTED", "OUTCOME", "WHY")
    _echo(headers, rows, num_folding=2)
    _echo_folded(
        folded,
        f"launches of {sum(one['num_nodes'] for one in folded)} nodes",
        [one["outcome"] for one in folded],
        _paid(folded),
    )


def _launch_reason(launch: Mapping[str, Any]) -> str:
    principals = [name for name in launch["stands_in_for"] if name is not None]
    instead = f", for {ranges(map(parse_seat, principals))}" if principals else ""
    return f"{launch['why']}{instead}{': ' if launch['detail'] else ''}{launch['detail']}"


def _echo_nodes(value: Mapping[str, Any], most: int) -> None:
    """Print the nodes, unless the launches show them all: one node per launch, and at most one node alive."""
    nodes = value["nodes"]
    live = [node for node in nodes if node["ended"] is None]
    if len(nodes) == len({node["launch"] for node in nodes}) and len(live) < 2:
        return
    members = value["generations"][-1]["nodes"] if value["generations"] else []
    ranks = {name: str(rank) for rank, name in enumerate(members)}
    kept, folded = _folded(nodes, most, lambda node: node["ended"] is None)
    rows = [
        (
            node["name"],
            ranks.get(node["name"], "-"),
            output.moment_text(node["claimed"]),
            output.duration_text(node["seconds"]) + ("" if node["ended"] else " so far"),
            _node_outcome(node),
        )
        for node in kept
    ]
    _echo(("NODE", "RANK", "SINCE", "TIME", "STATE"), rows)
    _echo_folded(folded, "nodes", [one["outcome"] for one in folded], "")


def _node_outcome(node: Mapping[str, Any]) -> str:
    if node["ended"] is None:
        return str(node["state"])
    if node["state"] == "kept":
        return f"{node['outcome']}, and kept: {node['detail']}"
    return f"{node['outcome']}{': ' if node['detail'] else ''}{node['detail']}"


def _offer(launch: Mapping[str, Any], *, show_provider: bool) -> str:
    offer = f"{launch['market']}/{launch['zone']}/{launch['instance_type']}"
    return f"{launch['provider']}/{offer}" if show_provider else offer


def _outcome(launch: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    if launch["outcome"] is None:
        num_missing = launch["num_nodes"] - len(nodes)
        return _states([*(node["state"] for node in nodes), *["launching"] * num_missing])
    detail = f": {launch['outcome_detail']}" if launch["outcome_detail"] else ""
    return f"{launch['outcome']}{detail}"


def _states(states: Iterable[str]) -> str:
    """Return the nodes' common state, such as ``running``, or counts such as ``62 running, 2 uploading``."""
    counts = Counter(states)
    if len(counts) < 2:
        return next(iter(counts), "")
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def _echo_generations(value: Mapping[str, Any], most: int) -> None:
    kept, folded = _folded(value["generations"], most)
    rows = [
        (
            str(one["generation"]),
            ranges(map(parse_seat, one["nodes"])),
            "start" if one["restored"] is None else str(one["restored"]["step"]),
            str(one["last_step"]),
            steps_lost_text(one),
            "held" if one["is_holding"] else _training_time(one),
            _generation_reason(one),
        )
        for one in kept
    ]
    _echo(("GENERATION", "NODES", "FROM", "TO", "LOST", "TRAINED", "WHY"), rows)
    together = {
        "steps_lost": sum(one["steps_lost"] or 0 for one in folded),
        "steps_lost_is_exact": all(one["steps_lost_is_exact"] for one in folded),
    }
    lost = f"steps lost: {steps_lost_text(together)}"
    _echo_folded(folded, "generations", [one["why"] for one in folded], lost)


def _training_time(one: Mapping[str, Any]) -> str:
    if one["training_from"] is None or one["training_until"] is None:
        return "unknown"
    return output.duration_text(_seconds_between(one["training_from"], one["training_until"]))


def _generation_reason(one: Mapping[str, Any]) -> str:
    skipped = ", ".join(one["skipped"])
    return f"{one['why']}; {skipped} did not verify" if skipped else str(one["why"])


def _echo_notices(value: Mapping[str, Any], most: int) -> None:
    # They are sorted by launch and rank, so the last one is not always the newest.
    kept, folded = _folded(sorted(value["notices"], key=lambda one: datetime.fromisoformat(one["at"])), most)
    rows = [
        (
            output.moment_text(one["at"]),
            one["node"],
            str(one["step"]),
            output.duration_text(_seconds_between(one["at"], one["deadline"])),
            _commit(one),
            one["source"],
        )
        for one in kept
    ]
    _echo(("NOTICE", "NODE", "STEP", "LEFT", "COMMIT", "SOURCE"), rows)
    num_saved = sum(one["commit_seconds"] is not None for one in folded)
    _echo_folded(folded, "notices", [], f"{num_saved} with a checkpoint")


def _commit(one: Mapping[str, Any]) -> str:
    if one["commit_seconds"] is None:
        return "-"
    return f"step {one['commit']['step']} after {output.duration_text(one['commit_seconds'])}"


def _echo_machines(value: Mapping[str, Any], most: int) -> None:
    cost, currency = value["cost"], value["cost"]["currency"]
    kept, folded = _folded(value["ledger"], most, lambda one: one["ended"] is None)
    rows = [
        (
            one["instance_id"],
            one["node"] or "-",
            output.duration_text(one["seconds"]) + ("" if one["ended"] else " so far"),
            money_text(one["price_per_hour"], one["currency"]),
            money_text(one["spent"], one["currency"]),
        )
        for one in kept
    ]
    if not rows:
        return
    spent, on_demand = cost["spent"], cost["on_demand_equivalent"]
    total = output.duration_text(cost["machine_seconds"])
    if folded:
        rows.append((f"{len(folded)} older", "", *_total(folded)))
    rows.append(("total", "", total, "", money_text(spent, currency)))
    for other, amount in cost["others"].items():
        rows.append(("and", "", "", "", money_text(amount, other)))
    for purpose, paid in cost["purposes"].items():
        if purpose != "training" and (paid["seconds"] >= 0.05 or paid["spent"]):
            much = output.duration_text(paid["seconds"])
            if purpose == "transfer":
                much = size_text(sum(line["transfer_bytes"] for line in value["ledger"]))
            rows.append((f"of it: {purpose}", "", much, "", money_text(paid["spent"], currency)))
    rows.append(("on demand", "", total, "", money_text(on_demand, currency)))
    if on_demand > 0:
        saved = money_text(on_demand - spent, currency)
        rows.append(("saved", "", "", "", f"{saved} ({100 * (1 - spent / on_demand):.0f}%)"))
    _echo(("MACHINE", "NODE", "TIME", "PER HOUR", "SPENT"), rows)


def _total(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    seconds = output.duration_text(sum(one["seconds"] for one in rows))
    return seconds, "", _money(rows)


def _paid(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{output.duration_text(sum(one['seconds'] for one in rows))}, {_money(rows)}"


def _money(rows: Sequence[Mapping[str, Any]]) -> str:
    amounts: dict[str, float] = {}
    for one in rows:
        amounts[one["currency"]] = amounts.get(one["currency"], 0.0) + one["spent"]
    return " + ".join(money_text(amount, currency) for currency, amount in amounts.items())


_Row = TypeVar("_Row")


def _folded(
    rows: Sequence[_Row], most: int, is_live: Callable[[_Row], bool] = lambda _row: False
) -> tuple[list[_Row], list[_Row]]:
    """Return the rows to show, and the rows to count in one line."""
    if len(rows) <= most:
        return list(rows), []
    newest = len(rows) - KEPT_ROWS
    kept = [row for number, row in enumerate(rows) if number >= newest or is_live(row)]
    return kept, [row for number, row in enumerate(rows) if number < newest and not is_live(row)]


def _echo_folded(rows: Sequence[object], what: str, outcomes: Sequence[str], rest: str) -> None:
    """Print the line that counts the rows that are not shown."""
    if rows:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in Counter(outcomes).most_common())
        text = "; ".join(part for part in (counts, rest) if part)
        output.echo(f"and {len(rows)} older {what}: {text} (--all shows them)", style="dim")


def _echo(headers: Sequence[str], rows: Sequence[Sequence[str]], *, num_folding: int = 1) -> None:
    if rows:
        output.echo()
        output.echo_table(headers, rows, num_folding=num_folding)


def _seconds_between(start: str, end: str) -> float:
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


_TABLES: Final[Mapping[str, Callable[[Mapping[str, Any], int], None]]] = {
    "time": _echo_time,
    "launches": _echo_launches,
    "nodes": _echo_nodes,
    "generations": _echo_generations,
    "notices": _echo_notices,
    "machines": _echo_machines,
}
TABLES: Final = (*_TABLES,)
"""The names of the tables, in the order of display."""
