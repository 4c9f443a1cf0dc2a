"""Runs the tests of a kit in this process, on what was broken on purpose."""

from __future__ import annotations

import inspect

import pytest


def failures(kit, *, only=None, **fixtures):
    """Run each test of the kit with fixtures of its own; return the names of those that fail, case by case.

    A fixture is a function that makes it anew. ``only`` names the tests to run, without their cases.
    """
    found = set()
    for name, test in inspect.getmembers(kit, inspect.isfunction):
        if not name.startswith("test_") or (only is not None and name not in only):
            continue
        (mark, *_) = [*(one for one in getattr(test, "pytestmark", ()) if one.name == "parametrize"), None]
        for case in [None] if mark is None else mark.args[1]:
            names = [] if mark is None else [one.strip() for one in mark.args[0].split(",")]
            given = {} if case is None else dict(zip(names, case.values, strict=True))
            with pytest.MonkeyPatch.context() as patch:
                wanted = inspect.signature(test).parameters
                made = {one: make() for one, make in fixtures.items() if one in wanted}
                if "monkeypatch" in wanted:
                    made["monkeypatch"] = patch
                try:
                    test(kit(), **made, **given)
                except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever it fails with
                    found.add(name if case is None else f"{name}[{case.id}]")
    return found
