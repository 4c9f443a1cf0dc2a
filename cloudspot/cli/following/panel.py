"""Render the live view as lines of text for a terminal of a given size. This module does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from cloudspot.cli.following.curve import draw
from cloudspot.cli.following.liveview import NodeView, View
from cloudspot.cli.screen import output
from cloudspot.cli.screen.printable import printable_value
from cloudspot.host.size_text import size_text
from cloudspot.jobfile.amounts import cost_text

LABEL_WIDTH = 9
WIDE_COLUMNS = 110
"""From this width on, the curve is beside the text instead of below it."""
LEAST_LINES = 4
CURVE_LINES = 4
WIDE_CURVE_LINES = 7
NUM_NODE_LINES = 4
"""Up to this many nodes get a line each; if there are more, only those that need attention do."""
NUM_OFFERS = 3
NUM_METRICS = 6
MAX_WARNINGS = 3
CURVE_STYLE = "cyan"


@dataclass(frozen=True)
class _Marks:
    """The characters that a terminal's encoding may lack."""

    rule: str
    full: str
    empty: str


_UNICODE = _Marks(rule="─", full="█", empty="░")
_ASCII = _Marks(rule="-", full="#", empty=".")


@dataclass(frozen=True)
class _Block:
    """Lines that are shown together, or omitted together if the terminal has too few lines."""

    weight: int
    """Blocks with the lowest weight are omitted first."""
    lines: Sequence[Text]


def render(view: View, *, width: int, height: int, ascii_only: bool, hint: str) -> list[Text]:
    """Return the panel's lines, each narrower than ``width`` cells, at most two thirds of ``height``.

    The last column stays empty, because a cursor there may wrap. ``hint`` is the last line.
    """
    view = printable_value(view)
    width = max(20, width - 1)
    marks = _ASCII if ascii_only else _UNICODE
    is_wide = width >= WIDE_COLUMNS
    text_width = width // 2 if is_wide else width
    blocks = [
        _Block(9, [_title(view, width, marks)]),
        _Block(8, list(_progress(view, text_width, marks))),
        _Block(4, list(_metrics(view, text_width))),
        *([] if is_wide else [_Block(1, _curve(view, width, CURVE_LINES, ascii_only=ascii_only))]),
        _Block(3, list(_place(view))),
        _Block(2, list(_nodes(view.nodes, text_width, marks))),
        _Block(5, [_cost(view)]),
        _Block(6, [_saved(view)]),
        _Block(7, list(_warnings(view))),
        _Block(0, [_labelled("", Text(hint, style="dim"))]),
    ]
    blocks = _fitting(blocks, max(LEAST_LINES, height * 2 // 3))
    lines = [line for block in blocks for line in block.lines]
    for line in lines:
        most = width if line is lines[0] else text_width
        line.truncate(most, overflow="crop" if ascii_only else "ellipsis")
    if is_wide and view.curve is not None:
        # The curve is beside the lines between the title and the hint.
        num_lines = min(WIDE_CURVE_LINES, len(lines) - 1)
        beside = _curve(view, width - text_width - 2, num_lines, ascii_only=ascii_only)
        for line, more in zip(lines[1:], beside, strict=False):
            line.pad_right(text_width + 2 - line.cell_len)
            line.append_text(more)
    return lines


def _fitting(blocks: Sequence[_Block], most: int) -> list[_Block]:
    shown = [block for block in blocks if block.lines]
    while sum(len(block.lines) for block in shown) > most and len(shown) > 1:
        shown.remove(min(shown, key=lambda block: block.weight))
    return shown


def _labelled(label: str, value: Text) -> Text:
    return Text.assemble((label.ljust(LABEL_WIDTH), "dim"), value)


def _title(view: View, width: int, marks: _Marks) -> Text:
    generation = f"generation {view.generation}" if view.generation else ""
    nodes = f"{view.num_nodes}/{view.max_nodes} nodes" if view.max_nodes > 1 and view.generation else ""
    elapsed = output.duration_text(round(view.elapsed_seconds))
    parts = [
        Text(view.job_id, style="bold"),
        Text(view.state, style=f"bold {output.STATE_STYLES.get(view.state, '')}"),
        *(Text(part) for part in (generation, nodes, elapsed) if part),
    ]
    rule = Text(f" {marks.rule * 2} ", style="dim")
    line = Text.assemble((f"{marks.rule * 2} ", "dim"), rule.join(parts), " ")
    line.append(marks.rule * max(0, width - line.cell_len), style="dim")
    return line


def _progress(view: View, width: int, marks: _Marks) -> Iterator[Text]:
    if view.detail:
        yield _labelled("", Text(view.detail))
    label = "step" if view.counts_steps else "save"
    if view.steps_total:
        share = min(1.0, view.step / view.steps_total)
        figures = f"  {output.steps_text(view.step, view.steps_total)}  {100 * share:.0f}%"
        length = min(60, width - LABEL_WIDTH - len(figures) - 2)
        yield _labelled(label, Text.assemble(_bar(share, length, marks), (figures, "bold")))
    elif view.step:
        yield _labelled(label, Text(str(view.step), "bold"))
    if view.steps_per_second is not None and view.state in {"running", "draining"}:
        pace = f"{_figure(view.steps_per_second)} steps/s"
        if view.seconds_left is not None:
            pace += f", about {_whole(view.seconds_left)} left"
        yield _labelled("pace", Text(pace))


def _bar(share: float, length: int, marks: _Marks) -> Text:
    filled = int(share * max(0, length))
    return Text.assemble((marks.full * filled, "green"), (marks.empty * (max(0, length) - filled), "dim"))


def _metrics(view: View, width: int) -> Iterator[Text]:
    names = sorted(view.metrics, key=lambda name: (view.curve is None or name != view.curve.name, name))
    current = Text()
    lines: list[Text] = []
    for name in names[:NUM_METRICS]:
        part = Text.assemble((name, ""), " ", (_figure(view.metrics[name]), "bold"))
        if current.plain and current.cell_len + part.cell_len + 3 > width - LABEL_WIDTH:
            lines.append(current)
            current = Text()
        if current.plain:
            current.append("   ")
        current.append_text(part)
    if current.plain:
        lines.append(current)
    for number, line in enumerate(lines):
        yield _labelled("metrics" if number == 0 else "", line)


def _curve(view: View, width: int, height: int, *, ascii_only: bool) -> list[Text]:
    curve = view.curve
    if curve is None or len(curve) < 2 or height < 2:
        return []
    drawing = draw(
        curve.steps, curve.values, width=max(8, width - LABEL_WIDTH), height=height, ascii_only=ascii_only
    )
    if drawing is None:
        return []
    # The name is on the left at half height, with the limits above and below it.
    labels = [""] * height
    labels[0], labels[-1] = _figure(drawing.highest), _figure(drawing.lowest)
    if height > 2:
        labels[height // 2] = set_cell_size(curve.name, min(LABEL_WIDTH - 1, cell_len(curve.name)))
    return [
        Text.assemble((set_cell_size(text, LABEL_WIDTH), "dim"), (line.rstrip(), CURVE_STYLE))
        for text, line in zip(labels, drawing.lines, strict=True)
    ]


def _place(view: View) -> Iterator[Text]:
    if not view.offers:
        yield _labelled("on", Text(f"{view.provider}, nothing launched yet"))
    for number, (offer, count) in enumerate(view.offers[:NUM_OFFERS]):
        price = f"{offer.price_per_hour:g} {offer.currency} an hour"
        last = "" if count else ", the last launch"
        times = f"{count} x " if len(view.offers) > 1 else ""
        where = f"{times}{offer.market.value} {offer.instance_type} in {offer.zone} at {price}{last}"
        yield _labelled("" if number else "on", Text(where if number else f"{view.provider}: {where}"))
    if len(view.offers) > NUM_OFFERS:
        yield _labelled("", Text(f"and {len(view.offers) - NUM_OFFERS} more offers"))


def _nodes(nodes: Sequence[NodeView], width: int, marks: _Marks) -> Iterator[Text]:
    shown = list(nodes)
    if len(nodes) > NUM_NODE_LINES:
        ordinary = Counter(node.state for node in nodes).most_common(1)[0][0]
        notable = [
            node
            for node in nodes
            if node.silent_seconds
            or node.transfer is not None
            or node.state != ordinary
            or node.is_newcomer
            or node.is_excluded
            or node.leaves_seconds is not None
        ]
        shown = notable[: NUM_NODE_LINES - 1]
    label = "nodes" if len(nodes) > 1 else "node"
    for node in shown:
        yield _labelled(label, _node(node, width, marks))
        label = ""
    left = Counter(node.state for node in nodes) - Counter(node.state for node in shown)
    if left:
        counts = ", ".join(f"{count} {state}" for state, count in sorted(left.items()))
        yield _labelled(label, Text(f"and {counts}" if shown else counts))


def _node(node: NodeView, width: int, marks: _Marks) -> Text:
    style = {"failed": "red", "draining": output.WARNING_STYLE, "holding": output.WARNING_STYLE}.get(
        node.state, ""
    )
    line = Text.assemble(f"{node.name} ", (node.state, style))
    if node.is_newcomer and node.state == "ready":
        line.append(": joins at the next drain")
    if node.stands_in_for is not None:
        line.append(f" in place of {node.stands_in_for}")
    if node.leaves_seconds is not None:
        line.append(f"  leaves in {_whole(node.leaves_seconds)}", style=output.WARNING_STYLE)
    if node.is_excluded:
        line.append("  left out", style=output.WARNING_STYLE)
    if node.address is not None:
        line.append(f"  {node.address}")
    if node.silent_seconds is not None:
        line.append(f"  silent for {_whole(node.silent_seconds)}", style=output.WARNING_STYLE)
    transfer = node.transfer
    if transfer is not None:
        share = min(1.0, transfer.done / transfer.total) if transfer.total else 0.0
        line.append(f"  {transfer.what} ")
        line.append_text(_bar(share, min(20, width // 5), marks))
        line.append(f" {size_text(transfer.done)} of {size_text(transfer.total)}")
    return line


def _cost(view: View) -> Text:
    return _labelled("cost", Text(cost_text(view.spent, view.on_demand, view.currency, view.others)))


def _saved(view: View) -> Text:
    if view.commit is None:
        text = "nothing yet"
    else:
        text = f"{'step' if view.counts_steps else 'save'} {view.commit.step}"
        if view.commit_age_seconds is not None:
            text += f", {_whole(view.commit_age_seconds)} ago"
    if view.upload_seconds is not None:
        text += f"; an upload takes {_whole(view.upload_seconds)}"
        if view.notice_seconds is not None:
            text += f", a notice leaves {_whole(view.notice_seconds)}"
    return _labelled("saved", Text(text))


def _warnings(view: View) -> Iterator[Text]:
    texts = list(view.warnings[:MAX_WARNINGS])
    more = len(view.warnings) - MAX_WARNINGS
    for text in [*texts, f"and {more} more"] if more > 0 else texts:
        yield _labelled("!", Text(text, style=output.WARNING_STYLE))


def _whole(seconds: float) -> str:
    """Return a duration without tenths, which would flicker, unless it is shorter than a second."""
    if 0 < seconds < 1 or seconds >= 10:
        return output.duration_text(seconds)
    return f"{seconds:.0f}s"


def _figure(value: float) -> str:
    return f"{value:.4g}"
