"""Curves of characters."""

import math

import pytest

from cloudspot.cli.following.curve import Drawing, draw


def test_a_falling_curve_in_braille():
    steps = range(0, 101, 5)
    drawing = draw(steps, [math.exp(-step / 25) for step in steps], width=12, height=3, ascii_only=False)
    assert drawing.lines == ("⠱⡀          ", " ⠑⢄         ", "   ⠉⠑⠢⠤⠤⣀⣀⣀⣀")
    assert drawing.highest == 1.0
    assert drawing.lowest == pytest.approx(math.exp(-4))


def test_the_same_in_ascii():
    steps = range(0, 101, 5)
    drawing = draw(steps, [math.exp(-step / 25) for step in steps], width=12, height=3, ascii_only=True)
    assert drawing.lines == ("*           ", " ***        ", "    ********")


def test_two_points_are_joined():
    assert draw([10, 20], [0, 1], width=4, height=4, ascii_only=True).lines == (
        "   *",
        "  * ",
        " *  ",
        "*   ",
    )


def test_a_jump_has_no_holes():
    drawing = draw([0, 1], [0, 1], width=2, height=5, ascii_only=True)
    assert drawing.lines == (" *", " *", " *", " *", "* ")


def test_a_curve_that_does_not_move_lies_in_the_middle():
    assert draw([1, 2, 3], [7, 7, 7], width=3, height=3, ascii_only=True) == Drawing(
        ("   ", "***", "   "), 7, 7
    )


def test_one_point_is_drawn():
    assert draw([5], [2.0], width=3, height=1, ascii_only=True).lines == ("*  ",)


def test_what_is_no_number_is_left_out():
    values = [math.nan, 1.0, math.inf, 3.0, -math.inf]
    drawing = draw([0, 1, 2, 3, 4], values, width=5, height=3, ascii_only=True)
    assert (drawing.lowest, drawing.highest) == (1.0, 3.0)
    assert drawing.lines == ("   * ", "  *  ", " *   ")


@pytest.mark.parametrize("values", [[], [math.nan, math.inf]])
def test_without_a_finite_value_there_is_nothing_to_draw(values):
    assert draw(range(len(values)), values, width=5, height=2, ascii_only=False) is None


def test_a_column_shows_the_mean_of_what_falls_on_it():
    drawing = draw([0, 1, 2, 3], [0.0, 4.0, 8.0, 10.0], width=2, height=2, ascii_only=True)
    assert (drawing.lowest, drawing.highest) == (4.0, 10.0)
