"""Providers that break one promise each, which their docstrings name, and one that keeps all.

The tests install them as a distribution does: by entry points that name this module.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from support.worlds.broken_machines import breaks
from support.worlds.memorycloud import MemoryProvider, MemorySource

from cloudspot.calls import CheckResults, PreemptResult
from cloudspot.errors import CloudspotError
from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import Inventory
from cloudspot.model import BootProfile, Capability, CheckResult, RegistryLogin

SLOW_SECONDS = 0.5


class Machines(Inventory):
    title = "machines in the memory cloud"

    def assets(self, store_urls):
        return ()

    def end(self, asset):
        raise AssertionError("nothing was listed")


class Sound(MemoryProvider):
    name = "sound"

    def preemption_source(self):
        return MemorySource(None)

    def inventories(self, *, all_regions):
        return (Machines(),)

    def preempt(self, request):
        raise CloudspotError(f"there is no machine {request.instance_id}")


class Broken(Sound):
    def __init_subclass__(cls):
        cls.name = f"broken-{cls.__name__.lower()}"


@breaks("it_is_imported_in_50_ms_and_its_node_needs_no_sdk")
class ImportsSlowly(Broken):
    """a plugin's module takes long to import"""

    @classmethod
    def found(cls):
        began = time.process_time()
        while time.process_time() - began < SLOW_SECONDS:
            pass


@breaks("it_is_imported_in_50_ms_and_its_node_needs_no_sdk")
class ImportsItsSdkOnTheNode(Broken):
    """a machine imports the SDK to hear of its notice"""

    def preemption_source(self):
        import pytest  # noqa: F401 - stands for an SDK

        return super().preemption_source()


@breaks("making_it_and_its_parts_asks_nobody")
class AsksWhenItIsMade(Broken):
    """the provider asks the cloud as soon as it is made"""

    def __init__(self, options):
        super().__init__(options)
        with suppress(OSError), socket.socket() as connection:
            connection.connect(("127.0.0.1", 9))


@breaks("making_it_and_its_parts_asks_nobody")
class HasNoProvisioner(Broken):
    """the provisioner is none"""

    def provisioner(self):
        return self


@breaks(
    "the_boot_profile_can_be_stored_and_its_code_compiles", "its_boot_code_runs_where_nothing_is_installed"
)
class HasTornBootCode(Broken):
    """the page that ends a machine is no Python"""

    def boot_profile(self):
        return BootProfile(end_code="def end(:")


@breaks(
    "the_boot_profile_can_be_stored_and_its_code_compiles", "its_boot_code_runs_where_nothing_is_installed"
)
class CannotFetch(Broken):
    """the page that fetches has no function to call"""

    def boot_profile(self):
        return BootProfile(fetch_code="import urllib.request")


@breaks("its_boot_code_runs_where_nothing_is_installed")
class FetchesByItsSdk(Broken):
    """the page that fetches imports what the image lacks"""

    def boot_profile(self):
        return BootProfile(fetch_code="def fetch(store_url, key, path):\n    import requests\n")


@breaks("its_boot_code_runs_where_nothing_is_installed")
class EndsByItsSdk(Broken):
    """the page that ends a machine imports what the image lacks"""

    def boot_profile(self):
        return BootProfile(end_code="from msgspec import json\n")


@breaks("its_boot_code_runs_where_nothing_is_installed")
class FetchesWithTooLittle(Broken):
    """the page that fetches is not told where to write"""

    def boot_profile(self):
        return BootProfile(fetch_code="def fetch(store_url, key):\n    return b''\n")


@breaks("each_check_is_one_line_and_says_what_to_do")
class ChecksWithoutAdvice(Broken):
    """a check fails and says nothing"""

    def check(self, request):
        return CheckResults(results=(CheckResult(name="credentials", ok=False),))


@breaks("each_check_is_one_line_and_says_what_to_do")
class ChecksInLines(Broken):
    """a check's finding breaks the line"""

    def check(self, request):
        return CheckResults(results=(CheckResult(name="credentials", ok=True, detail="found\nsomewhere"),))


@breaks("the_default_store_can_be_opened")
class HasAStrangeStore(Broken):
    """no plugin opens the default store"""

    def default_store(self):
        return "nothing-opens-this://bucket"


@breaks("no_log_in_is_given_to_a_registry_of_others")
class LogsInAnywhere(Broken):
    """any registry gets the cloud's login"""

    capabilities = frozenset({Capability.PREEMPT, Capability.REGISTRY})

    def registry_login(self, registry):
        return RegistryLogin(user="me", password="hush", origin="these credentials")


@breaks("a_machine_that_is_not_there_cannot_be_reclaimed")
class ReclaimsInSilence(Broken):
    """reclaiming a machine that is not there succeeds"""

    def preempt(self, request):
        return PreemptResult()


@breaks("what_is_declared_is_there_and_nothing_else")
class DeclaresNothing(Broken):
    """it reclaims machines, and does not declare it"""

    capabilities = frozenset()


@breaks("what_is_declared_is_there_and_nothing_else")
class HasNoImageHost(Broken):
    """images are declared, and nothing keeps them"""

    capabilities = frozenset({Capability.PREEMPT, Capability.IMAGES})

    def image_host(self):
        return None


@breaks("what_is_declared_is_there_and_nothing_else")
class DeclaresConsoles(Broken):
    """consoles are declared, and nothing tells them"""

    capabilities = frozenset({Capability.PREEMPT, Capability.CONSOLE})


@breaks("its_inventories_have_titles")
class HasNoInventories(Broken):
    """what it has made can be listed by nobody"""

    def inventories(self, *, all_regions):
        return ()


PROVIDERS = Broken.__subclasses__()


@hookimpl
def cloudspot_provider(name):
    for kind in (Sound, *PROVIDERS):
        if kind.name == name:
            getattr(kind, "found", int)()
            return kind
    return None
