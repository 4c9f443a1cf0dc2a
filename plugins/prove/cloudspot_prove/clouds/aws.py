"""AWS: recordings show names in botocore's models; calls are repeated by the names of their operations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache, cached_property
from typing import Any, ClassVar, Final

from cloudspot_prove.clouds import Cloud, public_texts_of
from cloudspot_prove.masking import Allowed
from cloudspot_prove.recording import Exchange

VALUES: Final = frozenset(
    {
        "ActivityStatus",
        "AmiLaunchIndex",
        "Architecture",
        "AssociatePublicIpAddress",
        "AvailabilityZone",
        "BootMode",
        "Code",
        "Count",
        "CpuCredits",
        "DefaultVCpus",
        "DeleteOnTermination",
        "DeviceIndex",
        "DeviceName",
        "Filters.Name",
        "HttpEndpoint",
        "HttpPutResponseHopLimit",
        "HttpTokens",
        "Hypervisor",
        "InstanceInitiatedShutdownBehavior",
        "InstanceInterruptionBehavior",
        "InstanceLifecycle",
        "InstanceMetadataTags",
        "InstanceType",
        "InstanceTypes",
        "Iops",
        "LocationType",
        "MarketType",
        "MaxCount",
        "MaxResults",
        "MinCount",
        "MostRecent",
        "ProductDescription",
        "ProductDescriptions",
        "QuotaCode",
        "RegionName",
        "ResourceType",
        "RootDeviceType",
        "ServiceCode",
        "SizeInMiB",
        "SpotInstanceType",
        "SpotPrice",
        "State.Code",
        "State.Name",
        "Status.Code",
        "Strategy",
        "SupportedArchitectures",
        "SupportedBootModes",
        "SupportedUsageClasses",
        "Throughput",
        "UsageClass",
        "VirtualizationType",
        "VolumeSize",
        "VolumeType",
        "durationBeforeInterruption",
    }
)


IDLE_SCRIPT: Final = "#!/bin/sh\nsleep 600\n"
_STATEMENT: Final = {"Effect": "Allow", "Action": "sts:AssumeRole"}
TRUST: Final = {**_STATEMENT, "Principal": {"Service": "ec2.amazonaws.com"}}
PERMISSION: Final = {**_STATEMENT, "Resource": "*"}
"""The statements of the valid documents that replace masked ones; without them, no role would be made."""


class Aws(Cloud):
    """See Cloud."""

    left_out: ClassVar[frozenset[str]] = frozenset({"logs", "s3"})
    types_option: ClassVar[str] = "instance_types"
    bill: ClassVar[str] = (
        "https://console.aws.amazon.com/costmanagement (Cost Explorer, filtered by the tag cloudspot-job; "
        "a day later)"
    )

    free: ClassVar[frozenset[str]] = frozenset(
        {"ClientToken", "ClientRequestToken", "StartTime", "UserData", "Value", "clientToken", "description"}
        | {"AssumeRolePolicyDocument", "PolicyDocument"}
    )

    def completed(self, action: str, request: Any) -> Any:
        """Add a script and policies, and convert a time to botocore's form; see Cloud."""
        if action == "DescribeSpotPriceHistory" and "StartTime" in request:
            return {**request, "StartTime": datetime.now(timezone.utc)}
        if action == "RunInstances" and "UserData" in request:
            return {**request, "UserData": IDLE_SCRIPT}
        found = dict(request)
        for name in ("AssumeRolePolicyDocument", "PolicyDocument"):
            if name in found:
                is_trust = action in {"CreateRole", "UpdateAssumeRolePolicy"}
                statement = TRUST if is_trust else PERMISSION
                found[name] = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        return found

    def allowed(self) -> Allowed:
        """Return the names in botocore's models; see Cloud."""
        return Allowed(names=_names, values=VALUES, texts=_public_texts)

    def repeat(self, exchange: Exchange) -> None:
        """Call the operation; see Cloud."""
        import botocore.exceptions
        from botocore import xform_name

        client = self._clients.client(exchange.service, num_attempts=1)
        with suppress(botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):
            getattr(client, xform_name(exchange.action))(**exchange.request)

    @cached_property
    def _clients(self) -> Any:
        from cloudspot_aws.clients import AwsClients

        return AwsClients()


@cache
def _model(service: str) -> Sequence[Mapping[str, Any]]:
    """Return all shapes of the service's model."""
    import botocore.loaders

    model = botocore.loaders.create_loader().load_service_model(service, "service-2")
    return tuple(model["shapes"].values())


@cache
def _names(service: str) -> frozenset[str]:
    """Return the members of all shapes."""
    return frozenset({name for shape in _model(service) for name in shape.get("members", ())}) | {"Error"}


@cache
def _public_texts(service: str) -> frozenset[str]:
    """Return the texts in the plugin's source and the model's lists, and the names of regions and zones."""
    import boto3.session

    session = boto3.session.Session()
    regions = [
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("ec2", partition_name=partition)
    ]
    zones = {f"{region}{letter}" for region in regions for letter in "abcdef"}
    listed = {one for shape in _model(service) for one in shape.get("enum", ())}
    ours = public_texts_of("cloudspot_aws") | public_texts_of("cloudspot.plugin")
    return frozenset({*ours, *listed, *regions, *zones})
