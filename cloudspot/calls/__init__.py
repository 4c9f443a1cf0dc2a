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
        """Return how many seconds the caller will still wait; 0 once the deadline has passed."""
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
    """For how many seconds the link should work, from 1 to 604,800."""
    media_type: str
    """The media type for browsers, such as ``text/html; charset=utf-8``."""


class LinkResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``ObjectStore.link``."""

    url: str
    ends_at: datetime
    """The latest time at which the link expires, by this computer's clock."""
    note: str = ""
    """Why the link expires, or may expire, before the requested time; otherwise empty."""


class TrackingRequest(Call, frozen=True, kw_only=True):
    """For ``Tracker.variables``."""

    job_id: str
    generation: int
    """Which start of the training this is, counted from 1."""
    ranks: tuple[int, ...]
    """The global ranks that start on this machine."""
    step: int | None
    """The step of the checkpoint that the training resumes from; None if no session has saved one."""
    work: Path
    """The working directory of the training."""
    artifacts: Path
    """The directory that ``CLOUDSPOT_ARTIFACTS`` names."""
    environment: Mapping[str, str]
    """The environment of the training."""
    run_python: Callable[[str, float], str]
    """Runs code with the training's Python in that environment, for at most the given number of seconds, and
    returns its output. Raises CloudspotError if it fails."""


class TaskRequest(Call, frozen=True, kw_only=True):
    """For ``DriverTask.run``."""

    job_id: str
    asked: bytes
    """The content of the record that asks drivers for this work."""
    is_over: bool
    """Whether the job has ended: drivers then do the work once more and never again."""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``DriverTask.run``."""

    is_finished: bool = False
    """Whether the work is finished for good; the record that asks for it is then deleted."""


class InstancesRequest(Call, frozen=True, kw_only=True):
    """For ``Provisioner.instances``."""

    job_id: str | None = None
    """The job whose machines are requested; None requests the machines of all jobs."""
    store_url: str = ""
    """The store whose jobs' machines are requested, as in ``InstanceGroup.store_url``; machines that name no
    store are included. An empty string requests the machines of all stores."""

    def wants(self, instance: Instance) -> bool:
        """Return whether this request includes the machine."""
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
    """A machine that the provider refused to end."""

    instance_id: str
    reason: str
    """The reason in one line, for example that the machine is protected."""


class TerminateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``Provisioner.terminate``."""

    refused: tuple[Refused, ...] = ()
    """The machines that may still be running; unknown and ended machines are not included."""

    @property
    def problem(self) -> str:
        """The refusals in one line; empty if no machine was refused."""
        return "; ".join(f"{one.instance_id} cannot be ended: {one.reason}" for one in self.refused)


class OffersRequest(Call, frozen=True, kw_only=True):
    """For ``Provisioner.offers``."""

    resources: Resources


class OffersResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``Provisioner.offers``."""

    offers: tuple[Offer, ...]
    """The offers, in any order."""


class PreemptRequest(Call, frozen=True, kw_only=True):
    """For ``Provider.preempt``."""

    instance_id: str
    notice_seconds: float | None = None
    """The length of the notice; 0 takes the machine without notice, and None gives the usual notice."""


class PreemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``Provider.preempt``, which means that the provider has accepted the request.

    It has no fields yet.
    """


class CheckRequest(Call, frozen=True, kw_only=True):
    """The request of ``Provider.check`` and ``ObjectStore.check``."""

    resources: Resources | None = None
    """The resources that one node of the job needs, or None if there is no job."""


class CheckResults(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``Provider.check`` and ``ObjectStore.check``."""

    results: tuple[CheckResult, ...] = ()
    """The results, in the order in which they are shown."""


class SetupRequest(Call, frozen=True, kw_only=True):
    """The request of ``AccountSetup.parts`` and ``AccountSetup.settings``."""

    store_url: str | None = None
    """The bucket to create, as the URL of a store; if None, the provider names it after the account."""
    grant_to: tuple[str, ...] = ()
    """The only principals that receive a submitter's permissions, in the provider's notation."""
    monthly_limit: float | None = None
    """The monthly bill, in the account's currency, above which a warning is sent; None sends no warning."""
    warn: str | None = None
    """The e-mail address for the warning."""
