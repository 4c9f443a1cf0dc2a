"""What a training script imports first, as far as the fork server may import it before the script runs.

That saves each start of the training the seconds that, for instance, transformers takes. It must make no
other difference. So only those imports count with which the script begins, before it does anything else, and
only those of packages with which this was tried, where pip has installed them: when they are imported, they
start no thread of Python's, open no device, and read no variable that differs from rank to rank. (Lightning
does.) The fork server seeds anew the random generators that they make from what differs in each process.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TRIED = frozenset(
    (
        *("PIL", "accelerate", "cloudspot", "datasets", "matplotlib", "numpy", "pandas"),
        *("safetensors", "scipy", "sklearn", "torch", "torchdata", "tqdm", "transformers"),
    )
)
_DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn"}
"""The distribution, where it has another name."""
_NOT_TRIED = frozenset(("cloudspot.train.lightning",))
"""Modules of those packages that import what was not tried."""
_OF_A_START = re.compile(
    r"(CLOUDSPOT_\w+|TORCHELASTIC_\w+|TORCH_NCCL_\w+|(GLOO|NCCL|TP)_SOCKET_IFNAME|MASTER_(ADDR|PORT)|ROLE_NAME"
    r"|((GROUP|LOCAL|ROLE)_)?(RANK|WORLD_SIZE)|(OLD)?PWD|SHLVL|_)$"
)
"""Variables of one start, or of one rank; no package that was tried reads one when it is imported."""


@dataclass(frozen=True)
class EarlyImports:
    """What was imported, and what that has done to this process."""

    modules: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those that the imports have set."""

    def variable_in_the_way(self, here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
        """Return a variable that an import may have read, and that is another there; None: there is none."""
        if not self.modules:
            return None
        names = (name for name in {*here, *there} if here.get(name) != there.get(name))
        return next((name for name in names if not _OF_A_START.match(name)), None)


def import_early(script: Path, own: Collection[str]) -> EarlyImports:
    """Import what the script imports first; ``own`` are the modules in its directory."""
    try:
        found = leading_imports(script.read_bytes(), own)
    except (OSError, SyntaxError, ValueError):  # it will tell that itself
        return EarlyImports()
    if any(map(_is_elsewhere_too, own)):
        return EarlyImports()  # an import might find that one, where the script's own comes first
    if any(map(_is_another, TRIED - sys.modules.keys())):
        return EarlyImports()  # the job's own, perhaps, which may read what differs from rank to rank
    before = dict(os.environ)
    modules = []
    with contextlib.suppress(Exception):  # as above
        for module, names in found:
            imported = importlib.import_module(module)
            modules.append(module)
            for name in names:
                if not hasattr(imported, name):
                    importlib.import_module(f"{module}.{name}")
    variables = {name: value for name, value in os.environ.items() if before.get(name) != value}
    return EarlyImports(tuple(modules), variables)


def leading_imports(source: bytes, own: Collection[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the imports with which a script begins: each module, and the names that are taken from it.

    They end with the first statement of another kind, and with the first import of what was not tried, or is
    the script's ``own``. What Python itself brings may stand between them, and is left out.

    Raises:
        SyntaxError: this Python does not understand the script; ValueError: it holds a null byte.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # the docstring
        if isinstance(statement, ast.Import):
            modules: list[tuple[str, tuple[str, ...]]] = [(alias.name, ()) for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and statement.level == 0:
            names = (alias.name for alias in statement.names)
            modules = [(statement.module, tuple(name for name in names if name != "*"))]
        else:
            break
        for module, taken in modules:
            root = module.partition(".")[0]
            if root in sys.stdlib_module_names and root not in own:
                continue
            imported = {module, *(f"{module}.{name}" for name in taken)}
            if root not in TRIED or root in own or imported & _NOT_TRIED:
                return tuple(found)
            found.append((module, taken))
    return tuple(found)


def _is_elsewhere_too(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def _is_another(name: str) -> bool:
    """Return whether the module of that name is not the one that the package of that name has installed."""
    try:
        spec = importlib.util.find_spec(name)
        distribution = importlib.metadata.distribution(_DISTRIBUTIONS.get(name, name)) if spec else None
    except (ImportError, ValueError):  # among them that there is no such package
        return True
    if spec is None or distribution is None:
        return False
    places = map(os.path.realpath, spec.submodule_search_locations or ())
    return os.path.realpath(str(distribution.locate_file(name))) not in places
