"""What tests of several packages share: a home for local machines, and waiting for a condition."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# OpenMP's threads otherwise spin while they wait for each other. With more processes than cores, as here, a test
# that calls a few small operations then uses ten times its own processor time. Results are the same bits.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from cloudspot.host.locks import try_lock
from cloudspot.host.process_marks import marked_processes
from cloudspot.jobstore.access import store_clock
from cloudspot.jobstore.jobs.state_home import HOME
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.options import LocalOptions
from cloudspot.local.processes import MARK, end_machine_processes
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.testing import plaincalls

# The kits' asserts then show what was compared, as those of the tests do.
pytest.register_assert_rewrite(
    *(f"cloudspot.testing.{kit}kit" for kit in ("job", "log", "node", "provider", "provisioner", "store"))
)

pytest_plugins = ["support.processor_time"]

# How long an example takes says how busy the machine is; each test as a whole has its time limit.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")


_IS_FULL = re.compile(r"^pytestmark = (\[\s+)?.*\bpytest\.mark\.full\b", re.MULTILINE)

_M_MMAP_THRESHOLD = -3
"""From glibc's ``malloc.h``."""

_EARLY = 0.6
"""The part of a worker's tests among which its end-to-end tests are spread."""

_forced_exits: list[str] = []
"""What would have ended the tests' own process, where no test has looked at it yet."""


class ForcedExit(BaseException):
    """Raised where code under test would end the process of the tests at once."""


def _guard_process() -> None:
    """Let nothing of cloudspot end the tests by ``os._exit``, which looks like a success if the status is 0.

    A thread that outlives its test may do so, too; so this stays for as long as the process.
    """
    leave, own = os._exit, os.getpid()

    def guarded(status: int) -> None:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if os.getpid() != own or caller.partition(".")[0] != "cloudspot":
            leave(status)
        what = f"{caller} in thread {threading.current_thread().name!r} with status {status}"
        _forced_exits.append(what)
        raise ForcedExit(what)

    os._exit = guarded  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def nobody_knows_a_stores_clock() -> None:
    """Forget the clocks of other tests' stores, which may have the same URL and another time."""
    store_clock._clocks.clear()


@pytest.fixture(autouse=True)
def forced_exits() -> Iterator[list[str]]:
    """What would have ended the tests' process; a test that expects it clears the list."""
    yield _forced_exits
    told = [_forced_exits.pop() for _ in tuple(_forced_exits)]
    assert told == [], "this would have ended the process of the tests"


@pytest.fixture(autouse=True)
def no_thread_of_ours_outlives_its_test() -> Iterator[None]:
    """A thread that goes on works on a directory that is gone, and logs into the tests after its own."""
    before = set(threading.enumerate())
    yield
    left = [one for one in threading.enumerate() if one not in before and _is_ours(one)]
    deadline = time.monotonic() + 5.0
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert [one.name for one in left if one.is_alive()] == []


def _is_ours(thread: threading.Thread) -> bool:
    return str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith("cloudspot")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a thread would have ended it after the last test."""
    if _forced_exits:
        sys.stderr.write(f"this would have ended the process of the tests: {_forced_exits}\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Let no test end the tests, and let the programs that they start hear signals; hide GPUs.

    nohup and shells have some signals ignored in the background. Tests for GPUs run by themselves.
    """
    if not config.option.markexpr.startswith("gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    gc.disable()  # a quarter of the collection's time went into looking for garbage, of which it makes little
    _map_large_buffers()
    _guard_process()
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the modules all of whose tests are marked full where those are not run.

    Such a module says so at its top level, by ``pytestmark``. One that is named on the command line is collected.
    """
    expression = config.option.markexpr
    if "not full" not in expression or " or " in expression or collection_path.suffix != ".py":
        return None
    start = config.invocation_params.dir
    if collection_path in {start / argument.partition("::")[0] for argument in config.args}:
        return None
    return _IS_FULL.search(collection_path.read_text(encoding="utf-8")) is not None or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Name what is missing on this machine once, and not for each test that needs it."""
    report: Any = yield
    if report.skipped and isinstance(report.longrepr, tuple) and "NOT TESTED" in report.longrepr[2]:
        report.longrepr = ("tests", None, report.longrepr[2])
    return report


def _map_large_buffers() -> None:
    """Let glibc give each large buffer back to the system as soon as it is freed.

    Otherwise the first that is freed raises the size from which buffers are mapped one by one, to 32 MiB at most.
    Later ones then lie in the heaps of threads, which keep that memory: 400 MB after the promises of S3's store.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's own
    if mallopt is not None:
        assert mallopt(_M_MMAP_THRESHOLD, 1 << 20) == 1


def pytest_collection_finish() -> None:
    """Look for garbage again, but not in what the collection has made."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # after the choice by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the end-to-end tests, which mostly wait, among the modules of the others, which compute.

    Each of several workers begins with an equal share of the list. It meets its end-to-end tests early in its
    share, so that they wait while the others compute, and nobody waits for them at the end.
    """
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    waiting = [item for item in items if "e2e" in item.path.parts]
    others = [item for item in items if "e2e" not in item.path.parts]
    due: deque[tuple[float, pytest.Item]] = deque()
    for worker in range(num_workers):
        own = waiting[worker::num_workers]
        start, share = worker * len(others) / num_workers, len(others) / num_workers
        due += [(start + _EARLY * share * number / len(own), item) for number, item in enumerate(own)]
    items.clear()
    num_placed = 0
    for _, module in itertools.groupby(others, lambda item: item.path):
        while due and due[0][0] <= num_placed:
            items.append(due.popleft()[1])
        tests = list(module)
        items += tests
        num_placed += len(tests)
    items += (item for _, item in due)


def _wait_until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Return as soon as the condition is true; fail after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not true after {seconds} s"
        time.sleep(0.02)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    """``wait_until(condition, seconds=60)``: poll until the condition is true."""
    return _wait_until


@pytest.fixture
def huge_file(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """``huge_file(end)``: a file of 4 GiB of zeros and this end, where the process may take 512 MiB more."""
    if sys.platform != "linux":
        pytest.skip("only Linux limits the memory of a process")

    def huge_file(end: bytes = b"", path: Path = tmp_path / "huge") -> Path:
        with path.open("wb") as file:
            file.truncate(4 << 30)
            file.seek(0, os.SEEK_END)
            file.write(end)
        return path

    limits = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (512 << 20), limits[1]))
    try:
        yield huge_file
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.fixture
def on_ext4(tmp_path: Path) -> None:
    """Skip the test where its directory is on another file system."""
    told = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=False)
    if told.stdout.strip() != "ext2/ext3":  # and 4
        pytest.skip(f"the tests' directory is on {told.stdout.strip() or told.stderr}, not on ext4")


@pytest.fixture
def local_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state home of the local provider; no machine and no process of one outlives the test."""
    home = tmp_path / "local-home"
    home.mkdir()
    monkeypatch.setenv(HOME, str(home))
    # Whoever runs the tests may have a config file, and with it other stores.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield home
    # The test may have moved the home on.
    monkeypatch.setenv(HOME, str(home))
    provisioner = LocalProvisioner(LocalOptions())
    plaincalls.terminate(provisioner, [instance.id for instance in plaincalls.instances(provisioner)])
    machines = [MachineDirectory(path) for path in (home / "machines").glob("m-*")]

    def all_over() -> bool:
        plaincalls.instances(provisioner)
        for machine in machines:
            with try_lock(machine.lock) as is_free:
                if not is_free or machine.state().state != "ended":
                    return False
        return True

    _wait_until(all_over)
    survivors = [machine for machine in machines if marked_processes(MARK, machine.mark)]
    for machine in survivors:
        end_machine_processes(machine.mark)
    assert [machine.id for machine in survivors] == [], "processes outlived their machine"
    left = [path for machine in machines for path in machine.disk if path.exists()]
    assert left == [], "a machine's disk or memory outlived it"
