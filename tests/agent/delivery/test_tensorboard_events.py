"""Event files, read by the real TensorBoard."""

import itertools
import json
import math
import struct
import tracemalloc
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from cloudspot.agent.delivery import tensorboard_events
from cloudspot.agent.delivery.tensorboard_events import EventFiles


@pytest.fixture
def node(tmp_path):
    node = SimpleNamespace(directory=tmp_path / "node", artifacts=tmp_path / "node" / "artifacts")
    node.artifacts.mkdir(parents=True)
    return node


def log(node, generation, *steps, time=1000.0, rank=0, **values):
    handoff = node.directory / "generations" / f"{generation:06d}"
    handoff.mkdir(parents=True, exist_ok=True)
    with (handoff / f"metrics-{rank}.jsonl").open("a") as file:
        for step in steps:
            figures = {name: value(step) for name, value in values.items()}
            file.write(json.dumps({"step": step, "time": time + step, "values": figures}) + "\n")


def curves(node):
    reader = EventAccumulator(str(node.artifacts / "tensorboard"))
    reader.Reload()
    return {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


def names(node):
    return sorted(path.name for path in (node.artifacts / "tensorboard").iterdir())


def test_each_figure_is_a_curve(node):
    files = EventFiles(node)
    files.begin(1, 0)
    log(node, 1, 0, 10, 20, loss=lambda step: 2.0 - step / 16, accuracy=lambda step: step / 32)
    files.update()
    assert curves(node) == {
        "loss": [(0, 2.0), (10, 1.375), (20, 0.75)],
        "accuracy": [(0, 0.0), (10, 0.3125), (20, 0.625)],
    }
    assert names(node) == ["events.out.tfevents.generation-000001"]
    (path,) = (node.artifacts / "tensorboard").iterdir()
    events = list(EventFileLoader(str(path)).Load())
    assert events[0].file_version == "brain.Event:2"
    assert [event.wall_time for event in events[2:]] == [1000.0, 1010.0, 1020.0]


def test_what_comes_later_is_appended_and_half_a_line_waits(node):
    files = EventFiles(node)
    log(node, 1, 1, loss=float)
    files.update()
    path = node.directory / "generations" / "000001" / "metrics-0.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"step": 2, "time": 3.0, "val')
    files.update()
    assert curves(node)["loss"] == [(1, 1.0)]
    path.write_text(whole)
    log(node, 1, 2, 3, loss=float)
    files.update()
    files.update()
    assert curves(node)["loss"] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_steps_that_are_made_again_are_shown_once(node):
    files = EventFiles(node)
    files.begin(1, 0)
    log(node, 1, *range(8), loss=lambda step: 1.0)
    files.update()
    files.begin(2, 5)
    log(node, 2, 6, 7, 8, loss=lambda step: 2.0)
    files.update()
    # Steps 5 to 7 of the first are gone, also 5, of which the second says nothing.
    assert curves(node)["loss"] == [*((step, 1.0) for step in range(5)), (6, 2.0), (7, 2.0), (8, 2.0)]
    assert len(names(node)) == 2


@pytest.mark.parametrize("torn", range(0, 60, 7))
def test_an_agent_started_again_goes_on_where_the_last_whole_record_ends(node, torn):
    first = EventFiles(node)
    first.begin(3, 40)
    log(node, 3, 40, 41, 42, loss=float)
    first.update()
    (path,) = (node.artifacts / "tensorboard").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - torn])
    log(node, 3, 43, loss=float)
    EventFiles(node).update()
    assert curves(node)["loss"] == [(step, float(step)) for step in (40, 41, 42, 43)]
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize("torn", [0, 11, 58, 73])
def test_a_file_that_is_large_is_left_alone_and_another_begun(node, monkeypatch, torn):
    """What has changed is uploaded whole, every half minute: the bytes of a week would never be through."""
    monkeypatch.setattr(tensorboard_events, "MAX_FILE_BYTES", 300)
    log(node, 1, *range(3), loss=float)
    files = EventFiles(node)
    for step in range(3, 30):
        if step % 4 == 0:
            files = EventFiles(node)
        files.update()
        log(node, 1, step, loss=float)
        if step == 17:
            files.update()
            path = max((node.artifacts / "tensorboard").iterdir())
            path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - torn)])
            files = EventFiles(node)
    files.update()
    assert curves(node)["loss"] == [(step, float(step)) for step in range(30)]
    assert names(node)[:2] == [
        "events.out.tfevents.generation-000001",
        "events.out.tfevents.generation-000001-000001",
    ]
    sizes = [path.stat().st_size for path in (node.artifacts / "tensorboard").iterdir()]
    assert len(sizes) > 4
    assert max(sizes) < 300 + 100
    files.begin(2, 12)
    log(node, 2, *range(12, 20), loss=lambda step: -1.0)
    files.update()
    assert curves(node)["loss"] == [(step, float(step) if step < 12 else -1.0) for step in range(20)]


@pytest.mark.parametrize("left", [0, 5, 30])
def test_a_head_that_was_cut_short_is_written_again(node, left):
    log(node, 3, 40, loss=float)
    EventFiles(node).update()
    (path,) = (node.artifacts / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:left])
    EventFiles(node).update()
    assert curves(node)["loss"] == [(40, 40.0)]


def test_values_of_any_kind_are_kept_as_far_as_32_bits_go(node):
    log(
        node, 1, 1, big=lambda _: 1e300, small=lambda _: -1e300, loss=lambda _: math.nan, ü=lambda _: math.inf
    )
    log(node, 1, 2**40, big=lambda _: 3.0)
    EventFiles(node).update()
    found = curves(node)
    assert found["big"] == [(1, math.inf), (2**40, 3.0)]
    assert found["small"] == [(1, -math.inf)]
    assert found["ü"] == [(1, math.inf)]
    assert math.isnan(found["loss"][0][1])


@pytest.mark.full
def test_long_metrics_are_read_in_blocks(node, monkeypatch):
    """34 MiB beside an agent that restarts took 364 MiB of memory, and one file of all of them."""
    monkeypatch.setattr(tensorboard_events, "BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(tensorboard_events, "MAX_FILE_BYTES", 1 << 16)
    log(node, 1, *range(10_000), loss=float)
    EventFiles(node).update(lambda: True)
    tracemalloc.start()
    EventFiles(node).update()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = (node.directory / "generations" / "000001" / "metrics-0.jsonl").stat().st_size
    assert peak < size // 2
    assert max(path.stat().st_size for path in (node.artifacts / "tensorboard").iterdir()) < (1 << 16) + (
        1 << 15
    )
    assert curves(node)["loss"] == [(step, float(step)) for step in range(10_000)]


@pytest.mark.parametrize("starts_anew", [False, True])
def test_a_call_that_should_end_does_and_the_next_one_goes_on(node, monkeypatch, starts_anew):
    monkeypatch.setattr(tensorboard_events, "BLOCK_BYTES", 1 << 12)
    log(node, 1, *range(1000), loss=float)
    log(node, 2, *range(1000, 1010), loss=float)
    files, found = EventFiles(node), []
    for limit in range(5, 100, 3):
        asked = itertools.count()
        files.update(lambda limit=limit, asked=asked: next(asked) >= limit)
        before, found = len(found), curves(node)["loss"]
        assert before < len(found) < before + limit * 4096 // 50
        if len(found) == 1010:
            break
        if starts_anew:  # what was written is counted first
            files = EventFiles(node)
    assert limit > 8
    assert found == [(step, float(step)) for step in range(1010)]


def test_a_line_longer_than_a_block_is_counted_alike_by_every_agent(node, monkeypatch):
    monkeypatch.setattr(tensorboard_events, "BLOCK_BYTES", 100)
    path = node.directory / "generations" / "000001" / "metrics-0.jsonl"
    log(node, 1, 1, 2, loss=float)
    with path.open("a") as file:
        file.write("x" * 1234 + "\n")
    log(node, 1, 3, loss=float)
    for step in range(4, 9):
        EventFiles(node).update()
        log(node, 1, step, loss=float)
    EventFiles(node).update()
    assert curves(node)["loss"] == [(step, float(step)) for step in range(1, 9)]


def test_a_file_of_somebody_elses_holds_up_nobody(node):
    """A sparse file of zeros would be one empty record after the other."""
    log(node, 1, 1, loss=float)
    (node.artifacts / "tensorboard").mkdir()
    with (node.artifacts / "tensorboard" / "events.out.tfevents.generation-000001").open("wb") as file:
        file.truncate(1 << 32)
    EventFiles(node).update()
    assert curves(node)["loss"] == [(1, 1.0)]


def test_a_malformed_line_costs_no_other(node):
    log(node, 1, 1, loss=float)
    path = node.directory / "generations" / "000001" / "metrics-0.jsonl"
    with path.open("a") as file:
        file.write('no json\n{"step": 2}\n[1]\n{"step": 1, "time": 0, "values": {"loss": "x"}}\n')
        file.write("[" * 100_000 + "\n" + '{"step": ' + "1" * 5000 + ', "time": 0, "values": {}}\n')
    log(node, 1, 5, loss=float)
    EventFiles(node).update()
    assert curves(node)["loss"] == [(1, 1.0), (5, 5.0)]
    log(node, 1, 6, loss=float)
    EventFiles(node).update()
    assert curves(node)["loss"] == [(1, 1.0), (5, 5.0), (6, 6.0)]


def test_without_figures_and_on_the_other_nodes_there_is_no_file(node):
    log(node, 1, 1, rank=1, loss=float)
    (node.directory / "generations" / "000002").mkdir()
    (node.directory / "generations" / "000002" / "metrics-0.jsonl").touch()
    EventFiles(node).update()
    assert list(node.artifacts.iterdir()) == []


def test_a_disk_that_refuses_is_said_once_and_harms_nobody(node, caplog):
    (node.artifacts / "tensorboard").write_text("in the way")
    files = EventFiles(node)
    log(node, 1, 1, loss=float)
    files.update()
    log(node, 1, 2, loss=float)
    files.update()
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        "metrics are not kept for TensorBoard"
    ]
    (node.artifacts / "tensorboard").unlink()
    files.update()
    assert curves(node)["loss"] == [(1, 1.0), (2, 2.0)]


def test_the_checksum_is_that_of_the_specification():
    # RFC 3720, B.4: CRC32C of 32 zero bytes is 8a9136aa.
    (masked,) = struct.unpack("<I", tensorboard_events._masked_crc32c(bytes(32)))
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == 0x8A9136AA
