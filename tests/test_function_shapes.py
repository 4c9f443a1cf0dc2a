"""The shape of the code: no function takes so many arguments that a reader loses track of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_PARAMETERS = 10
"""All names in a signature, ``self`` and ``**options`` too."""


def too_long(text: str) -> list[str]:
    """Return the names of the functions of a module that have more parameters, but for click's commands."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
        if any(one == "command" or one.endswith(".command") for one in decorators):
            continue
        own = node.args
        count = len([*own.posonlyargs, *own.args, *own.kwonlyargs]) + bool(own.vararg) + bool(own.kwarg)
        if count > MAX_PARAMETERS:
            found.append(node.name)
    return found


def test_no_function_has_more_than_ten_parameters_but_for_commands():
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for part in ("cloudspot", "plugins")
        for path in sorted((ROOT / part).rglob("*.py"))
        for name in too_long(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(a, b, c, d, e, f, g, h, i, j): pass", []),
        ("def f(a, b, c, d, e, /, f, g, *, h, i, j, k): pass", ["f"]),
        ("async def f(a, b, c, d, e, f, g, h, i, *j, **k): pass", ["f"]),
        ("class A:\n def f(self, a, b, c, d, e, f, g, h, i): pass", []),
        ("class A:\n def f(self, a, b, c, d, e, f, g, h, i, j): pass", ["f"]),
        ("def f():\n def g(a, b, c, d, e, f, g, h, i, j, k): pass", ["g"]),
        ("@click.command(name='f')\ndef f(a, b, c, d, e, f, g, h, i, j, k): pass", []),
        ("@other('.command')\ndef f(a, b, c, d, e, f, g, h, i, j, k): pass", ["f"]),
    ],
)
def test_what_the_count_sees(text, names):
    assert too_long(text) == names
