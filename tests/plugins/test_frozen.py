"""A plugin of version 2 of the interfaces, which nobody edits any more, works with this cloudspot."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType

import pytest

from cloudspot import registry
from cloudspot.testing.providerkit import ProviderTests
from cloudspot.testing.storekit import ObjectStoreTests

FROZEN = str(Path(__file__).parent / "frozen")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """On the path of this process and of those that the kits start."""
    monkeypatch.syspath_prepend(FROZEN)
    path = os.pathsep.join(filter(None, (FROZEN, os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)


class TestFrozenProvider(ProviderTests):
    name = "frozen"
    options = MappingProxyType({"region": "north"})


@pytest.mark.full
class TestFrozenStore(ObjectStoreTests):
    can_presign = False

    @pytest.fixture
    def store(self, tmp_path):
        return registry.open_store(f"frozen://{tmp_path}/store.sqlite")
