"""Deployment sets that put the nodes of a job on separate hosts (strategy ``Availability``).

A set is found by its name, which a launch's stored request contains; ECS chooses its id. Source: API
reference, CreateDeploymentSet, DeleteDeploymentSet (checked 2026-11); all error codes are from memory, except
that for a set that is not empty.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, Final

from cloudspot.errors import CloudspotError, QuotaError, TransientError
from cloudspot_aliyun.api import ask, items, read
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.errors import ERRORS
from cloudspot_aliyun.request import deployment_set_name


class _GoneError(CloudspotError):
    """The set does not exist."""


_DELETE_CODES: Final[dict[str, type[CloudspotError]]] = {
    "DependencyViolation.NotEmpty": TransientError,
    "IncorrectDeploymentSetStatus": TransientError,
    # Another driver has removed the set.
    "DeploymentSet.NotFound": _GoneError,
    "InvalidDeploymentSetId.NotFound": _GoneError,
}


def make(clients: AliyunClients, name: str, *, region: str) -> str:
    """Make the named set unless it exists; return its id.

    Raises:
        QuotaError: the account has too many sets.
        TransientError: the outcome is unknown.
    """
    found = _named(clients, name)
    if found:
        return str(found[0]["DeploymentSetId"])
    wanted = {
        "DeploymentSetName": name,
        "Strategy": "Availability",
        "OnUnableToRedeployFailedInstance": "CancelMembershipAndStart",
        # Because of the token, two concurrent controllers make only one set.
        "ClientToken": hashlib.sha256(f"{region} {name}".encode()).hexdigest()[:48],
    }
    codes = {"QuotaExceed.DeploymentSet": QuotaError}
    with ERRORS.translated(f"making deployment set {name} (providers.aliyun.deployment_set)", codes):
        return str(ask(clients, "CreateDeploymentSet", wanted, region=region)["DeploymentSetId"])


def remove(clients: AliyunClients, job_id: str, *, store_url: str) -> None:
    """Remove the job's set; safe to repeat. Raise TransientError while the set contains a machine."""
    for one in _named(clients, deployment_set_name(job_id, store_url)):
        remove_one(clients, str(one["DeploymentSetId"]))


def remove_one(clients: AliyunClients, set_id: str) -> None:
    """Remove the set with this id; safe to repeat. Raise TransientError while the set contains a machine."""
    what, wanted = "removing the job's deployment set", {"DeploymentSetId": set_id}
    with suppress(_GoneError):
        read(clients, what, "DeleteDeploymentSet", wanted, codes=_DELETE_CODES)


def _named(clients: AliyunClients, name: str) -> list[dict[str, Any]]:
    answer = read(
        clients, "looking for the deployment set", "DescribeDeploymentSets", {"DeploymentSetName": name}
    )
    # The filter also finds longer names.
    return [
        one
        for one in items(answer, "DeploymentSets", "DeploymentSet")
        if one.get("DeploymentSetName") == name
    ]
