"""Find the experiment trackers that a script imports, to suggest them for ``run.trackers``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LOGGERS = ("lightning.pytorch.loggers", "pytorch_lightning.loggers")
_MODULES = {
    "mlflow": ("mlflow", *(f"{package}.MLFlowLogger" for package in _LOGGERS)),
    "tensorboard": (
        *("torch.utils.tensorboard", "tensorboardX"),
        *(f"{package}.TensorBoardLogger" for package in _LOGGERS),
    ),
    "wandb": ("wandb", *(f"{package}.WandbLogger" for package in _LOGGERS)),
}
"""The names whose import means that a script logs to the tracker."""


def imported_trackers(scripts: Iterable[Path]) -> tuple[str, ...]:
    """Return the names of the trackers that any of the scripts imports, sorted; no code is run."""
    imported = {name for script in scripts for name in _imports(script)}
    return tuple(
        tracker
        for tracker, modules in _MODULES.items()
        if any(name == module or name.startswith(f"{module}.") for name in imported for module in modules)
    )


def _imports(script: Path) -> set[str]:
    """Return the dotted names that a script imports anywhere, both whole modules and objects in modules."""
    found: set[str] = set()
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(script.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found
