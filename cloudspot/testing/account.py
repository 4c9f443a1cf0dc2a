"""What the kits ask of a plugin's author: an account, and how to make it refuse, lag and reclaim."""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod

from cloudspot.interfaces import Provider
from cloudspot.model import Instance, InstanceGroup, InstanceState
from cloudspot.testing import plaincalls


class Call(str, enum.Enum):
    """What of a provisioner a fault is for."""

    CREATE = "create"
    LIST = "list"


class Fault(str, enum.Enum):
    """How the cloud's API misbehaves."""

    LOST_ANSWER = "lost answer"
    """The next call has its effect, and its answer is lost: a status of 500, or a connection that breaks."""
    UNWELL = "unwell"
    """It answers with an error of its own, or not at all."""
    THROTTLED = "throttled"
    """The account has asked too often."""
    DENIED = "denied"
    """The caller lacks the right."""
    QUOTA = "quota"
    """The account's limit is reached."""
    REFUSED = "refused"
    """The request can never work, such as one for an image that does not exist."""


class Account(ABC):
    """An empty account of a cloud, in which a test may do what it likes; made anew for each test.

    It is best an emulated one, behind the real SDK. What cannot be arranged raises NotImplementedError, and
    the tests that need it are deviations.
    """

    prefix: str = "kit-"
    """How the ids of the jobs and the tokens of a test begin: it leaves alone what else the account has."""
    patience_seconds: float = 30.0
    """How long the cloud may take for what it does in its own time, such as ending a machine."""
    unknown_ids: tuple[str, ...] = ("cloudspot-none",)
    """Ids of machines that the account never had: well formed, malformed."""

    @abstractmethod
    def provider(self) -> Provider:
        """Return a provider of this account that has looked up nothing, as another process would have it."""

    def reserve(self, group: InstanceGroup) -> None:
        """Note that a test is about to launch these machines; an account that costs money counts them."""
        return None

    def limit(self, num_machines: int | None) -> None:
        """Leave room for so many machines in all, in each zone and on each market; None: for any number."""
        raise NotImplementedError

    def inject(self, call: Call, fault: Fault) -> None:
        """Let the cloud misbehave from now on, or for the next call only where the fault says so."""
        raise NotImplementedError

    def heal(self) -> None:
        """Let the cloud behave again."""
        raise NotImplementedError

    def lag(self, seconds: float) -> None:
        """Let new machines show in listings only after so many seconds of the account's time."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Let so many seconds of the account's time pass; by default it is the real one."""
        time.sleep(seconds)

    def reclaim(self, instance_id: str) -> None:
        """Take a spot machine back without notice."""
        plaincalls.preempt(self.provider(), instance_id, notice_seconds=0)

    def running(self) -> set[str]:
        """Return the ids of all machines that may run and bill.

        The default asks the provisioner; an emulated cloud knows better what it has.
        """
        return {one.id for one in self.listed() if one.state is not InstanceState.ENDED}

    def listed(self) -> list[Instance]:
        """Return the machines of this test that its provisioner lists, ended ones included."""
        found = plaincalls.instances(self.provider().provisioner())
        return [one for one in found if one.job_id.startswith(self.prefix)]
