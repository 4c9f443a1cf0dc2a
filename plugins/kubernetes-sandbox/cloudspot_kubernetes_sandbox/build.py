"""Finds the control plane's programs; ``python -m`` with this module's name builds them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from cloudspot.errors import PluginError

PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
COMMAND: Final = "python -m cloudspot_kubernetes_sandbox.build"


def home() -> Path:
    """Return ``cloudspot/kubernetes`` in the user's cache directory; it may not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "cloudspot" / "kubernetes"


def binaries() -> Path:
    """Return the directory with the programs.

    Raises:
        PluginError: a program is missing; the message says how to build it.
    """
    directory = home() / "bin"
    missing = [name for name in PROGRAMS if not os.access(directory / name, os.X_OK)]
    if missing:
        raise PluginError(
            f"the control plane is not built: {directory} lacks {', '.join(missing)}; run as root on Debian "
            f"12 (it took two cores seven minutes): {COMMAND}"
        )
    return directory


def main() -> int:
    """Build the programs that are missing, and return the exit status."""
    with suppress(PluginError):
        sys.stdout.write(f"the control plane is built: {binaries()}\n")
        return 0
    script = Path(__file__).with_name("build.sh")
    return subprocess.run(["bash", str(script), str(home())], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
