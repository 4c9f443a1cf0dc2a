"""A pytest plugin for tests that boot isolated machines; each test runs in its own namespaces.

Load it with ``-p cloudspot.testing.enclosing`` and mark tests ``@pytest.mark.enclosed``. The function of such
a test runs in a separate process, and no process that it starts outlives it; its fixtures stay outside. On a
host without namespaces, the test is skipped with the reason.
"""

from __future__ import annotations

import functools
import os
import traceback
import warnings

import pytest

from cloudspot.local import enclosure

_why_not = functools.cache(enclosure.why_not)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "enclosed: run the test in its own namespaces; skipped on hosts without namespaces"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a marked test on a host that cannot run it."""
    if item.get_closest_marker("enclosed") is not None:
        reason = _why_not()
        if reason is not None:
            pytest.skip(f"NOT TESTED, no isolated machines on this host: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test enclosed, and report its failure as text."""
    if pyfuncitem.get_closest_marker("enclosed") is None:
        return None
    reader, writer = os.pipe()

    def main() -> int:
        os.close(reader)
        try:
            pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})  # noqa: SLF001 # as pytest's own hook
        except BaseException:  # noqa: BLE001 # failed assertions, pytest.fail: reported outside
            os.write(writer, traceback.format_exc().encode(errors="replace")[-_MAX_REPORT_BYTES:])
            return 1
        return 0

    with warnings.catch_warnings():
        # Python 3.12 and later warn about forking with threads; this child needs no threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        status = enclosure.run_enclosed(main)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8", errors="replace") as report:
        text = report.read()
    if status != 0:
        pytest.fail(text or f"the test's process ended with status {status}", pytrace=False)
    return True


_MAX_REPORT_BYTES = 60_000
"""The maximum size of a report in bytes; a pipe that nobody reads holds 64 KiB."""
