"""What ``test_unattended`` needs to know of each cloud that has functions: one entry a cloud.

It runs inside a sandbox, as the account's owner.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class UnattendedCloud:
    """One cloud's account."""

    let_nodes_drive: Callable[[], None]
    """Gives the nodes' role what docs has for ``nodes.drive``."""
    pythons: tuple[tuple[int, int], ...]
    """The versions that its functions may have."""
    names: Callable[[], Iterator[str]] = lambda: iter(())
    """Yields the names of all that a driver might leave in the account, where it can be listed."""
    job_settings: tuple[str, ...] = ()


def _let_aws_nodes_drive() -> None:
    import boto3

    iam, bucket = boto3.client("iam"), os.environ["CLOUDSPOT_STORE"][5:]
    plugin = ROOT / "plugins" / "aws" / "cloudspot_aws"
    for policy in (plugin / "policies" / f"policy-{name}.json" for name in ("driver", "node")):
        text = policy.read_text().replace("BUCKET", bucket)
        iam.put_role_policy(RoleName="cloudspot-node", PolicyName=policy.stem, PolicyDocument=text)


def _aws_names() -> Iterator[str]:
    import boto3

    yield from (one["RoleName"] for one in boto3.client("iam").list_roles()["Roles"])
    yield from (one["Name"] for one in boto3.client("events").list_rules()["Rules"])
    yield from (one["FunctionName"] for one in boto3.client("lambda").list_functions()["Functions"])


def _let_gcp_nodes_drive() -> None:
    role = json.loads((ROOT / "plugins" / "gcp" / "cloudspot_gcp" / "role-driver.json").read_text())
    body = {"roleId": "cloudspot_nodes_drive", "role": role}
    made = _gcp("POST", "iam", "v1/projects/PROJECT/roles", json=body)
    node = f"cloudspot-node@{os.environ['GOOGLE_CLOUD_PROJECT']}.iam.gserviceaccount.com"
    grants = (
        ("cloudresourcemanager", "v1/projects/PROJECT", made["name"]),
        ("iam", f"v1/projects/PROJECT/serviceAccounts/{node}", "roles/iam.serviceAccountUser"),
    )
    for service, resource, granted in grants:
        options: dict[str, Any] = {"params": {"options.requestedPolicyVersion": 3}}
        if service == "cloudresourcemanager":
            options = {"json": {"options": {"requestedPolicyVersion": 3}}}
        policy = _gcp("POST", service, f"{resource}:getIamPolicy", **options)
        bindings = [*policy.get("bindings", ()), {"role": granted, "members": [f"serviceAccount:{node}"]}]
        changed = {**policy, "bindings": bindings, "version": 3}
        _gcp("POST", service, f"{resource}:setIamPolicy", json={"policy": changed})


def _gcp_names() -> Iterator[str]:
    here = "projects/PROJECT/locations/us-central1"
    accounts = _gcp("GET", "iam", "v1/projects/PROJECT/serviceAccounts")
    yield from (one["email"] for one in accounts.get("accounts", ()))
    roles = _gcp("GET", "iam", "v1/projects/PROJECT/roles")
    yield from (one["name"] for one in roles.get("roles", ()) if "cloudspot_driver_" in one["name"])
    yield from (
        one["name"] for one in _gcp("GET", "cloudfunctions", f"v2/{here}/functions").get("functions", ())
    )
    yield from (one["name"] for one in _gcp("GET", "cloudscheduler", f"v1/{here}/jobs").get("jobs", ()))
    policy = _gcp(
        "POST", "cloudresourcemanager", "v1/projects/PROJECT:getIamPolicy",
        json={"options": {"requestedPolicyVersion": 3}},
    )  # fmt: skip
    yield from (member for one in policy.get("bindings", ()) for member in one["members"])


def _let_aliyun_nodes_drive() -> None:
    bucket = os.environ["CLOUDSPOT_STORE"].removeprefix("oss://").partition("/")[0]
    policies = ROOT / "plugins" / "aliyun" / "cloudspot_aliyun" / "policies"
    for path in (policies / "policy-driver.json", policies / "policy-node.json"):
        text = path.read_text().replace("BUCKET", bucket)
        _ram("CreatePolicy", PolicyName=path.stem, PolicyDocument=text)
        _ram("AttachPolicyToRole", PolicyName=path.stem, PolicyType="Custom", RoleName="cloudspot-node")


def _ram(action: str, **parameters: str) -> None:
    from cloudspot_aliyun.api import ask
    from cloudspot_aliyun.clients import AliyunClients

    ask(AliyunClients(), action, parameters, product="Ram")


def _gcp(method: str, service: str, path: str, **options: Any) -> Any:
    from cloudspot_gcp.clients import GcpClients, endpoint

    clients = GcpClients()
    return clients.ask_json(
        method, f"{endpoint(service)}/{path.replace('PROJECT', clients.project)}", **options
    )


CLOUDS = {
    "aws": UnattendedCloud(
        _let_aws_nodes_drive,
        pythons=((3, 10), (3, 11), (3, 12), (3, 13), (3, 14)),
        names=_aws_names,
        job_settings=('providers.aws.instance_types=["m5.large"]',),
    ),
    "gcp": UnattendedCloud(
        _let_gcp_nodes_drive,
        pythons=((3, 10), (3, 11), (3, 12), (3, 13), (3, 14)),
        names=_gcp_names,
    ),
    "aliyun": UnattendedCloud(_let_aliyun_nodes_drive, pythons=((3, 11), (3, 12))),
}
