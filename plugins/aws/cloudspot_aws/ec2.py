"""Creates, lists and ends EC2 instances.

A launch is one RunInstances call, which can be repeated because it has a token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import botocore.exceptions

from cloudspot.calls import (
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.decoding import whole_number
from cloudspot.errors import QuotaError, TransientError
from cloudspot.model import Instance, InstanceGroup, InstanceState, LaunchRequest
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import readable
from cloudspot.plugin.cloudprovider import CloudProvisioner
from cloudspot.plugin.launchrequests import decode_request
from cloudspot.plugin.terminating import end_all
from cloudspot_aws import limit, tags
from cloudspot_aws.clients import AwsClients, caller
from cloudspot_aws.errors import ERRORS, ignored
from cloudspot_aws.listing import to_instance
from cloudspot_aws.offers import AwsOfferFinder
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.refusals import refusal
from cloudspot_aws.request import Ec2Request, render_request, user_data_of

_ID: Final = re.compile(r"\bi-[0-9a-zA-Z]+")
MAX_LIFE_SECONDS: Final = 10**9
"""The longest life that a tag may state, in seconds (30 years); cloudspot never writes a longer one."""
MAX_IDS: Final = 500
"""The number of ids in one TerminateInstances or CreateTags call; EC2 accepts 1000."""


class Ec2Provisioner(CloudProvisioner[AwsOptions, AwsClients]):
    """The machines of one account and region. Thread-safe; construction does no I/O."""

    provider = "aws"
    finder_type = AwsOfferFinder
    # "A client token is valid for at least 24 hours after the termination of the instance" (EC2 API reference
    # of 2013 and 2016, Ensuring idempotency; not found in today's reference). The 24 hours are counted from
    # the intent, which is earlier still. A token is valid in one zone, which the stored request names.
    token_seconds = 24 * 3600.0
    # A terminated instance is listed for about an hour (EC2 user guide, Terminate your instance), so an
    # instance that was seen and is no longer listed ended long ago. Listings lag behind, but usually by
    # seconds (EC2 API reference, Eventual consistency).
    absence_proves_after_seconds = 600.0

    def __init__(self, options: AwsOptions, clients: AwsClients) -> None:
        super().__init__(options, clients)
        self._limits: dict[str, datetime] = {}
        self._account: str | None = None

    def render(self, group: InstanceGroup) -> LaunchRequest:
        return render_request(self.options, group)

    def create(self, request: CreateRequest) -> CreateResult:
        """Create all the machines of the request or none, in one call; it is not retried here.

        With ``limit_role``, schedule their end at once, because a machine that hangs at boot has no timer.
        """
        body = decode_request(request.request, Ec2Request)
        if body.made_placement_group is not None:
            self._make_placement_group(body, body.made_placement_group)
        parameters = dict(body.run_instances)
        if body.user_data_gzip is not None:
            parameters["UserData"] = user_data_of(body)
        # botocore would repeat a refusal for lack of capacity three times before reporting it.
        client = self.clients.client("ec2", region=body.region, num_attempts=1)
        try:
            answer = ERRORS.unless_throttled(
                lambda: client.run_instances(**parameters, ClientToken=request.token)
            )
        except ERRORS.raised as error:
            # EC2 refuses a token in this way as soon as one of its machines has ended.
            if ERRORS.code_of(error) == "IdempotentInstanceTerminated" and (left := self._left_of(body)):
                return CreateResult(instances=left)
            raise self.unless_new(refusal(self.clients, error, body)) from error
        # An answer without this list is not from EC2, and does not mean that there are no machines.
        with readable("creating the machines"):
            described = answer["Instances"]
        created = self._taken_in(described)
        self._limit(created)
        return CreateResult(instances=created)

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Tag the machines with the launch's data, and each with its rank and name; safe to repeat."""
        if not instances:
            return
        client = self.clients.client("ec2")
        with ERRORS.translated("tagging the machines", {"InvalidInstanceID.NotFound": TransientError}):
            ids = [one.id for one in instances]
            for start in range(0, len(ids), MAX_IDS):
                client.create_tags(Resources=ids[start : start + MAX_IDS], Tags=tags.to_list(facts))
            for instance in instances:
                if instance.rank is not None:
                    own = {"Name": instance.node_name, tags.NODE: str(instance.rank)}
                    client.create_tags(Resources=[instance.id], Tags=tags.to_list(own))
        # The driver that created the machines may have been killed before it scheduled their end.
        self._limit(instances)

    def instances(self, request: InstancesRequest) -> InstancesResult:
        """Return the machines, including those that ended within about the last hour; see Provisioner.

        Raises:
            AuthError: the credentials belong to an account other than the job's.
        """
        self._check_account()
        wanted = (
            {"Name": "tag-key", "Values": [machinetags.JOB]}
            if request.job_id is None
            else {"Name": f"tag:{machinetags.JOB}", "Values": [request.job_id]}
        )
        listed: list[Instance] = []
        with ERRORS.translated("listing the machines"):
            pages = self.clients.client("ec2").get_paginator("describe_instances")
            for page in pages.paginate(Filters=[wanted], PaginationConfig={"PageSize": 1000}):
                with readable("listing the machines"):
                    described = [one for each in page["Reservations"] for one in each["Instances"]]
                listed += self._taken_in(described)
        return InstancesResult(instances=tuple(filter(request.wants, listed)))

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        return end_all(request.instance_ids, self._terminate, at_once=MAX_IDS)

    def console(self, instance: Instance) -> str:
        """Return the newest output, or the output that EC2 has kept; see Provisioner.

        Nitro machines return the newest output. For other types, and for ended machines, EC2 keeps the output
        of "shortly after an instance transition state" for an hour at least (EC2 API reference,
        GetConsoleOutput, checked 2026-11).
        """
        client = self.clients.client("ec2")
        with ERRORS.translated(f"reading the console of {instance.id} (ec2:GetConsoleOutput)"):
            try:
                answer = client.get_console_output(InstanceId=instance.id, Latest=True)
            except botocore.exceptions.ClientError as error:
                if ERRORS.code_of(error) != "UnsupportedOperation":
                    raise
                answer = {}
            if not answer.get("Output"):
                answer = client.get_console_output(InstanceId=instance.id)
        return str(answer.get("Output", ""))  # botocore has decoded it from base64

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Remove the job's placement groups and limits; see Provisioner."""
        if self.options.placement_group == "auto":
            client = self.clients.client("ec2")
            codes = {"InvalidPlacementGroup.InUse": TransientError}
            with ERRORS.translated("removing the job's placement groups", codes):
                own = {machinetags.JOB: job_id, machinetags.STORE: store_url}
                filters = [{"Name": f"tag:{name}", "Values": [value]} for name, value in own.items() if value]
                for group in client.describe_placement_groups(Filters=filters)["PlacementGroups"]:
                    if group["State"] in {"deleting", "deleted"}:
                        continue
                    with ignored("InvalidPlacementGroup.Unknown"):  # already gone
                        client.delete_placement_group(GroupName=group["GroupName"])
        if self.options.limit_role is not None:
            limit.remove(self.clients, job_id, store_url=store_url)

    def _left_of(self, body: Ec2Request) -> tuple[Instance, ...]:
        own = tags.from_list(body.run_instances["TagSpecifications"][0]["Tags"])
        of_job = InstancesRequest(job_id=own[machinetags.JOB], store_url=own.get(machinetags.STORE, ""))
        return tuple(
            one
            for one in self.instances(of_job).instances
            if str(one.launch) == own[machinetags.LAUNCH] and one.state is not InstanceState.ENDED
        )

    def _make_placement_group(self, body: Ec2Request, name: str) -> None:
        instance_tags = body.run_instances["TagSpecifications"][0]["Tags"]
        own = [tag for tag in instance_tags if tag["Key"] in {machinetags.JOB, machinetags.STORE}]
        client = self.clients.client("ec2", region=body.region)
        codes = {"PlacementGroupLimitExceeded": QuotaError}
        what = f"making placement group {name}"
        with ERRORS.translated(what, codes), ignored("InvalidPlacementGroup.Duplicate"):  # it already exists
            client.create_placement_group(
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=[{"ResourceType": "placement-group", "Tags": own}],
            )

    def _terminate(self, ids: Sequence[str]) -> None:
        client, left = self.clients.client("ec2"), list(ids)
        # One unknown id fails the whole call, and EC2 may name only some of the unknown ids.
        while left:
            try:
                client.terminate_instances(InstanceIds=left)
            except ERRORS.raised as error:
                refusal = ERRORS.translation(error, "terminating machines")
                if not ERRORS.code_of(error).startswith("InvalidInstanceID"):
                    raise refusal from error
                named = set(_ID.findall(str(error))) & set(left)
                if not named and len(ids) > 1:
                    raise refusal from error  # the caller then tries one id at a time
                left = [one for one in left if one not in named] if named else []
            else:
                return

    def _check_account(self) -> None:
        if self.options.account is None:
            return
        if self._account is None:
            self._account = caller(self.clients).account
        self.require_account(self.options.account, self._account)

    def _taken_in(self, described: Sequence[Mapping[str, Any]]) -> tuple[Instance, ...]:
        """Return cloudspot's machines, and note when each one's time is up."""
        with readable("reading EC2's descriptions of the machines"):
            pairs = [(to_instance(one), tags.from_list(one.get("Tags"))) for one in described]
        instances = []
        for instance, own in pairs:
            if instance is None:
                continue
            instances.append(instance)
            seconds = whole_number(own.get(machinetags.MAX_SECONDS), most=MAX_LIFE_SECONDS)
            if seconds is not None and instance.launched_at is not None:
                self._limits[instance.id] = instance.launched_at + timedelta(seconds=seconds)
        return tuple(instances)

    def _limit(self, instances: Sequence[Instance]) -> None:
        """Schedule the end of each machine, if the job's options name a role for this."""
        role = self.options.limit_role
        alive = [one for one in instances if one.state is not InstanceState.ENDED and one.id in self._limits]
        if role is not None and alive:
            limit.keep(self.clients, role, {one: self._limits[one.id] for one in alive})
