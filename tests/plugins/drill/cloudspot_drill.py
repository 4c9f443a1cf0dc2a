"""A third party's plugin: the local provider on a store that fails by a plan; used by the tests.

``drill:///path/store`` is a directory like ``file:///path/store``. The faults are those of
``/path/plan.json`` (``faultstore.FaultPlan``), for every process that opens it. Where there is a directory
``/path/meter``, each process leaves there what it has asked for (``meteredstore``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import msgspec
from support.stores.faultstore import FaultPlan, FaultyStore, load_plan
from support.stores.meteredstore import MeteredStore

from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.local.filestore import FileStore
from cloudspot.local.provider import LocalProvider
from cloudspot.model import BootProfile

cloudspot_api_version = 2

SCHEME = "drill://"


class DrillProvider(LocalProvider):
    """The local provider whose nodes know this plugin, too."""

    name: ClassVar[str] = "drill"

    def boot_profile(self) -> BootProfile:
        """Return the local profile with this plugin and the store that fails on the path."""
        profile = super().boot_profile()
        ours = [str(directory) for directory in (Path(__file__).parent, Path(__file__).parents[2])]
        path = os.pathsep.join(filter(None, [*ours, profile.environment.get("PYTHONPATH")]))
        return msgspec.structs.replace(profile, environment={**profile.environment, "PYTHONPATH": path})


@hookimpl
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the drill provider."""
    return DrillProvider if name == "drill" else None


@hookimpl
def cloudspot_object_store(url: str) -> ObjectStore | None:
    """Open a directory that fails by its plan."""
    if not url.startswith(SCHEME):
        return None
    path = Path(url[len(SCHEME) :])
    plan_path = path.parent / "plan.json"
    plan = load_plan(plan_path) if plan_path.exists() else FaultPlan()
    store = FaultyStore(FileStore(f"file://{path}"), plan, path.parent / "fired")
    store.url = url
    meter = path.parent / "meter"
    return MeteredStore(store, meter) if meter.is_dir() else store
