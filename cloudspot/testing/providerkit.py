"""The promises of a provider's class as tests, which a plugin's author subclasses.

::

    from cloudspot.testing.providerkit import ProviderTests

    class TestMyProvider(ProviderTests):
        name = "mycloud"
        options = {"region": "north"}

The plugin must be installed: the kit finds it as ``cloudspot run --provider mycloud`` does.
"""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from cloudspot import registry
from cloudspot.errors import CloudspotError, PluginFault
from cloudspot.interfaces import (
    CAPABILITY_METHODS,
    AccountSetup,
    FunctionHost,
    ImageHost,
    Provider,
    Provisioner,
)
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.model import BootProfile, Capability
from cloudspot.testing import plaincalls
from cloudspot.testing.kit import Kit, no_network

NUM_IMPORTS = 5
MOST_IMPORT_SECONDS = 0.05
"""The maximum processor time of the import, not counting the standard library's modules for HTTP, processes
and logging."""
_IMPORT = """
import concurrent.futures, json, logging, ssl, subprocess, sys, time, urllib.request, zipfile
from cloudspot import registry
from cloudspot.jobfile.spec import spec_from_json
name, spec = sys.argv[1], spec_from_json(json.loads(sys.argv[2]))
known = set(sys.modules)
began = time.process_time()
kind = registry.provider_class(name)
seconds = time.process_time() - began
registry.open_provider(name, spec).preemption_source()
ours = {"cloudspot", kind.__module__.partition(".")[0], *json.loads(sys.argv[3])}
loaded = {one.partition(".")[0] for one in set(sys.modules) - known}
print(json.dumps([seconds, sorted(loaded - ours - sys.stdlib_module_names)]))
"""


class ProviderTests(Kit):
    """A test for each promise of Provider that needs no machine."""

    name: ClassVar[str]
    """The name of the entry point."""
    options: ClassVar[Mapping[str, Any]] = {}
    """The table ``[providers.NAME]`` of a job file that works with a new account."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Other top-level packages that belong to the plugin."""

    @pytest.fixture
    def provider(self) -> Provider:
        """Return a provider with ``options``; override it if an emulated account needs more."""
        return self._open()

    def test_it_is_found_by_its_name(self) -> None:
        kind = registry.provider_class(self.name)
        assert kind.name == self.name
        assert issubclass(kind.options_type, msgspec.Struct)

    def test_it_is_imported_in_50_ms_and_its_node_needs_no_sdk(self) -> None:
        words = [json.dumps(self._job()), json.dumps(self.packages)]
        quickest = math.inf
        for _ in range(NUM_IMPORTS):
            done = subprocess.run(
                [sys.executable, "-c", _IMPORT, self.name, *words],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            seconds, others = json.loads(done.stdout)
            assert others == [], "imported before it is needed"
            quickest = min(quickest, seconds)
            if quickest <= MOST_IMPORT_SECONDS:
                break
        assert quickest <= MOST_IMPORT_SECONDS

    def test_making_it_and_its_parts_asks_nobody(self) -> None:
        with no_network():
            provider = self._open()
            assert isinstance(provider.provisioner(), Provisioner)
            assert isinstance(provider.boot_profile(), BootProfile)

    def test_the_boot_profile_can_be_stored_and_its_code_compiles(self, provider: Provider) -> None:
        profile = provider.boot_profile()
        assert json.loads(json.dumps(dict(profile.environment))) == profile.environment
        assert profile.shutdown_command
        compile(profile.end_code, "end_code", "exec")
        compile(profile.fetch_code, "fetch_code", "exec")
        assert not profile.fetch_code or "def fetch(" in profile.fetch_code

    def test_its_boot_code_runs_where_nothing_is_installed(self, provider: Provider) -> None:
        profile = provider.boot_profile()
        for name in ("end_code", "fetch_code"):
            imported = _imported_by(getattr(profile, name))
            assert imported <= sys.stdlib_module_names, f"{name} imports what an image may lack"
        if profile.fetch_code:
            # The boot script stores the code in its own file, and calls the function with three arguments.
            program = f"{profile.fetch_code}\n\nimport inspect\ninspect.signature(fetch).bind('', '', '')\n"
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr

    def test_each_check_is_one_line_and_says_what_to_do(self, provider: Provider) -> None:
        for result in plaincalls.check(provider):
            assert result.name
            assert "\n" not in result.name + result.detail + result.remedy
            assert result.ok or result.remedy or result.detail, f"{result.name}: what is to be done?"

    def test_the_default_store_can_be_opened(self, provider: Provider) -> None:
        url = provider.default_store()
        if url is not None:
            registry.open_store(url)

    def test_no_log_in_is_given_to_a_registry_of_others(self, provider: Provider) -> None:
        for host in ("registry.example.com", "registry-1.docker.io", "localhost:5000"):
            assert provider.registry_login(host) is None

    def test_a_machine_that_is_not_there_cannot_be_reclaimed(self, provider: Provider) -> None:
        if Capability.PREEMPT in provider.capabilities:
            with pytest.raises(CloudspotError) as caught:
                plaincalls.preempt(provider, "kit-none")
            assert not isinstance(caught.value.__cause__, PluginFault), caught.value

    def test_what_is_declared_is_there_and_nothing_else(self, provider: Provider) -> None:
        kinds: dict[Capability, type] = {
            Capability.IMAGES: ImageHost,
            Capability.FUNCTIONS: FunctionHost,
            Capability.SETUP: AccountSetup,
        }
        methods = {one: getattr(type(provider), name) for one, name in CAPABILITY_METHODS.items()}
        provisioner = provider.provisioner()
        if isinstance(provisioner, Provisioner):
            methods[Capability.CONSOLE] = type(provisioner).console
        for capability, method in methods.items():
            if capability not in provider.capabilities:
                # A method inherited from the interface or from ``cloudspot.plugin`` is not the plugin's own.
                is_own = not method.__module__.startswith(("cloudspot.interfaces", "cloudspot.plugin."))
                assert not is_own, f"{method.__qualname__} exists: declare {capability.value!r}"
                with pytest.raises(CloudspotError):
                    provider.require(capability)
            elif capability in kinds:
                assert isinstance(method(provider), kinds[capability]), capability.value
            else:
                assert method.__module__ != "cloudspot.interfaces", f"{capability.value!r} has no method"

    def test_its_inventories_have_titles(self, provider: Provider) -> None:
        inventories = provider.inventories(all_regions=False)
        assert inventories
        assert all(one.title for one in inventories)

    def _job(self) -> dict[str, Any]:
        options = dict(self.options)
        return {"name": "kit", "run": {"entrypoint": "train.py"}, "providers": {self.name: options}}

    def _open(self) -> Provider:
        return registry.open_provider(self.name, spec_from_json(self._job()))


def _imported_by(code: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").partition(".")[0])
    return found
