"""Figures for people, and tables without a terminal."""

from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.cli.screen import output
from cloudspot.host.size_text import size_text
from cloudspot.jobfile.amounts import money_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (9.94, "9.9s"),
        (42.4, "42s"),
        (59.7, "1m 00s"),
        (185, "3m 05s"),
        (7620, "2h 07m"),
        (273_600, "3d 04h"),
    ],
)
def test_durations_have_their_two_largest_units(seconds, text):
    assert output.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0.0000 USD"), (0.01234, "0.0123 USD"), (1234.5, "1,234.50 USD")]
)
def test_small_money_keeps_its_figures(amount, text):
    assert money_text(amount, "USD") == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_are_binary(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((4096, 0), "4.0 KiB"),
        ((4096, 1024), "4.0 KiB (1.0 KiB shared)"),
        ((4096, 1024, 3072), "4.0 KiB (1.0 KiB shared)"),
        ((4096, 1024, 2048), "4.0 KiB (1.0 KiB shared, 2.0 KiB sent)"),
        ((4096, 0, 3000), "4.0 KiB (2.9 KiB sent)"),
    ],
)
def test_the_size_of_a_checkpoint_is_told_with_what_it_took_less(sizes, text):
    assert output.shared_size_text(*sizes) == text


def test_a_table_without_a_terminal_is_aligned_and_never_cut(capsys):
    output.echo_table(("ID", "STATE"), [("a", "running"), ("b" * 100, "")])
    assert capsys.readouterr().out.splitlines() == [
        "ID" + " " * 100 + "STATE",
        "a" + " " * 101 + "running",
        "b" * 100,
    ]


def test_fields_stand_under_each_other_and_empty_ones_are_left_out(capsys):
    output.echo_fields([("state", "failed"), ("gone", ""), ("detail", "one\ntwo")])
    assert capsys.readouterr().out.splitlines() == ["  state   failed", "  detail  one", "          two"]


def test_times_without_a_terminal_are_utc():
    moment = datetime(2026, 11, 20, 7, 25, 4, tzinfo=timezone(timedelta(hours=1)))
    assert output.clock_text(moment) == "2026-11-20T06:25:04Z"


def test_colour_shows_on_a_terminal_only(capsys):
    output.echo("all well", style="green")
    assert capsys.readouterr().out == "all well\n"


def test_a_table_on_a_narrow_terminal_cuts_no_id_and_folds_the_last_column(capsys, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    output.echo_table(("ID", "STATE", "DETAIL"), [("digits-7k3f", "failed", "many words " * 5)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["ID", "STATE", "DETAIL"]
    assert lines[1].split()[:2] == ["digits-7k3f", "failed"]
    assert " ".join(" ".join(lines[1:]).split()[2:]) == " ".join(["many words"] * 5)


def test_what_others_have_named_moves_no_cursor(capsys):
    output.echo_table(("\x1b[2Jloss",), [("a\x1b]0;title\x07b",)])
    output.echo_fields([("detail", "red \x1b[31malert\nsecond\x08 line")])
    assert capsys.readouterr().out.splitlines() == [
        "loss",
        "ab",
        "  detail  red alert",
        "          second line",
    ]
