"""A user with a state home of their own, whose machines end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acting_user import User


@pytest.fixture
def user(local_home: Path) -> Iterator[User]:
    """A user whose machines are all ended with the test (by ``local_home``)."""
    someone = User(local_home)
    yield someone
    someone.close()
