"""Calls to plugins: requests and results, to which later versions may add fields; retries; the guard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from cloudspot.model import CheckResult, Instance, LaunchRequest, Offer, Resources


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all requests."""

    deadline: float = math.inf
    """The moment, by this process's ``time.monotonic()``, after which nobody waits for the result."""

    def seconds_left(self) -> float:
        """Return how long the caller still waits; 0 once the deadline has passed."""
        return max(0.0, self.deadline - time.monotonic())


class CreateRequest(Call, frozen=True, kw_only=True):
    """For ``Provisioner.create``."""

    request: LaunchRequest
    """The request as ``render`` returned it, perhaps in another process."""
    token: str
    """The idempotency token, which is the same for each repetition of the request."""


class CreateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``Provisioner.create``."""

    instances: tuple[Instance, ...]


class LinkRequest(Call, frozen=True, kw_only=True):
    """For ``ObjectStore.link``."""

    key: str
    seconds: float
    """How long the link should work: 1 to 604,800."""
    media_type: str
    """The media type for browsers, such as ``text/html; charset=utf-8``."""


class LinkResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``ObjectStore.link``."""

    url: str
    ends_at: datetime
    """When the link ends at the latest, by this computer's clock."""
    note: str = ""
    """Why the link ends, or may end, before the requested time; empty if it does not."""


class TrackingRequest(Call, frozen=True, kw_only=True):
    """For ``Tracker.variables``."""

    job_id: str
    generation: int
    """Which start of the training this is, counted from 1."""
    ranks: tuple[int, ...]
    """The global ranks that start on this machine."""
    step: int | None
    """The step from which a session's checkpoint resumes; None: there is none, so nobody knows."""
    work: Path
    """The working directory of the training."""
    artifacts: Path
    """The directory of ``CLOUDSPOT_ARTIFACTS``."""
    environment: Mapping[str, str]
    """That of the training."""
    run_python: Callable[[str, float], str]
    """Runs code with the training's Python, in that environment, for so many seconds at the most; returns
    what it prints. Raises CloudspotError if it fails."""


class TaskRequest(Call, frozen=True, kw_only=True):
    """For ``DriverTask.run``."""

    job_id: str
    asked: bytes
    """What was written when drivers were asked to do it."""
    is_over: bool
    """The job has ended: drivers do this once more, and then no longer look at it."""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``DriverTask.run``."""

    is_finished: bool = False
    """It is to be done no more: the record that asks for it is deleted."""


class InstancesRequest(Call, frozen=True, kw_only=True):
    """For ``Provisioner.instances``."""

    job_id: str | None = None
    """The job whose machines are requested; None requests those of all jobs."""
    store_url: str = ""
    """The store whose jobs' machines are requested, as in ``InstanceGroup.store_url``, with the machines that
    name no store; empty requests those of all stores."""

    def wants(self, instance: Instance) -> bool:
        """Return whether the machine is requested."""
        return self.job_id in {None, instance.job_id} and (
            not self.store_url or instance.store_url in {"", self.store_url}
        )


class InstancesResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``Provisioner.instances``."""

    instances: tuple[Instance, ...]


class TerminateRequest(Call, frozen=True, kw_only=True):
    """For ``Provisioner.terminate``."""

    instance_ids: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that the provider did not begin to end."""

    instance_id: str
    reason: str
    """One line, for example that the machine is protected."""


class TerminateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``Provisioner.terminate``."""

    refused: tuple[Refused, ...] = ()
    """The machines that may run on; unknown and ended machines are not among them."""

    @property
    def problem(self) -> str:
        """The refusals in one line; empty if there are none."""
        return "; ".join(f"{one.instance_id} cannot be ended: {one.reason}" for one in self.refused)


class OffersRequest(Call, frozen=True, kw_only=True):
    """For ``Provisioner.offers``."""

    resources: Resources


class OffersResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``Provisioner.offers``."""

    offers: tuple[Offer, ...]
    """In any order."""


class PreemptRequest(Call, frozen=True, kw_only=True):
    """For ``Provider.preempt``."""

    instance_id: str
    notice_seconds: float | None = None
    """The length of the notice; 0 takes the machine without notice, None gives the usual notice."""


class PreemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``Provider.preempt``; the provider has accepted. It has no fields yet."""


class CheckRequest(Call, frozen=True, kw_only=True):
    """For ``Provider.check`` and ``ObjectStore.check``."""

    resources: Resources | None = None
    """The resources that one node of the job needs, or None if there is no job."""


class CheckResults(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``Provider.check`` and ``ObjectStore.check``."""

    results: tuple[CheckResult, ...] = ()
    """In the order in which they are shown."""


class SetupRequest(Call, frozen=True, kw_only=True):
    """For ``AccountSetup.parts`` and ``AccountSetup.settings``."""

    store_url: str | None = None
    """The bucket to make, as the URL of a store; None lets the provider name it after the account."""
    grant_to: tuple[str, ...] = ()
    """The only principals that get a submitter's permissions, in the provider's notation."""
    monthly_limit: float | None = None
    """The monthly bill, in the account's currency, from which on a warning is sent; None sends no warning."""
    warn: str | None = None
    """The mail address for the warning."""
