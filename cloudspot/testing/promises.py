"""A pytest plugin that runs only the kits' tests, and reports which promises were kept.

``cloudspot plugin check`` loads it with ``-p cloudspot.testing.promises``.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from cloudspot.model import Capability
from cloudspot.registry import provider_class
from cloudspot.testing.imagekit import ImageHostTests
from cloudspot.testing.jobkit import WholeJobTests
from cloudspot.testing.kit import promise_of, promises_of
from cloudspot.testing.logfaultkit import LogFaultTests
from cloudspot.testing.logkit import LogSinkTests
from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests
from cloudspot.testing.offerkit import OfferTests
from cloudspot.testing.providerkit import ProviderTests
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot.testing.purchasekit import PurchaseTests
from cloudspot.testing.storefaultkit import StoreFaultTests
from cloudspot.testing.storekit import ObjectStoreTests

KITS: tuple[type[Any], ...] = (
    ObjectStoreTests,
    StoreFaultTests,
    LogSinkTests,
    LogFaultTests,
    ProvisionerTests,
    PurchaseTests,
    OfferTests,
    ImageHostTests,
    PreemptionSourceTests,
    NodeIdentityTests,
    ProviderTests,
    WholeJobTests,
)
_ONLY_FOR = {
    "LogSinkTests": Capability.LOGS,
    "LogFaultTests": Capability.LOGS,
    "ImageHostTests": Capability.IMAGES,
}
"""The kits that need a capability, which not every provider has."""
ENDED_EARLY = "the run ended here: it was interrupted, or this test ended the process, as a time limit may"
_PROPERTY = "cloudspot_promise"
_LISTS = ("passed", "skipped", "deviations", "failures")
"""The outcomes of a promise, the most serious last; if a promise has several tests, the most serious one
counts."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("cloudspot")
    group.addoption("--promises-of", metavar="NAME", help="the plugin whose kits are run, and no other tests")
    group.addoption("--promises-to", metavar="FILE", help="the file for the report, as JSON")
    group.addoption("--promises-kit", metavar="KIT", action="append", help="run only this kit; repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Start a report."""
    names = [kit.__name__ for kit in KITS]
    chosen = config.option.promises_kit or names
    if unknown := [name for name in chosen if name not in names]:
        raise pytest.UsageError(f"--kit: there is no kit {unknown[0]}; the kits are {', '.join(names)}")
    config.pluginmanager.register(
        _Reporter(
            config.option.promises_of,
            Path(config.option.promises_to),
            kits=tuple(kit for kit in KITS if kit.__name__ in chosen),
            is_worker=hasattr(config, "workerinput"),
        )
    )


class _Reporter:
    """Collects the outcome of each promise, even if the tests run in several processes.

    It writes the report before each test, so that no earlier outcome is lost if a test ends the process.
    """

    def __init__(self, name: str, path: Path, *, kits: tuple[type[Any], ...], is_worker: bool) -> None:
        self._name, self._path, self._kits, self._is_worker = name, path, kits, is_worker
        self._running = ""
        self._found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
        """The outcome and its reason, by class and kit, then by promise."""
        self._errors: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect all tests that do not belong to a kit, and mark the others for their reports."""
        others = []
        for item in items:
            kit = _kit_of(item, self._name)
            if kit not in self._kits:
                others.append(item)
            else:
                assert kit is not None
                assert isinstance(item, pytest.Function)
                words = [item.nodeid.partition("[")[0].rpartition("::")[0], kit.__name__, promise_of(item)]
                item.user_properties.append((_PROPERTY, words))
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors[report.nodeid or "collection"] = _last_line(report)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running = nodeid
        self._write(is_over=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        place, kit, promise = _marked(report)
        reason = ""
        if report.failed:
            outcome, reason = "failures", _last_line(report)
        elif hasattr(report, "wasxfail"):
            outcome, reason = "deviations", report.wasxfail.removeprefix("reason: ")
        elif report.skipped:
            outcome, reason = "skipped", _last_line(report)
        else:
            outcome = "passed"
        known = self._found.setdefault((place, kit), {})
        known[promise] = max(known.get(promise, (outcome, reason)), (outcome, reason), key=_gravity)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        # An error during collection interrupts the run too.
        self._write(is_over=exitstatus != pytest.ExitCode.INTERRUPTED or bool(self._errors))

    def _write(self, *, is_over: bool) -> None:
        if self._is_worker:
            return
        errors = {} if is_over else {self._running or "collection": ENDED_EARLY}
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self._report({**self._errors, **errors})), encoding="utf-8")
        draft.replace(self._path)

    def _report(self, errors: dict[str, str]) -> dict[str, Any]:
        tested = {kit for _, kit in self._found}
        able = provider_class(self._name).capabilities
        names = [kit.__name__ for kit in self._kits]
        rows = sorted(self._found.items(), key=lambda item: (names.index(item[0][1]), item[0][0]))
        return {
            "kits": [_row(place, kit, outcomes) for (place, kit), outcomes in rows],
            "capabilities": sorted(one.value for one in able),
            "not_tested": [
                name for name in names if name not in tested and _ONLY_FOR.get(name) in {None, *able}
            ],
            "errors": errors,
        }


def _row(place: str, kit: str, outcomes: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Return the report of one kit in one class; each promise is in one of its lists."""
    (promises,) = (promises_of(one) for one in KITS if one.__name__ == kit)
    lists: dict[str, Any] = {
        name: {
            promise: outcomes[promise][1] for promise in promises if outcomes.get(promise, ("",))[0] == name
        }
        for name in _LISTS
    }
    not_run = [promise for promise in promises if promise not in outcomes]
    return {"kit": kit, "class": place, **lists, "passed": len(lists["passed"]), "not_run": not_run}


def _kit_of(item: pytest.Item, name: str) -> type[Any] | None:
    """Return the kit of an unchanged test if it tests the plugin of that name, else None."""
    class_ = getattr(item, "cls", None)
    if class_ is None:
        return None
    for kit in KITS:
        if issubclass(class_, kit):
            if kit is ProviderTests and getattr(class_, "name", None) != name:
                continue
            if inspect.unwrap(item.function) is vars(kit).get(getattr(item, "originalname", "")):  # type: ignore[attr-defined]
                return kit
    return None


def _marked(report: pytest.TestReport) -> list[str]:
    (words,) = (value for name, value in report.user_properties if name == _PROPERTY)
    assert isinstance(words, list)
    return words


def _gravity(outcome: tuple[str, str]) -> int:
    return _LISTS.index(outcome[0])


def _last_line(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return in one line why a test did not pass."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(getattr(crash, "message", None) or report.longrepr or "no reason").strip().splitlines()
    return lines[0] if crash is not None else lines[-1]
