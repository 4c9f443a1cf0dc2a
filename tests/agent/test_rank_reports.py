"""What a rank reports of its end: only what a rank would write counts."""

import json
import logging

import pytest

from cloudspot.agent.rank_reports import (
    MAX_REPORT_BYTES,
    RankDrained,
    RankEnded,
    RankError,
    RankImports,
    read_report,
)
from cloudspot.train import handoff as files


@pytest.mark.parametrize(
    ("value", "report"),
    [
        ({"step": 7}, RankDrained(step=7)),
        ({"step": None}, RankDrained(step=None)),
        ({"seconds": {"transformers": 2.5}}, RankImports(seconds={"transformers": 2.5})),
        (
            {"step": 7, "is_saved": True, "weights_sha256": "a" * 64},
            RankEnded(step=7, is_saved=True, weights_sha256="a" * 64),
        ),
        (
            {"type": "builtins.ValueError", "message": "é\n"},
            RankError(type="builtins.ValueError", message="é\n"),
        ),
        (
            {"type": "builtins.ValueError", "message": "x", "causes": ["y"]},
            RankError(type="builtins.ValueError", message="x", causes=("y",)),
        ),
    ],
)
def test_what_a_rank_writes_is_read(tmp_path, value, report):
    files.write_json(tmp_path / "report.json", value)
    assert read_report(tmp_path / "report.json", type(report)) == report


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"step": -1}',
        b'{"step": "7"}',
        b'{"step": 99999999999999999999}',
        b"[" * 100_000,
        json.dumps({"step": 7, "more": "x" * MAX_REPORT_BYTES}).encode(),
    ],
)
def test_anything_else_counts_as_none_and_is_told_once(tmp_path, caplog, data):
    path = tmp_path / "drained-0.json"
    assert read_report(path, RankDrained) is None
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert read_report(path, RankDrained) is None
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("the report drained-0.json is ignored: ")
    assert len(message) < 1000
