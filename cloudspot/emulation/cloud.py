"""The interface with which a plugin emulates its cloud on one host: real machines behind an emulated API.

The author of a plugin writes two classes, and cloudspot provides the rest:

- an :class:`EmulatedCloud`: HTTP servers that implement the cloud's API. When a call starts a machine, it
  passes an :class:`EmulatedMachine` to its :class:`MachineHost`, which really boots the user data, in
  separate namespaces if the host allows it. The host's ``states`` returns the states of the machines.
- a :class:`MetadataService`: the service that programs on a machine read at 169.254.169.254.

The hook ``cloudspot_sandbox`` returns the class; ``cloudspot sandbox NAME -- COMMAND`` and tests start it.
docs/sandbox.md explains how to write a sandbox.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from cloudspot.decoding import whole_number
from cloudspot.emulation.spot_plan import SpotPlan
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.local.machine_records import MachineState
from cloudspot.local.metadataservice import Answer, MachineView, MetadataService, Request, StandingNotice
from cloudspot.model import Market
from cloudspot.plugin import machinetags

__all__ = [
    "TRAINING_PACKAGES",
    "Answer",
    "Contrary",
    "EmulatedCloud",
    "EmulatedMachine",
    "JobHint",
    "MachineHost",
    "MachineStatus",
    "MachineView",
    "MetadataService",
    "Request",
    "SpotPlan",
    "StandingNotice",
]


TRAINING_PACKAGES: Final = ("numpy", "pip", "torch")
"""The minimum set of packages for the Python of an image made for PyTorch."""


class JobHint(msgspec.Struct, frozen=True, kw_only=True):
    """The job and node that a machine is for, read from the tags that the provider's plugin sets on it.

    Planned reclaims use the hint to find their machine ("rank 0 of the first launch"), and the machines of
    one launch share the host's processors.
    """

    job_id: str
    launch: int
    """The launch's number, counted from 1."""
    rank: int
    """The machine's index within the launch, from 0."""
    num_nodes: int = 1
    """The number of nodes in the launch."""

    @classmethod
    def of_tags(cls, tags: Mapping[str, str], *, rank: int) -> JobHint | None:
        """Return the hint from a machine's cloudspot tags, or None if it has no such tags."""
        launch = whole_number(tags.get(machinetags.LAUNCH, ""))
        if machinetags.JOB not in tags or launch is None:
            return None
        num_nodes = whole_number(tags.get(machinetags.NUM_NODES, "1")) or 1
        return cls(job_id=tags[machinetags.JOB], launch=launch, rank=rank, num_nodes=num_nodes)


class EmulatedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that an emulated API starts."""

    id: str
    """The cloud's id for the machine: at most 64 characters of ``[A-Za-z0-9._-]``, never used twice."""
    address: str | None = None
    """An IPv4 address within ``MachineHost.network``; if None, the host chooses one."""
    host_name: str | None = None
    """The host name by which other machines find it; None derives it from the address, as in
    ``ip-10-77-0-5``."""
    user_data: bytes = b""
    """The user data that the metadata service returns: a script, possibly gzipped."""
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """JSON values for the cloud's metadata service; they become ``MachineView.facts``."""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The machine's tags at its start; ``MachineHost.set_tags`` changes them."""
    market: Market = Market.ON_DEMAND
    """The market; the sandbox's plan reclaims only spot machines."""
    notice_seconds: float | None = None
    """The length of the notice that the machine has requested; None means the cloud's usual length."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Additions to the variables that its image sets for every program (``/etc/environment``)."""
    is_bare: bool = False
    """Whether the image has only python3 and curl, without cloudspot and the commands in ``programs``. If
    not, the image has the sandbox's own Python, with cloudspot and its plugins."""
    packages: tuple[str, ...] = TRAINING_PACKAGES
    """The additional distributions in its Pythons, with their dependencies, if this host has them. A machine
    can get the host's other distributions only from the package index that its ``pip`` uses. A machine that
    is not isolated has all distributions of this host."""
    programs: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The programs below ``/opt`` in its image, each with the command of this host that it runs. A machine
    that is not isolated has no such programs; its user data calls those commands directly."""
    shared: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Directories of the host to which it can write, by their paths on the machine. A machine that is not
    isolated has them at the host's own paths."""
    disk: str | None = None
    """The path of a disk from ``MachineHost.save_disk``, whose content the machine starts with."""
    boot_delay_seconds: float = 0.0
    """How long the machine is PENDING."""
    job: JobHint | None = None
    """The job of the machine, or None if the machine has no tags of a cloudspot job."""


class MachineStatus(MachineState, frozen=True, kw_only=True):
    """The fields of :class:`MachineState`, and the machine's address."""

    address: str


class MachineHost(ABC):
    """Boots and ends the machines of an emulated cloud. Thread-safe; no method waits for a machine."""

    network: str
    """The range of the machines' addresses: ``EmulatedCloud.network``, or part of 127.0.0.0/8 on a host
    without namespaces. Its first address is the host's own."""

    @abstractmethod
    def allocate_address(self) -> str:
        """Return an unused address, for clouds that do not choose addresses themselves."""

    @abstractmethod
    def start(self, machine: EmulatedMachine) -> None:
        """Start booting the machine without waiting; ``states`` includes it from now on.

        Raises:
            ValueError: the machine's id was used before, or its address is taken or outside the network.
        """

    @abstractmethod
    def terminate(self, machine_id: str) -> None:
        """End the machine without notice; an unknown or ended machine is no error."""

    @abstractmethod
    def reclaim(self, machine_id: str, *, notice_seconds: float) -> None:
        """Announce the machine's end through its metadata service, and end it ``notice_seconds`` later.

        If ``notice_seconds`` is 0, the machine ends at once. A second reclaim can only bring the end forward.
        An unknown or ended machine is no error.
        """

    def save_disk(self, machine_id: str) -> str:
        """Copy the disk of a running machine; return the path of the copy, for ``EmulatedMachine.disk``.

        The copy does not include ``/tmp`` or the machine's memory.

        Raises:
            CloudspotError: this host does not support disk copies, or the machine does not exist.
        """
        raise CloudspotError(f"machine {machine_id} has no disk that can be saved on this host")

    @abstractmethod
    def set_tags(self, machine_id: str, tags: Mapping[str, str]) -> None:
        """Replace the tags that the machine's metadata service shows; an unknown machine is no error."""

    def console(self, machine_id: str) -> str:
        """Return the machine's output since its boot, even after its end; empty for an unknown machine."""
        return ""

    @abstractmethod
    def states(self) -> Mapping[str, MachineStatus]:
        """Return the state of every machine that was ever started here, by id, including ended machines."""


class Contrary(NamedTuple):
    """An aspect in which an emulation behaves differently than its cloud is expected to."""

    text: str
    """The difference, in one sentence."""
    question: str
    """The id of the open question in docs/first-real-run.md that this behaviour answers differently."""


class EmulatedCloud(ABC):
    """One cloud on this host: API servers connected to machines. It is constructed without arguments.

    ``start`` is called first, ``stop`` last, and the other methods in between, from any thread.
    """

    name: ClassVar[str]
    """The provider's name."""
    notice_seconds: ClassVar[float] = 120.0
    """The usual length of this cloud's notices."""
    foreign_variables: ClassVar[tuple[str, ...]] = ()
    """Prefixes of variables in the user's environment that must not reach COMMAND, which would otherwise use
    the user's own account."""
    network: ClassVar[str] = "10.77.0.0/16"
    """The range of the machines' addresses, if the host can choose them; see ``MachineHost.network``."""
    metadata_addresses: ClassVar[tuple[str, ...]] = ("169.254.169.254",)
    """The metadata service's addresses on a machine, at port 80."""
    metadata_service: ClassVar[str]
    """The ``module:attribute`` of the :class:`MetadataService`, which a process beside each machine imports.
    """
    host_names: ClassVar[Mapping[str, str]] = {}
    """Names that resolve on each machine, such as ``{"metadata.internal": "169.254.169.254"}``."""
    fetch_user_data: ClassVar[str]
    """Shell commands (POSIX, with curl) that print the user data as the cloud's images do at boot, from the
    service at ``$METADATA_URL`` (which has no final slash). Any status except 0 means that there is no user
    data yet."""
    shutdown_seconds: ClassVar[float] = 0.0
    """How long before the end of a reclaim, but after its notice, the machine's power button is pressed. The
    machine then shuts down, or is ended at the deadline. If 0, the machine is ended without the button."""
    fetch_shutdown_script: ClassVar[str] = ""
    """Shell commands, like ``fetch_user_data``, that print the script that the machine runs first when it
    shuts down, for at most ``shutdown_seconds``. The output is empty if there is no script."""

    can_be_bare: ClassVar[bool] = False
    """Whether its account can start out with only an administrator."""
    is_bare: bool = False
    """Whether nothing is set up in the account and no store is named; set it before ``start``."""

    contraries: ClassVar[Mapping[str, Contrary]] = {}
    """The unexpected behaviour that it can show on request, by name."""
    contrary: frozenset[str] = frozenset()
    """The names in ``contraries`` of the behaviour to show; set it before ``start``."""

    def follow(self, plan: SpotPlan) -> None:
        """Let the capacity and the prices of spot machines follow the plan; called before ``start``.

        Raises:
            SpecError: this emulation does not support a part of the plan.
        """
        if plan.spells:
            raise SpecError(f"the emulated {self.name} does not support a plan for its spot market")

    @abstractmethod
    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        """Serve the APIs on any ports of ``address``, and return once they answer.

        ``directory`` belongs to the cloud, for logs and large data.
        """

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return the variables that make SDKs and tools use the emulated cloud; for COMMAND, after ``start``.

        They include endpoints, region, credentials, and ``CLOUDSPOT_STORE`` if there is a bucket.
        """

    @abstractmethod
    def machine_environment(self) -> Mapping[str, str]:
        """Return the variables in every image: endpoints, but no credentials, which the role provides."""

    def furnish(self, machine: EmulatedMachine) -> EmulatedMachine:
        """Return the machine as the host should boot it, with the additions of this cloud's images and roles.

        So the API that starts machines needs no knowledge of key seeds and images.
        """
        return machine

    def metadata_environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that make SDKs on a machine find the metadata service at ``url``.

        They are for hosts without namespaces, where the service cannot have its real address. If there are no
        such variables, the cloud cannot be emulated on such hosts.
        """
        return {}

    @abstractmethod
    def stop(self) -> None:
        """Stop the servers; the host ends the machines.

        Safe to repeat, and to call after a failed ``start``.
        """
