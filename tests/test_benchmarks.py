"""The benchmarks, which no other test runs, find what they import from the program."""

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_imports_what_is_there(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cloudspot"):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):  # a module that nobody has imported yet
                    importlib.import_module(f"{node.module}.{name.name}")
