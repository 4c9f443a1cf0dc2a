"""A pytest plugin that holds the quick tests to their share of processor time, with ``--processor-time``.

A test without the mark ``costly`` or ``full`` may use ``MOST_SECONDS``, and those marked ``costly`` may use
``COSTLY_SECONDS`` together. A test's time is that of its fixtures, its own and that of every process it has
started, without the imports of modules in pytest's own process. So that a slow or busy machine does not
count, it is given in seconds of a machine that does ``_work`` in ``WORK_SECONDS``.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

MOST_SECONDS = 1.5
"""A test is marked ``full`` above a tenth of a second, as a rule. This leaves room for the first that needs a server,
and for noise."""
COSTLY_SECONDS = 220.0
"""On a busy machine they have used 200, on a quiet one less."""
WORK_SECONDS = 0.0125
"""As measured on two quiet cores of an Intel Xeon at 2.1 GHz."""

_PROPERTY = "processor_seconds"
_TESTS_PER_CALIBRATION = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that turns the plugin on."""
    parser.addoption(
        "--processor-time",
        type=Path,
        metavar="FILE",
        help="write each test's processor time to FILE, and fail if the quick tests use more than they may",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure in each process that runs tests, and judge in the one that reports."""
    if (path := config.option.processor_time) is None:
        return
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Judge(path), "processor-time-judge")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Meter(), "processor-time-meter")


class _Meter:
    """Notes at each test what it has used."""

    def __init__(self) -> None:
        self._used = _group_meter() or _rusage
        self._imports = _ImportMeter()
        self._works: deque[float] = deque(maxlen=5)
        self._num_tests = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self._num_tests % _TESTS_PER_CALIBRATION == 0:
            self._works += [_work() for _ in range(1 if self._works else 3)]
        self._num_tests += 1
        self._start = self._used() - self._imports.seconds
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if call.when == "teardown":
            seconds = self._used() - self._imports.seconds - self._start
            seconds *= WORK_SECONDS / statistics.median(self._works)
            report.user_properties.append((_PROPERTY, seconds))
        return report


class _Judge:
    """Collects what the tests have used, and fails the run if it was too much."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}
        self._marks: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, seconds in report.user_properties:
            if name == _PROPERTY and isinstance(seconds, float):
                self._seconds[report.nodeid] = seconds
                marks = [mark for mark in ("full", "costly") if mark in report.keywords]
                self._marks[report.nodeid] = next(iter(marks), "")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        with self._path.open("w", encoding="utf-8") as file:
            for test, seconds in sorted(self._seconds.items(), key=lambda item: -item[1]):
                file.write(json.dumps([round(seconds, 3), self._marks[test], test]) + "\n")
        if self.faults():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("processor time")
        for mark in ("", "costly", "full"):
            tests = [test for test in self._seconds if self._marks[test] == mark]
            total = sum(self._seconds[test] for test in tests)
            terminalreporter.line(f"{mark or 'quick'}: {len(tests)} tests, {total:.0f} s")
        for fault in self.faults():
            terminalreporter.line(fault, red=True)

    def faults(self) -> list[str]:
        """Return what uses more than it may."""
        found = [
            f"{test} uses {seconds:.2f} s: make it cheaper, or mark it costly or full"
            for test, seconds in self._seconds.items()
            if not self._marks[test] and seconds > MOST_SECONDS
        ]
        costly = sum(self._seconds[test] for test, mark in self._marks.items() if mark == "costly")
        if costly > COSTLY_SECONDS:
            found.append(f"tests marked costly use {costly:.0f} s, and may use {COSTLY_SECONDS:.0f}")
        return found


class _ImportMeter:
    """The processor time that imports have taken in this thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_importing = False
        self._import = builtins.__import__
        builtins.__import__ = self._timed

    def _timed(self, *args: Any, **options: Any) -> Any:
        if self._is_importing:
            return self._import(*args, **options)
        self._is_importing = True
        start = time.thread_time()
        try:
            return self._import(*args, **options)
        finally:
            self.seconds += time.thread_time() - start
            self._is_importing = False


def _work() -> float:
    """Do a fixed piece of work; return the processor time that it took, in seconds."""
    start = time.thread_time()
    digest, words = b"", {}
    for number in range(10_000):
        words[str(number)] = number
        digest = hashlib.sha256(digest + b"cloudspot").digest()
    json.loads(json.dumps(words))
    return time.thread_time() - start


def _rusage() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def _group_meter() -> Callable[[], float] | None:
    """Move this process to a control group of its own; return the meter of the group.

    It counts processes that have lost their parent, too. None: such a group cannot be made here.
    """
    for root, file, parse in (
        ("/sys/fs/cgroup/cpuacct", "cpuacct.usage", lambda text: int(text) / 1e9),
        ("/sys/fs/cgroup", "cpu.stat", lambda text: int(text.split()[1]) / 1e6),
    ):
        with suppress(OSError):
            group = Path(root) / f"cloudspot-tests-{os.getpid()}"
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
            usage = group / file
            usage.read_text()
            return lambda usage=usage, parse=parse: parse(usage.read_text())
    return None
