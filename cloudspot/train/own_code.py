"""What the code of a job does that has to come before torch is imported, or in a process of its own."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

READ_EARLY = "OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|CUDA_|TORCH(?!ELASTIC_|_NCCL_)|PYTORCH_"
"""How the names of variables begin that torch and its libraries read when they are loaded."""
_ENVIRONMENT = re.compile(rb"\b(environ|putenv)\b")
_SETS_EARLY = re.compile(rf"environ\b.*({READ_EARLY})|[\"']({READ_EARLY})\w*[\"']".encode())
_COMET = "comet_ml"


def obstacle(script: Path) -> str:
    """Return why torch must not be imported before the script runs; an empty text: nothing is known.

    What the script imports of its own is read, too. It is read once, unless the script changes.
    """
    try:
        status = script.stat()
    except OSError:  # it will tell that itself
        return ""
    return _obstacle(script, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _obstacle(script: Path, _modified: int, _size: int) -> str:
    if importlib.util.find_spec(_COMET) is not None:
        return f"{_COMET} is installed, and has to be imported before torch"
    for module in own_modules(script):
        try:
            text = module.read_bytes()
        except OSError:
            continue
        if _ENVIRONMENT.search(text) and _SETS_EARLY.search(text):
            return f"{module.name} may set a variable that is read before it starts"
        if b"setsid" in text:
            return f"{module.name} may begin a session of its own, which the leader of a process group cannot"
    return ""


def own_modules(script: Path) -> list[Path]:
    """Return the files of the script and of what it imports, directly or not, where that is not installed."""
    directories = (script.parent, *_own_directories())
    found, left = set[Path](), [script]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += (file for file in _imported(path, directories) if file.is_file())
    return sorted(found)


def _imported(path: Path, directories: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that a module imports if they are there, wherever in its code."""
    try:
        statements = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):  # the script will tell that itself
        return
    for one in statements:
        places, module = directories, ""
        if isinstance(one, ast.ImportFrom):
            module = one.module or ""
            if one.level:
                places = path.parents[one.level - 1 : one.level]
        elif not isinstance(one, ast.Import):
            continue
        for place in places:
            for alias in one.names:
                where = place
                for name in f"{module}.{alias.name}".strip(".").split("."):
                    yield from (where / f"{name}.py", where / name / "__init__.py")
                    where /= name


def _own_directories() -> Iterator[Path]:
    standard, package = Path(os.__file__).resolve().parent, Path(__file__).resolve().parents[2]
    for path in map(Path, sys.path):
        is_installed = {"site-packages", "dist-packages"} & {*path.parts}
        if not is_installed and not path.resolve().is_relative_to(standard) and path.resolve() != package:
            yield path
