"""The network interface by which the other nodes reach this machine; gloo would go by the host name."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""torch's variable: the interface whose address gloo tells its peers.

Without it gloo tells the address of the host's name, and many images give that name the address
127.0.1.1 (Debian's and Ubuntu's /etc/hosts): ranks of other machines then dial themselves.
Source: torch.distributed's documentation, "Common environment variables" (checked 2026-11, torch 2.13).
"""

_SIOCGIFADDR = 0x8915  # netdevice(7)
_NAME_BYTES = 16
_REQUEST_BYTES = 40


def gloo_environment(address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a trainer on the machine with this address needs set; a value already set stays."""
    if GLOO_INTERFACE in environment:
        return {}
    name = interface_of(address)
    return {} if name is None else {GLOO_INTERFACE: name}


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address; None if there is none, or for a loopback.

    Always None on systems other than Linux. Only an interface's first address is known.
    """
    if sys.platform != "linux" or address.startswith("127."):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if _address(probe, name) == address:
                return name
    return None


def _address(probe: socket.socket, name: str) -> str | None:
    import fcntl

    request = struct.pack(f"{_REQUEST_BYTES}s", name.encode()[: _NAME_BYTES - 1])
    try:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
    except OSError:  # it has no address
        return None
    # struct ifreq: the name, then a sockaddr_in: family, port, address.
    return socket.inet_ntoa(answer[_NAME_BYTES + 4 : _NAME_BYTES + 8])
