"""Google Cloud: recordings show names in the client's types; calls are repeated by method and path."""

from __future__ import annotations

import uuid
from functools import cache, cached_property
from typing import Any, ClassVar, Final

from cloudspot_prove.clouds import Cloud, public_texts_of
from cloudspot_prove.masking import Allowed
from cloudspot_prove.recording import Exchange

VALUES: Final = frozenset(
    {
        "acceleratorCount",
        "acceleratorType",
        "architecture",
        "automaticRestart",
        "boot",
        "code",
        "count",
        "deviceName",
        "diskSizeGb",
        "diskType",
        "errors.reason",
        "error.status",
        "family",
        "guestCpus",
        "httpErrorStatusCode",
        "instanceTerminationAction",
        "interface",
        "key",
        "kind",
        "limit",
        "machineType",
        "memoryMb",
        "metric",
        "minCount",
        "mode",
        "nanos",
        "onHostMaintenance",
        "operationType",
        "preference",
        "preemptible",
        "progress",
        "provisioningModel",
        "region",
        "seconds",
        "sizeGb",
        "status",
        "targetShape",
        "type",
        "units",
        "usageUnit",
        "zone",
    }
)
SEGMENTS: Final = frozenset(
    {
        "aggregated",
        "batch",
        "b",
        "bulkInsert",
        "cancel",
        "cloudbuild",
        "compute",
        "computeMetadata",
        "disks",
        "entries",
        "family",
        "firewalls",
        "functions",
        "generateUploadUrl",
        "get",
        "getFromFamily",
        "getIamPolicy",
        "getSerialPort",
        "global",
        "images",
        "instances",
        "jobs",
        "list",
        "locations",
        "machineTypes",
        "networks",
        "operations",
        "projects",
        "regions",
        "resourcePolicies",
        "serialPort",
        "serviceAccounts",
        "services",
        "setIamPolicy",
        "setLabels",
        "simulateMaintenanceEvent",
        "skus",
        "storage",
        "subnetworks",
        "testIamPermissions",
        "triggers",
        "v1",
        "v1beta1",
        "v2",
        "wait",
        "write",
        "zones",
    }
)
NAMED_BY: Final = frozenset({"acceleratorTypes", "family", "locations", "machineTypes", "regions", "zones"})


class Gcp(Cloud):
    """See Cloud."""

    left_out: ClassVar[frozenset[str]] = frozenset({"logging", "storage"})
    types_option: ClassVar[str] = "machine_types"
    bill: ClassVar[str] = (
        "https://console.cloud.google.com/billing (Reports, grouped by the label cloudspot-job; a day later)"
    )

    free: ClassVar[frozenset[str]] = frozenset({"requestId", "value", "pageToken", "description"})

    def own(self, kind: str) -> str | None:
        """Return the project; see Cloud."""
        return str(self._clients.project) if kind == "projects" else None

    def completed(self, action: str, request: Any) -> Any:
        """Add a request id in Compute Engine's form; see Cloud."""
        query = request["query"]
        if "requestId" in query:
            query = {**query, "requestId": str(uuid.uuid5(uuid.NAMESPACE_URL, query["requestId"]))}
        return {**request, "query": query}

    def allowed(self) -> Allowed:
        """Return the names in the client's types; see Cloud."""
        return Allowed(names=_names, values=VALUES, texts=_public_texts, segments=SEGMENTS, named_by=NAMED_BY)

    def repeat(self, exchange: Exchange) -> None:
        """Send the method and the path again; see Cloud."""
        from cloudspot_gcp.clients import TIMEOUT, endpoint

        method, _, path = exchange.action.partition(" ")
        self._clients.session().request(
            method,
            endpoint("compute") + path,  # the emulation has a single address
            params=exchange.request["query"],
            json=exchange.request["body"],
            timeout=TIMEOUT,
        )

    @cached_property
    def _clients(self) -> Any:
        from cloudspot_gcp.clients import GcpClients

        return GcpClients()


def _names(_service: str) -> frozenset[str]:
    """Return the fields of all messages of Compute Engine's client, and those of errors and operations.

    The other services have no client here, so only these names of theirs are shown.
    """
    return _compute()[0] | OTHER_NAMES


def _public_texts(_service: str) -> frozenset[str]:
    """Return the texts in the plugin's source, and the enumerated values of the client's types.

    The parts of public names, such as the default image's, are shown too: its project is not the user's.
    """
    texts = public_texts_of("cloudspot_gcp") | public_texts_of("cloudspot.plugin")
    parts = {part for one in texts if one.startswith("projects/") for part in one.split("/")}
    return texts | parts | _compute()[1]


OTHER_NAMES: Final = frozenset(
    {
        "bindings", "body", "category", "code", "createTime", "details", "displayName", "done",
        "effectiveTime",
        "entries", "errors", "error", "environment", "geoTaxonomy", "members", "message", "metadata", "name",
        "nextPageToken", "permissions", "pricingExpression", "pricingInfo", "query", "reason", "regions",
        "resourceFamily", "resourceGroup", "response", "role", "schedule", "serviceConfig", "serviceRegions",
        "skuId", "skus", "startUsageAmount", "state", "status", "tieredRates", "type", "unitPrice", "units",
        "nanos", "uri", "usageType", "usageUnit", "etag", "version", "policy", "@type", "domain",
    }
)  # fmt: skip


@cache
def _compute() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of fields and the enumerated values of Compute Engine's client."""
    from google.cloud.compute_v1.types import compute

    file = compute.Instance.pb(compute.Instance()).DESCRIPTOR.file
    fields, listed = set(), set()
    kinds = list(file.message_types_by_name.values())
    while kinds:
        kind = kinds.pop()
        kinds += kind.nested_types
        fields |= {one.json_name for one in kind.fields}
        listed |= {value.name for one in kind.enum_types for value in one.values}
    return frozenset(fields), frozenset(listed)
