"""Find the network interface through which other nodes reach this machine; gloo would use the host name."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""torch's variable for the interface whose address gloo sends to its peers.

Without it, gloo sends the address of the host name, which is 127.0.1.1 on many images (through Debian's and
Ubuntu's /etc/hosts), so ranks on other machines connect to themselves. Source: torch.distributed's
documentation, "Common environment variables" (checked 2026-11, torch 2.13).
"""

_SIOCGIFADDR = 0x8915  # netdevice(7)
_NAME_BYTES = 16
_REQUEST_BYTES = 40


def gloo_environment(address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a trainer lacks on the machine with this address."""
    if GLOO_INTERFACE in environment:
        return {}
    name = interface_of(address)
    return {} if name is None else {GLOO_INTERFACE: name}


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address; None if there is none or it is a loopback.

    On other systems than Linux, the result is always None. Only an interface's first address is checked.
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
    except OSError:  # the interface has no address
        return None
    # struct ifreq: the name, then a sockaddr_in: family, port, address.
    return socket.inet_ntoa(answer[_NAME_BYTES + 4 : _NAME_BYTES + 8])
