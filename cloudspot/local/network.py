"""The network of isolated machines: a bridge on the host, and a virtual cable (veth) to each machine."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
from collections.abc import Sequence

from cloudspot.errors import CloudspotError
from cloudspot.local import namespaces

_BRIDGE_PREFIX = "csbr-"


def make_bridge(address: str, prefix_length: int) -> None:
    """Create the bridge in this process's network namespace, with the host's own address.

    Raises:
        CloudspotError: a bridge for this network already exists.
    """
    bridge = _bridge_of(address, prefix_length)
    if bridge in _interfaces():
        network = ipaddress.IPv4Interface(f"{address}/{prefix_length}").network
        raise CloudspotError(f"another emulated cloud on this host already uses the network {network}")
    # The bridge's hardware address is fixed. Otherwise it follows the lowest address of its ports, and open
    # connections stall for a minute whenever a machine joins or leaves.
    ip("link", "add", bridge, "address", "02:77:00:00:00:01", "type", "bridge")
    ip("address", "add", f"{address}/{prefix_length}", "dev", bridge)
    ip("link", "set", bridge, "up")


def has_bridge() -> bool:
    """Return whether this process's network namespace belongs to a host of isolated machines."""
    return any(name.startswith(_BRIDGE_PREFIX) for name in _interfaces())


def _interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def _bridge_of(address: str, prefix_length: int) -> str:
    network = ipaddress.IPv4Interface(f"{address}/{prefix_length}").network
    return f"{_BRIDGE_PREFIX}{int(network.network_address):08x}"


class MachineNetwork:
    """The network namespace of one machine, with its cable to the bridge.

    The namespace ends with this process.
    """

    def __init__(self, address: str, prefix_length: int, service_addresses: Sequence[str]) -> None:
        """Create the namespace, without processes; its loopback has the metadata service's addresses."""
        self.descriptor = namespaces.new_network()
        number = int(ipaddress.IPv4Address(address))
        self._cable = f"cs{number:08x}"
        # The hardware address is derived from the IP address, so that a machine that reuses the IP address is
        # reachable at once.
        hardware = ":".join(f"{byte:02x}" for byte in (2, 0x78, *number.to_bytes(4, "big")))
        # The cable's host end is up before the machine gets its own end, so that the first packets are not
        # lost.
        inside = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", inside)
        ip("link", "set", self._cable, "master", _bridge_of(address, prefix_length), "up")

        def set_up_inside() -> None:
            ip("link", "set", "lo", "up")
            for one in service_addresses:
                ip("address", "add", f"{one}/32", "dev", "lo")
            ip("link", "set", "eth0", "address", hardware)
            ip("address", "add", f"{address}/{prefix_length}", "dev", "eth0")
            ip("link", "set", "eth0", "up")

        namespaces.in_network(self.descriptor, set_up_inside)

    def cut(self) -> None:
        """Cut the cable: no packets leave the machine any more, not even those that close its connections."""
        ip("link", "set", self._cable, "down")

    def close(self) -> None:
        """Remove the cable; the namespace ends with its last process and socket."""
        ip("link", "delete", self._cable)
        os.close(self.descriptor)


def system_path() -> str:
    """Return PATH extended with the directories of system programs, which a user's PATH may lack."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def ip(*arguments: str) -> None:
    """Run the program ``ip`` in the calling thread's network namespace.

    Raises:
        CloudspotError: the program failed.
    """
    environment = {"PATH": system_path(), "LANG": "C"}
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise CloudspotError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")
