"""Build the environment of setup and training, including the training's ``python`` and ``pip``."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from cloudspot.agent.node import Node
from cloudspot.host.partial_files import write_whole

PROGRAMS = {"python": "", "python3": "", "pip": " -m pip", "pip3": " -m pip"}
"""The names under which the training's interpreter can be run, each with the interpreter's options."""


def with_interpreter(environment: Mapping[str, str], python: str, node: Node) -> dict[str, str]:
    """Return the environment with the interpreter's programs first on PATH.

    ``python`` is an absolute path, a path relative to the working directory, or a name to look up on PATH. If
    the setup installs the interpreter, it is used as soon as it exists, even during the setup. Wrappers give
    it the usual names, because Debian has ``python3`` but no ``python``, and the directory of ``python3.12``
    may contain another version's ``pip``.
    """
    path = environment.get("PATH", os.defpath)
    found = str(node.work / python) if "/" in python else shutil.which(python, path=path)
    if found is None:
        return dict(environment)
    first = [str(Path(found).parent), path]
    if os.access(found, os.X_OK):
        node.programs.mkdir(exist_ok=True)
        for name, options in PROGRAMS.items():
            script = f'#!/bin/sh\nexec {shlex.quote(found)}{options} "$@"\n'
            write_whole(node.programs / name, script.encode(), mode=0o755)
        first.insert(0, str(node.programs))
    return {**environment, "PATH": os.pathsep.join(first)}
