"""How a plugin emulates its cloud on one host: real machines behind a made-up API.

A plugin author writes two things, and cloudspot the rest:

- an :class:`EmulatedCloud`: HTTP servers that speak the cloud's API. Whenever a call of that API
  starts a machine, it hands an :class:`EmulatedMachine` to its :class:`MachineHost`, which boots the
  user data for real (in namespaces of its own, where the host allows it); and it asks the host's
  ``states`` whenever it has to tell how the machines are.
- a :class:`MetadataService`: what a program on a machine reads at 169.254.169.254.

The plugin names the class by the hook ``cloudspot_sandbox``; ``cloudspot sandbox NAME -- COMMAND``
and tests bring it up. docs/sandbox.md tells the way from nothing to a sandbox.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from cloudspot.local.metadataservice import (
    Answer,
    MachineView,
    MetadataService,
    Request,
    StandingNotice,
)
from cloudspot.model import EndReason, InstanceState, Market

__all__ = [
    "Answer",
    "EmulatedCloud",
    "EmulatedMachine",
    "JobHint",
    "MachineHost",
    "MachineStatus",
    "MachineView",
    "MetadataService",
    "Request",
    "StandingNotice",
]


class JobHint(msgspec.Struct, frozen=True, kw_only=True):
    """Which node of which job a machine is, read from the tags that the provider's plugin gives it.

    A planned reclaim finds its machine by it ("rank 0 of the first launch"), and the machines of one
    launch share the host's processors by it.
    """

    job_id: str
    launch: int
    """Counted from 1."""
    rank: int
    """The machine's index within the launch, from 0."""
    num_nodes: int = 1
    """Of the launch."""


class EmulatedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What an emulated API has decided to start."""

    id: str
    """The cloud's id of it; ``[A-Za-z0-9._-]``, at most 64 characters, never used twice."""
    address: str | None = None
    """IPv4 within ``MachineHost.network``; None: the host chooses."""
    host_name: str | None = None
    """What ``hostname`` says, and what the other machines find it by; None: made from the address as
    ``ip-10-77-0-5``."""
    user_data: bytes = b""
    """As the metadata service will give it: a script, gzip'ed or not."""
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """JSON values for the cloud's metadata service: ``MachineView.facts``."""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """As they are at the start; ``MachineHost.set_tags`` changes them."""
    market: Market = Market.ON_DEMAND
    """Only spot machines are reclaimed by the sandbox's plan."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Over what every program of the machine finds set by its image (``/etc/environment``)."""
    is_bare: bool = False
    """The image has python3 and curl, and no cloudspot, nor has what ``programs`` runs; else it has the
    sandbox's own Python, with all that is installed there."""
    programs: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Programs below ``/opt`` that its image has, and what of this host each runs. A machine that is not
    isolated has none; there the user data is made to call what they run."""
    boot_delay_seconds: float = 0.0
    """How long the machine is PENDING."""
    job: JobHint | None = None
    """None: the machine is no cloudspot job's, as far as its tags say."""


class MachineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a machine is."""

    state: InstanceState
    address: str
    end_reason: EndReason | None = None
    """Known from SHUTTING_DOWN on: RECLAIMED, TERMINATED (by ``terminate``), SELF (it shut itself
    down) or LOST (its host failed)."""
    notice_deadline: datetime | None = None
    """When it will be taken; None: no reclaim has begun. For APIs that show a marked machine."""
    ended_at: datetime | None = None


class MachineHost(ABC):
    """Boots and ends machines for an emulated cloud. Thread-safe; nothing waits for a machine."""

    network: str
    """Where the machines' addresses must lie: ``EmulatedCloud.network``, or a part of 127.0.0.0/8 on a
    host without namespaces. Its first address is the host's own."""

    @abstractmethod
    def allocate_address(self) -> str:
        """Return an address that no machine has, for clouds that do not choose them by themselves."""

    @abstractmethod
    def start(self, machine: EmulatedMachine) -> None:
        """Start to boot the machine and return; from now on ``states`` tells of it.

        Raises:
            ValueError: its id was used before, or its address is not in the network or in use.
        """

    @abstractmethod
    def terminate(self, machine_id: str) -> None:
        """Ask for the machine's end, without a word to it; one that is unknown or ended is no error."""

    @abstractmethod
    def reclaim(self, machine_id: str, *, notice_seconds: float) -> None:
        """Announce the end to the machine by its metadata service, and end it ``notice_seconds`` later.

        With 0 it ends at once. A second reclaim can only bring the end nearer; one that is unknown or
        ended is no error.
        """

    @abstractmethod
    def set_tags(self, machine_id: str, tags: Mapping[str, str]) -> None:
        """Replace the machine's tags, as its metadata service shows them; unknown is no error."""

    @abstractmethod
    def states(self) -> Mapping[str, MachineStatus]:
        """Return how every machine is that was ever started here, by id; ended ones stay."""


class EmulatedCloud(ABC):
    """One cloud on this host: API servers, connected to machines. Made without arguments.

    The order of calls is ``start``, then the others from any thread, then ``stop``.
    """

    name: ClassVar[str]
    """The provider's name."""
    notice_seconds: ClassVar[float] = 120.0
    """How long before a reclaim this cloud tells the machine, where nobody says otherwise."""
    foreign_variables: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the variables in the user's environment that must not reach COMMAND, which would
    otherwise use the user's own account."""
    network: ClassVar[str] = "10.77.0.0/16"
    """The machines' addresses, where the host can give them any: see ``MachineHost.network``."""
    metadata_addresses: ClassVar[tuple[str, ...]] = ("169.254.169.254",)
    """Where programs on a machine find the metadata service, at port 80."""
    metadata_service: ClassVar[str]
    """``module:attribute`` of the :class:`MetadataService`; imported beside each machine."""
    host_names: ClassVar[Mapping[str, str]] = {}
    """Names that resolve on each machine, with their addresses, such as
    ``{"metadata.internal": "169.254.169.254"}``."""
    fetch_user_data: ClassVar[str]
    """Shell commands (POSIX, with curl) by which the machine's boot prints the user data of the
    service at ``$METADATA_URL`` (no slash at its end) as the cloud's images do; an end with another
    status than 0 means that there is none yet."""
    shutdown_seconds: ClassVar[float] = 0.0
    """How long before the end of a reclaim the machine's power button is pressed, at its notice at the
    earliest: it then shuts down by itself, or is ended. 0: it is not pressed, and the machine is ended."""
    fetch_shutdown_script: ClassVar[str] = ""
    """As ``fetch_user_data``, for a script that the machine runs first when it shuts down, for
    ``shutdown_seconds`` at most. It is fetched then. Empty: there is none."""

    @abstractmethod
    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        """Serve the APIs on ``address``, any ports, and return when they answer.

        ``directory`` is the cloud's alone, for logs and what must not stay in memory.
        """

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return what makes the cloud's SDKs and tools use the emulated one; for COMMAND, after ``start``.

        Endpoints, region and credentials, and ``CLOUDSPOT_STORE`` where there is a bucket.
        """

    @abstractmethod
    def machine_environment(self) -> Mapping[str, str]:
        """Return what stands in every image: endpoints, but no credentials (a machine has its role's)."""

    def metadata_environment(self, url: str) -> Mapping[str, str]:
        """Return what makes the SDKs on a machine find the metadata service at ``url``.

        Only for hosts without namespaces, where it cannot be at its real address. Empty: its SDKs have
        no such variable, and the cloud is not emulated there.
        """
        return {}

    @abstractmethod
    def stop(self) -> None:
        """End the servers; the host ends the machines by itself.

        Safe to repeat, also after a ``start`` that failed.
        """
