"""A network of a test's own, in which the address of a node can be cut off; Linux and root only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.jobs.acting_user import wait_for

NUM_NODES = 2


class Network:
    """A network namespace with loopback alone, in which each node has an interface name for gloo.

    Local machines share the host's name, and gloo would use its one address for all of them.
    """

    def __init__(self, pid: int) -> None:
        self.prefix = ("nsenter", f"--target={pid}", "--net", "--mount")
        """What runs a command in this network."""
        # torch asks for the names of addresses, and a resolver that nothing leads to is waited for.
        self._run("mount", "--bind", "/dev/null", "/etc/resolv.conf")
        self._run("ip", "link", "set", "lo", "up")
        # The rule that comes first and cannot be preceded.
        self._run("ip", "rule", "add", "preference", "100", "lookup", "local")
        self._run("ip", "rule", "delete", "preference", "0")
        for rank in range(NUM_NODES):
            self._run("ip", "address", "add", f"{self.address(rank)}/32", "dev", "lo", "label", f"lo:n{rank}")

    interface = "lo:n{rank}"

    def address(self, rank: int) -> str:
        """Return the address that gloo uses on a node."""
        return f"127.77.0.{rank + 1}"

    def cut(self, address: str, *, but_port: int | None = None) -> None:
        """From now on lose every packet to an address, also of connections that stand.

        ``but_port`` is spared: what a machine reaches without the network between machines.
        """
        if but_port is not None:
            self._rule("add", "10", address, "ipproto", "tcp", "dport", str(but_port), "lookup", "local")
        self._rule("add", "20", address, "blackhole")

    def mend(self, address: str) -> None:
        """Let packets pass again."""
        self._rule("delete", "20", address)

    def _rule(self, verb: str, preference: str, address: str, *rest: str) -> None:
        self._run("ip", "rule", verb, "preference", preference, "to", address, *rest)

    def _run(self, *command: str) -> None:
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@contextmanager
def own_network() -> Iterator[Network]:
    """Make a network that ends with the block, or skip the test and say why."""
    tools = ("unshare", "nsenter", "ip")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if sys.platform != "linux" or os.geteuid() != 0 or missing:
        pytest.skip(f"a network is only cut on Linux, by root, with {', '.join(tools)}")
    holder = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "infinity"], stderr=subprocess.DEVNULL)
    try:
        own, its = Path("/proc/self/ns/mnt").readlink(), Path(f"/proc/{holder.pid}/ns/mnt")
        wait_for("the network", lambda: holder.poll() is not None or its.readlink() != own)
        if holder.poll() is not None:
            pytest.skip("no network namespace may be made here")
        yield Network(holder.pid)
    finally:
        holder.kill()
        holder.wait()
