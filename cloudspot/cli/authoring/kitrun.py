"""Run the kits in a plugin's tests with pytest, and report the versions that were used."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cloudspot
from cloudspot import registry
from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError

_RUN = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]  # the installed plugin is meant, not one that lies in the current directory
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
_STANDARD_ERROR = 2


def report_on(name: str, tests: Path, kits: Sequence[str] = ()) -> Mapping[str, Any]:
    """Run the kits that the tests apply to the plugin, and return the report as JSON values.

    ``kits`` names the kits to run; if it is empty, all of them run.

    pytest's own output goes to standard error. If a run ends early, for example because of Ctrl-C or a test
    that ends the process, its report covers everything up to that point.

    Raises:
        PluginError: the plugin is not installed, or is broken.
        CloudspotError: pytest is not installed, or ended without a report.
    """
    distribution, version = registry.distribution_of(name)
    missing = [one for one in ("pytest", "pytest-timeout") if find_spec(one.replace("-", "_")) is None]
    if missing:
        raise CloudspotError(f"the kits need {' and '.join(missing)}; run: pip install {' '.join(missing)}")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "report.json"
        arguments = ["-q", "-p", "cloudspot.testing.promises", str(tests)]
        options = [f"--promises-of={name}", f"--promises-to={path}"]
        options += [f"--promises-kit={kit}" for kit in kits]
        command = [sys.executable, "-c", _RUN, *arguments, *options]
        with subprocess.Popen(command, stdout=_STANDARD_ERROR) as process:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                status = process.wait()  # pytest was interrupted too, and writes a partial report.
        if not path.exists():
            raise CloudspotError(f"pytest ended with status {status} and no report; see its output above")
        result = decode(path.read_bytes(), dict[str, Any])
    is_broken = any(kit["failures"] or kit["not_run"] for kit in result["kits"])
    is_kept = bool(result["kits"]) and not result["errors"] and not is_broken
    return {
        "plugin": name,
        "ok": is_kept,
        "versions": {
            "cloudspot": cloudspot.__version__,
            "python": platform.python_version(),
            distribution: version,
            **_dependencies(distribution),
        },
        **result,
    }


def _dependencies(distribution: str) -> dict[str, str]:
    """Return the installed versions of the plugin's requirements, such as its SDK."""
    if distribution == "cloudspot":
        return {}
    lines = [line for line in metadata.requires(distribution) or () if "extra ==" not in line]
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in lines} - {"cloudspot"}
    installed = {}
    for name in sorted(names):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
    return installed
