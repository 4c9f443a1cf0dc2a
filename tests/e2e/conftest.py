"""A user with a state home of their own, whose machines end with the test."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.acting_user import User

from cloudspot.host.locks import lock


@pytest.fixture
def user(local_home: Path) -> Iterator[User]:
    """A user whose machines are all ended with the test (by ``local_home``)."""
    someone = User(local_home)
    yield someone
    someone.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], dict[str, Any]]:
    """``undisturbed(sets)``: what ``show`` tells of the tiny job with these overrides when nothing disturbs it.

    It is run once for the same overrides, whichever of a run's workers asks first.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def run(sets: tuple[str, ...]) -> dict[str, Any]:
        name = hashlib.sha256(json.dumps(sets).encode()).hexdigest()[:16]
        found = shared / f"undisturbed-{name}.json"
        with lock(shared / f"undisturbed-{name}.lock"):
            if not found.exists():
                user = User(shared / f"undisturbed-{name}-home")
                user.environ["XDG_CONFIG_HOME"] = str(shared / "no-config")
                user.run_tiny("calm", sets=sets, timeout=900)  # for the soak under load
                shown = user.show("calm")
                user.close()
                assert len(shown["launches"]) == 1
                found.write_text(json.dumps(shown))
            return json.loads(found.read_text())

    return run
