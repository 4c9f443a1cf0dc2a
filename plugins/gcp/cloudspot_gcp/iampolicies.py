"""Google Cloud's allow policies: the roles of members on a project, a bucket, an account or a service.

Source: "Allow policies and role bindings" (versions, etags, conditions); IAM, Resource Manager and Cloud
Storage API references, getIamPolicy and setIamPolicy (checked 2026-11).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.api_core import exceptions as api

from cloudspot_gcp.clients import GcpClients, endpoint

NUM_TRIES: Final = 8
"""How often a change of a policy is tried if others change the policy at the same time."""
Binding = Mapping[str, Any]
"""A role, its members and, if there is one, a condition."""
Change = Callable[[Sequence[Binding]], Sequence[Binding]]


@dataclass(frozen=True)
class Policy:
    """The requests that read and write a resource's policy; services differ in their format."""

    read: tuple[str, str]
    write: tuple[str, str]
    is_wrapped: bool = True
    """Whether the policy is written as ``{"policy": ...}``."""
    asked: Mapping[str, Any] | None = None
    """The body of the request that reads the policy."""


def project_policy(project: str) -> Policy:
    """Return the policy of a project."""
    url = f"{endpoint('cloudresourcemanager')}/v1/projects/{project}"
    asked = {"options": {"requestedPolicyVersion": 3}}
    return Policy(("POST", f"{url}:getIamPolicy"), ("POST", f"{url}:setIamPolicy"), asked=asked)


def account_policy(project: str, email: str) -> Policy:
    """Return the policy of a service account."""
    url = f"{endpoint('iam')}/v1/projects/{project}/serviceAccounts/{email}"
    asked = "options.requestedPolicyVersion=3"
    return Policy(("POST", f"{url}:getIamPolicy?{asked}"), ("POST", f"{url}:setIamPolicy"))


def bucket_policy(bucket: str) -> Policy:
    """Return the policy of a bucket."""
    url = f"{endpoint('storage')}/storage/v1/b/{bucket}/iam"
    return Policy(("GET", f"{url}?optionsRequestedPolicyVersion=3"), ("PUT", url), is_wrapped=False)


def read_policy(clients: GcpClients, policy: Policy) -> Sequence[Binding]:
    """Return the bindings; raise GoogleAPICallError."""
    found: Sequence[Binding] = clients.ask_json(*policy.read, json=policy.asked).get("bindings", [])
    return found


def change_policy(
    clients: GcpClients, policy: Policy, change: Change, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Read the policy, change its bindings and write it; repeat this if another write happened in between.

    Version 3 is requested, because an older version would lose the conditions of other grants.
    """
    for left in reversed(range(NUM_TRIES)):
        read = clients.ask_json(*policy.read, json=policy.asked)
        before = read.get("bindings", [])
        after = change(before)
        if after == before:
            return
        value = {**read, "bindings": after, "version": 3}
        try:
            clients.ask_json(*policy.write, json={"policy": value} if policy.is_wrapped else value)
        except (api.Conflict, api.PreconditionFailed):
            if not left:
                raise
            sleep(0.5)
        else:
            return


def with_member(
    bindings: Sequence[Binding], role: str, member: str, condition: Mapping[str, str] | None = None
) -> Sequence[Binding]:
    """Return the bindings with the member added to this one, or ``bindings`` itself if it has it."""
    for binding in bindings:
        if binding["role"] == role and binding.get("condition") == condition:
            if member in binding["members"]:
                return bindings
            others = [other for other in bindings if other is not binding]
            return [*others, {**binding, "members": [*binding["members"], member]}]
    added = {"role": role, "members": [member]}
    return [*bindings, added if condition is None else {**added, "condition": dict(condition)}]


def without_member(bindings: Sequence[Binding], member: str, role: str | None = None) -> list[Binding]:
    """Return the bindings without the member, for one role or for all."""
    # Google keeps the grants of a deleted account under this name.
    deleted = f"deleted:{member}?"

    def others(binding: Binding) -> list[str]:
        if role not in {None, binding["role"]}:
            return list(binding["members"])
        return [one for one in binding["members"] if one != member and not one.startswith(deleted)]

    left = [{**one, "members": others(one)} for one in bindings]
    return [one for one in left if one["members"]]
