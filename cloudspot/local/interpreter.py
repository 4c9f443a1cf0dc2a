"""How a machine's clean environment finds the cloudspot that submits."""

from __future__ import annotations

import os
import site
from pathlib import Path

import cloudspot


def node_python_path() -> str | None:
    """Return the PYTHONPATH with which this interpreter finds this very cloudspot in a clean environment.

    None if it is installed for the interpreter, as usual.
    """
    from importlib import metadata  # slow to import, and only needed to boot a machine

    home = str(Path(cloudspot.__file__).resolve().parent.parent)
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if home in {str(Path(entry).resolve()) for entry in named if entry}:
        return home
    try:
        where = str(metadata.distribution("cloudspot").locate_file(""))
    except metadata.PackageNotFoundError:
        return home
    if site.ENABLE_USER_SITE and Path(where).resolve() == Path(site.getusersitepackages()).resolve():
        # A machine has a HOME of its own, and so another user site than the one where torch lies too.
        return where
    return None
