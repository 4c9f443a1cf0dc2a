"""This user's state home, which holds the notes of jobs and the machines of the provider ``local``."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cloudspot.errors import SpecError
from cloudspot.host.partial_files import write_whole

HOME = "CLOUDSPOT_LOCAL_HOME"
"""The environment variable that sets another state home."""


def state_home() -> Path:
    """Return the state home, which serves the provider ``local`` as its account and region.

    The path is ``CLOUDSPOT_LOCAL_HOME`` or, by default, ``cloudspot`` under ``XDG_STATE_HOME`` or
    ``~/.local/state``. The directory may not exist yet.

    Raises:
        SpecError: the variable holds a relative path, or it is unset and the user has no home directory.
    """
    named = os.environ.get(HOME)
    if named:
        if not Path(named).is_absolute():
            raise SpecError(f"{HOME} must be an absolute path: got {named!r}")
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG base directory specification requires that relative paths be ignored.
    if Path(state).is_absolute():
        return Path(state) / "cloudspot"
    try:
        return Path.home() / ".local" / "state" / "cloudspot"
    except RuntimeError:
        raise SpecError(f"this user has no home directory; set {HOME} to an absolute path") from None


def account() -> str:
    """Return the random name of this state home, chosen at its first use; the caller holds its lock.

    Machine ids contain this name, because another home may serve the same job with the same token, and the
    job distinguishes its machines by their ids.
    """
    path = state_home() / "account"
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        write_whole(path, secrets.token_hex(8).encode("ascii"), mode=0o600)
        return path.read_text(encoding="ascii")
