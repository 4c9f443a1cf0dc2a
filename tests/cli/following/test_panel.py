"""The panel: a view as lines for a terminal."""

import dataclasses
import math

import msgspec
import pytest
from rich.cells import cell_len

from cloudspot.cli.following.liveview import NodeView, View
from cloudspot.cli.following.panel import render
from cloudspot.jobstore.layout.records import CheckpointId, Transfer
from cloudspot.model import Market, Offer
from cloudspot.story.series import Curve

OFFER = Offer(
    instance_type="gpu.4x",
    zone="north-1a",
    market=Market.SPOT,
    price_per_hour=1.62,
    on_demand_price_per_hour=5.67,
)
STEPS = range(0, 1200, 10)
VIEW = View(
    job_id="digits-7k3f",
    state="running",
    detail="",
    provider="local",
    generation=2,
    num_nodes=1,
    max_nodes=1,
    elapsed_seconds=725.4,
    step=1234,
    steps_total=6000,
    counts_steps=True,
    steps_per_second=3.42,
    seconds_left=1393.0,
    metrics={"accuracy": 0.98, "loss": 0.19341},
    curve=Curve("loss", STEPS, [0.0] * len(STEPS), [2 * math.exp(-step / 400) for step in STEPS]),
    offers=((OFFER, 1),),
    nodes=(NodeView(name="1.0", state="running", address="10.0.0.4"),),
    spent=0.65,
    on_demand=2.28,
    currency="USD",
    others={},
    commit=CheckpointId(2, 1200),
    commit_age_seconds=12.3,
    upload_seconds=84.0,
    notice_seconds=120.0,
    warnings=("an upload takes 84 s of the 120 s that a notice leaves",),
)


def lines(view=VIEW, *, width=80, height=40, ascii_only=False, hint="Ctrl-C detaches", **changes):
    view = dataclasses.replace(view, **changes)
    texts = render(view, width=width, height=height, ascii_only=ascii_only, hint=hint)
    return [text.plain.rstrip() for text in texts]


def test_all_of_it_at_80_columns():
    shown = lines()
    assert shown[0] == "── digits-7k3f ── running ── generation 2 ── 12m 05s " + "─" * 26
    assert shown[1] == "step     ██████████" + "░" * 42 + "  1234/6000  21%"
    assert shown[2:4] == [
        "pace     3.42 steps/s, about 23m 13s left",
        "metrics  loss 0.1934   accuracy 0.98",
    ]
    assert [line[:8].rstrip() for line in shown[4:8]] == ["2", "", "loss", "0.1021"]
    assert shown[8:] == [
        "on       local: spot gpu.4x in north-1a at 1.62 USD an hour",
        "node     1.0 running  10.0.0.4",
        "cost     0.6500 USD (on demand 2.2800 USD: 71% saved)",
        "saved    step 1200, 12s ago; an upload takes 1m 24s, a notice leaves 2m 00s",
        "!        an upload takes 84 s of the 120 s that a notice leaves",
        "         Ctrl-C detaches",
    ]


def test_at_200_columns_the_curve_stands_beside_the_text():
    shown = lines(width=200)
    assert len(shown) == len(lines()) - 4
    assert shown[2].startswith("pace     3.42 steps/s, about 23m 13s left  ")
    assert any("⠉" <= character <= "⣿" for character in shown[2])


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [20, 40, 79, 80, 109, 110, 111, 200, 400])
@pytest.mark.parametrize("height", [1, 5, 10, 24, 60])
def test_no_line_reaches_the_last_column_and_lines_are_left_for_the_log(width, height, ascii_only):
    nodes = tuple(
        NodeView(
            name=f"1.{rank}",
            state="restoring",
            address="10.0.0.4",
            silent_seconds=99.0,
            transfer=Transfer(what="restoring", done=5 << 30, total=20 << 30),
        )
        for rank in range(9)
    )
    metrics = {f"metric/number/{n}": n * 1e9 for n in range(20)}
    shown = lines(
        width=width, height=height, ascii_only=ascii_only, nodes=nodes, metrics=metrics, detail="why " * 99,
        warnings=("w" * 300,) * 9,
    )  # fmt: skip
    assert max(map(cell_len, shown)) <= width - 1 or width == 20
    assert max(map(cell_len, shown)) <= 20 or width > 20
    assert len(shown) <= max(4, height * 2 // 3)
    assert "digits-7k3f" in shown[0]
    assert not ascii_only or "".join(shown).isascii()


def test_in_ascii_all_of_it_is():
    text = "\n".join(lines(ascii_only=True))
    assert text.isascii()
    assert "##########.....  1234" in text.replace("." * 37, "")


def test_what_is_least_needed_goes_first_where_the_terminal_is_low():
    labels = [[line[:9].strip() for line in lines(height=height)] for height in (30, 15, 12, 6)]
    assert "loss" in labels[0]
    assert "loss" not in labels[1]
    assert "node" in labels[1]
    assert "node" not in labels[2]
    assert labels[3] == ["── digits", "step", "pace", "!"]


def test_a_job_that_waits_says_why():
    shown = lines(
        state="waiting",
        detail="launch 3 capacity: none\x1b[2J left",
        offers=((OFFER, 0),),
        nodes=(),
        curve=None,
    )
    assert shown[1] == "         launch 3 capacity: none left"
    assert not any(line.startswith("pace") for line in shown)
    assert "on       local: spot gpu.4x in north-1a at 1.62 USD an hour, the last launch" in shown


def test_before_anything_is_launched():
    shown = lines(
        state="queued", generation=0, step=0, steps_total=None, steps_per_second=None, seconds_left=None,
        metrics={}, curve=None, offers=(), nodes=(), spent=0.0, on_demand=0.0, commit=None,
        upload_seconds=None, warnings=(), elapsed_seconds=0.4,
    )  # fmt: skip
    assert shown == [
        "── digits-7k3f ── queued ── 0.0s " + "─" * 46,
        "on       local, nothing launched yet",
        "cost     0.0000 USD",
        "saved    nothing yet",
        "         Ctrl-C detaches",
    ]


def test_a_script_that_counts_no_steps_shows_where_it_is_saved():
    shown = lines(counts_steps=False, steps_total=None, step=400, steps_per_second=None)
    assert shown[1] == "save     400"


def test_a_training_that_stands_has_a_pace_of_nothing_and_no_time_left():
    assert "pace     0 steps/s" in lines(steps_per_second=0.0, seconds_left=None)


def test_a_transfer_is_a_bar():
    transfer = Transfer(what="uploading", done=300 << 20, total=1 << 30)
    node = NodeView(name="1.0", state="running", address="10.0.0.4", transfer=transfer)
    shown = [line for line in lines(nodes=(node,)) if line.startswith("node")]
    assert shown == ["node     1.0 running  10.0.0.4  uploading ████░░░░░░░░░░░ 300.0 MiB of 1.0 GiB"]


def test_of_many_nodes_those_are_shown_that_are_not_like_the_others():
    nodes = [NodeView(name=f"1.{rank}", state="running", address="10.0.0.4") for rank in range(64)]
    nodes[7] = NodeView(name="1.7", state="restoring", address="10.0.0.7")
    nodes[9] = dataclasses.replace(nodes[9], silent_seconds=42.0)
    shown = lines(nodes=tuple(nodes))
    start = shown.index("nodes    1.7 restoring  10.0.0.7")
    assert shown[start + 1 : start + 3] == [
        "         1.9 running  10.0.0.4  silent for 42s",
        "         and 62 running",
    ]


def test_more_warnings_than_fit_are_counted():
    shown = lines(warnings=tuple(f"warning {n}" for n in range(5)))
    assert shown[-3:-1] == ["!        warning 2", "!        and 2 more"]


def test_colours_are_those_that_can_be_read_on_black_and_on_white():
    styles = {
        str(span.style)
        for text in render(VIEW, width=200, height=60, ascii_only=False, hint="x")
        for span in text.spans
    }
    words = {word for style in styles for word in style.split()}
    assert words <= {"bold", "dim", "green", "cyan", "magenta", "red"}
    assert {"green", "cyan", "magenta"} <= words


def test_members_newcomers_and_those_that_leave_are_told_apart():
    nodes = (
        NodeView(name="1.0", state="running", address="10.0.0.4", leaves_seconds=42.0),
        NodeView(name="1.1", state="running", address="10.0.0.5"),
        NodeView(name="3.0", state="ready", address="10.0.0.6", is_newcomer=True, stands_in_for="1.0"),
        NodeView(name="1.2", state="ending", address="10.0.0.7", is_excluded=True),
    )
    shown = lines(nodes=nodes, num_nodes=2, max_nodes=3)
    assert shown[0].startswith("── digits-7k3f ── running ── generation 2 ── 2/3 nodes ── 12m 05s ──")
    start = shown.index("nodes    1.0 running  leaves in 42s  10.0.0.4")
    assert shown[start + 1 : start + 4] == [
        "         1.1 running  10.0.0.5",
        "         3.0 ready: joins at the next drain in place of 1.0  10.0.0.6",
        "         1.2 ending  left out  10.0.0.7",
    ]
    # However many there are, those that come and go have a line.
    many = tuple(NodeView(name=f"2.{rank}", state="running") for rank in range(9))
    shown = lines(nodes=(*many, dataclasses.replace(many[0], name="3.0", is_newcomer=True)))
    assert "nodes    3.0 running" in shown


def test_offers_of_several_kinds_are_counted():
    dear = msgspec.structs.replace(OFFER, zone="north-1b", price_per_hour=2.0)
    shown = lines(offers=((OFFER, 3), (dear, 1)))
    start = shown.index("on       local: 3 x spot gpu.4x in north-1a at 1.62 USD an hour")
    assert shown[start + 1] == "         1 x spot gpu.4x in north-1b at 2 USD an hour"
    assert "         and 2 more offers" in lines(offers=((OFFER, 1),) * 5)
