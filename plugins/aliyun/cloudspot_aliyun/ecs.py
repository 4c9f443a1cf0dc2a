"""Creates, lists and ends ECS instances.

A launch is one RunInstances call, which can be repeated because it has a token.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cloudspot.calls import (
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.model import EndReason, Instance, InstanceGroup, InstanceState, LaunchRequest
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import readable
from cloudspot.plugin.cloudprovider import CloudProvisioner
from cloudspot.plugin.launchrequests import decode_request
from cloudspot.plugin.terminating import end_all
from cloudspot_aliyun import deploymentsets, tags
from cloudspot_aliyun.api import ask, caller, items, read, read_pages
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.errors import ERRORS
from cloudspot_aliyun.listing import is_being_taken, market_of, to_instance
from cloudspot_aliyun.offers import AliyunOfferFinder
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.refusals import refusal
from cloudspot_aliyun.request import EcsRequest, parameters_of, render_request

_log = logging.getLogger("cloudspot.aliyun.ecs")

MAX_IDS: Final = 50
"""The maximum number of ids in one call: TagResources accepts 50, DescribeInstances and DeleteInstances 100.
"""
_GONE: Final = frozenset(
    {
        "InvalidInstanceId.Malformed",
        "InvalidInstanceId.NotFound",
        "InvalidInstanceIds.Malformed",
        "InvalidInstanceIds.NotFound",
    }
)
_NOT_YET: Final = {
    "IncorrectInstanceStatus": TransientError,
    "IncorrectInstanceStatus.Initializing": TransientError,
    "InvalidInstanceId.NotFound": TransientError,
    "InvalidResourceId.NotFound": TransientError,
    "OperationConflict": TransientError,
}
"""The error codes for a new machine that is not known everywhere yet, or cannot be changed yet."""
ENDED_SHOWN_SECONDS: Final = 3600.0
"""How long a released machine, which ECS no longer lists, is reported as ended."""


class EcsProvisioner(CloudProvisioner[AliyunOptions, AliyunClients]):
    """The machines of one account and region. Thread-safe; construction does no I/O."""

    provider = "aliyun"
    finder_type = AliyunOfferFinder

    # ECS does not state how long it honours a token ("How to ensure idempotence", checked 2026-11); ten
    # minutes are assumed. If that is too short, the only loss is a launch whose response was lost, which is
    # then given up.
    token_seconds = 600.0
    # ECS forgets a released instance at once, and a listing may lag. An instance that was seen, and then
    # cannot be found by its tags or its id for this long, has ended.
    absence_proves_after_seconds = 300.0

    def __init__(
        self,
        options: AliyunOptions,
        clients: AliyunClients,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(options, clients, monotonic=monotonic)
        self._lock = threading.Lock()
        self._checked_key: str | None = None
        """The key that is known to belong to the job's account."""
        self._seen: dict[str, Instance] = {}
        """The machines as last listed."""
        self._going: dict[str, EndReason] = {}
        """The machines that ECS is reclaiming, or is releasing on request."""
        self._gone: dict[str, tuple[Instance, float]] = {}
        """The ended machines, with the monotonic time at which they were found missing."""
        self._missed_since: dict[str, float] = {}
        self._shows_tags: set[str] = set()

    def render(self, group: InstanceGroup) -> LaunchRequest:
        return render_request(self.options, group)

    def create(self, request: CreateRequest) -> CreateResult:
        """Create all the machines of the request or none, in one call; it is not retried here."""
        body = decode_request(request.request, EcsRequest)
        self._check_account()
        parameters = parameters_of(body, request.token)
        if body.made_deployment_set is not None:
            parameters["DeploymentSetId"] = deploymentsets.make(
                self.clients, body.made_deployment_set, region=body.region
            )
        try:
            answer = ERRORS.unless_throttled(
                lambda: ask(self.clients, "RunInstances", parameters, region=body.region)
            )
        except ERRORS.raised as error:
            raise self.unless_new(refusal(error, body)) from error
        with readable("creating the machines"):
            ids = list(answer["InstanceIdSets"]["InstanceIdSet"])
        return CreateResult(instances=tuple(_promised(str(one), body, is_alone=len(ids) == 1) for one in ids))

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Tag the machines with the launch's data, and let their metadata show tags; safe to repeat.

        ECS accepts that setting only for an existing machine, not in RunInstances.
        """
        alive = [one for one in instances if one.state is not InstanceState.ENDED]
        for start in range(0, len(alive), MAX_IDS):
            wanted = {
                "ResourceType": "instance",
                "ResourceId": [one.id for one in alive[start : start + MAX_IDS]],
                "Tag": tags.to_list(facts),
            }
            self._call_optional("tagging the machines", "TagResources", wanted)
        for instance in alive:
            if instance.id not in self._shows_tags and len(instances) > 1:
                self._show_tags(instance.id)
                self._shows_tags.add(instance.id)

    def instances(self, request: InstancesRequest) -> InstancesResult:
        """Return the machines with cloudspot's tags.

        ECS lists no released machines. If a machine was seen while ECS was reclaiming or releasing it, and
        can no longer be found by its id, it is reported as ended for about an hour.

        Raises:
            AuthError: the credentials belong to an account other than the job's.
        """
        self._check_account()
        job_id = request.job_id
        tag = {"Key": machinetags.JOB} if job_id is None else {"Key": machinetags.JOB, "Value": job_id}
        pages = read_pages(
            self.clients,
            "listing the machines",
            "DescribeInstances",
            {"Tag": [tag]},
            path=("Instances", "Instance"),
        )
        listed = list(pages)
        # The profile may have changed while the pages were being read.
        self._check_account()
        with readable("listing the machines"):
            by_id = {one.id: one for one in map(to_instance, listed) if one is not None}
        with self._lock:
            self._note(listed, by_id)
            missed = [
                one
                for one in self._seen.values()
                if one.id not in by_id and job_id in {None, one.job_id} and one.id not in self._gone
            ]
        by_id |= self._look_for(missed)
        found = (*by_id.values(), *self._ended(job_id, by_id))
        return InstancesResult(instances=tuple(filter(request.wants, found)))

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        """Release the machines (``ecs:DeleteInstances``); see Provisioner."""
        return end_all(request.instance_ids, self._release, at_once=MAX_IDS)

    def console(self, instance: Instance) -> str:
        """Return the machine's console output since its start, until it is released; see Provisioner.

        "The last time an instance was started, restarted, or shut down", in Base64 (ECS API reference,
        GetInstanceConsoleOutput, checked 2026-11).
        """
        what = f"reading the console of {instance.id} (ecs:GetInstanceConsoleOutput)"
        answer = read(self.clients, what, "GetInstanceConsoleOutput", {"InstanceId": instance.id})
        with ERRORS.translated(what):
            output = base64.b64decode(str(answer.get("ConsoleOutput") or ""))
        return output.decode("utf-8", errors="replace")

    def release(self, job_id: str, *, store_url: str = "") -> None:
        if self.options.deployment_set == "auto":
            deploymentsets.remove(self.clients, job_id, store_url=store_url)

    def _show_tags(self, instance_id: str) -> None:
        """Make the machine's tags visible in its metadata, if the account already has that feature."""
        wanted: dict[str, Any] = {
            "InstanceId": instance_id,
            # Without these two settings, ECS would return to its default, which requires no token.
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "InstanceMetadataTags": "enabled",
        }
        if self.options.metadata_hops > 1:
            wanted["HttpPutResponseHopLimit"] = self.options.metadata_hops
        self._call_optional("letting the machines read their tags", "ModifyInstanceMetadataOptions", wanted)

    def _call_optional(self, what: str, action: str, wanted: Mapping[str, Any]) -> None:
        """Make a call that only helps the machines; a refusal does not end the job."""
        try:
            read(self.clients, what, action, wanted, codes=_NOT_YET)
        except TransientError:
            raise
        except CloudspotError as error:
            _log.info("the nodes find each other by their records in the bucket: %s", error)

    def _look_for(self, missed: Sequence[Instance]) -> dict[str, Instance]:
        """Look up by id the machines that the listing lacks, because a tag may be lost or lag."""
        by_id: dict[str, Instance] = {}
        for start in range(0, len(missed), MAX_IDS):
            batch = missed[start : start + MAX_IDS]
            wanted = {"InstanceIds": json.dumps([one.id for one in batch]), "PageSize": MAX_IDS}
            what = "looking for the machines"
            answer = read(self.clients, what, "DescribeInstances", wanted)
            with readable(what):
                described = {str(one["InstanceId"]): one for one in items(answer, "Instances", "Instance")}
            for instance in batch:
                if instance.id in described:
                    # The machine still belongs to the same job, even if its tags have changed.
                    own = {"Tag": [{"TagKey": machinetags.JOB, "TagValue": instance.job_id}]}
                    now = to_instance({**described[instance.id], "Tags": own})
                    assert now is not None
                    by_id[instance.id] = msgspec.structs.replace(
                        now, launch=instance.launch, store_url=instance.store_url
                    )
                    with self._lock:
                        self._note([described[instance.id]], by_id)
                else:
                    self._miss(instance)
        return by_id

    def _note(self, listed: Sequence[Mapping[str, Any]], found: Mapping[str, Instance]) -> None:
        for described in listed:
            instance = found.get(str(described.get("InstanceId")))
            if instance is None:
                continue
            self._seen[instance.id] = instance
            self._gone.pop(instance.id, None)
            self._missed_since.pop(instance.id, None)
            if is_being_taken(described):
                self._going[instance.id] = EndReason.RECLAIMED

    def _miss(self, instance: Instance) -> None:
        """Note that ECS does not know a machine's id; if the machine was being ended, it has ended."""
        now = self.monotonic()
        with self._lock:
            reason = self._going.get(instance.id)
            if reason is not None:
                ended = msgspec.structs.replace(instance, state=InstanceState.ENDED, end_reason=reason)
                self._gone.setdefault(instance.id, (ended, now))
            # Otherwise, only time proves that the machine has ended; it is not looked up forever.
            elif now - self._missed_since.setdefault(instance.id, now) >= ENDED_SHOWN_SECONDS:
                self._seen.pop(instance.id, None)

    def _ended(self, job_id: str | None, found: Mapping[str, Instance]) -> list[Instance]:
        now = self.monotonic()
        with self._lock:
            for known in [one for one, (_, at) in self._gone.items() if now - at >= ENDED_SHOWN_SECONDS]:
                del self._gone[known]
                self._seen.pop(known, None)
            return [
                one for one, _ in self._gone.values() if one.id not in found and job_id in {None, one.job_id}
            ]

    def _release(self, ids: Sequence[str]) -> None:
        try:
            ask(self.clients, "DeleteInstances", {"InstanceId": list(ids), "Force": True})
        except ERRORS.raised as error:
            code, is_alone = ERRORS.code_of(error), len(ids) == 1
            if is_alone and code in _GONE:
                return
            what = f"releasing {ids[0]}" if is_alone else f"releasing {len(ids)} machines"
            refused = ERRORS.translation(error, what, _NOT_YET)
            # One machine that is not ready yet makes the whole call fail.
            raise refused if is_alone or code not in _NOT_YET else CloudspotError(str(refused)) from error
        with self._lock:
            for one in ids:
                self._going.setdefault(one, EndReason.TERMINATED)

    def _check_account(self) -> None:
        # The environment or a profile may now have another account's key; a role gets a new key each hour.
        key = self.clients.credentials.get().access_key_id
        if self.options.account is None or key == self._checked_key:
            return
        self.require_account(self.options.account, caller(self.clients).account)
        self._checked_key = key


def _promised(instance_id: str, body: EcsRequest, *, is_alone: bool) -> Instance:
    """Return a machine of which only the id is known; a listing will show its rank."""
    parameters = body.run_instances
    own_tags = {str(one["Key"]): str(one["Value"]) for one in parameters["Tag"]}
    return Instance(
        id=instance_id,
        state=InstanceState.PENDING,
        job_id=own_tags[machinetags.JOB],
        launch=machinetags.launch_of(own_tags),
        rank=0 if is_alone and parameters["Amount"] == 1 else None,
        zone=parameters["ZoneId"],
        instance_type=parameters["InstanceType"],
        market=market_of(parameters),
        store_url=own_tags.get(machinetags.STORE, ""),
    )
