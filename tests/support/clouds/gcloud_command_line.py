"""What stands in for gcloud, which is no dependency of the tests.

It knows the commands and options of the docs and of ``cloudspot setup gcp --print commands`` alone, and refuses all
others; it changes policies as gcloud does, by reading version 3, adding a binding and writing it back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml
from support.clouds.documented_setup import ROOT, options_of

from cloudspot_gcp.clients import endpoint
from cloudspot_gcp_sandbox.serviceusage import KNOWN

Ask = Callable[..., Any]
_FLAGS = ("uniform-bucket-level-access", "public-access-prevention")


class Gcloud:
    """Each method is a command, by its first words; ``ask(method, url, json=...)`` makes a request."""

    def __init__(self, ask: Ask, *, project: str) -> None:
        self._ask = ask
        self._project = project
        self._stdin = ""

    def run(self, arguments: Sequence[str], *, stdin: str = "") -> None:
        """Run the command with these arguments."""
        self._stdin = stdin
        words, options = options_of(list(arguments), flags=_FLAGS)
        given = {name.replace("-", "_"): one for name, one in options.items()}
        assert given.pop("project", self._project) == self._project
        for length in (3, 2):
            command = getattr(self, "_".join(words[:length]).replace("-", "_"), None)
            if command is not None:
                command(*words[length:], **given)
                return
        raise AssertionError(f"gcloud {' '.join(arguments)} is not known here")

    def logging_read(self, wanted: str, *, order: str, freshness: str, format: str) -> None:  # noqa: A002
        assert (freshness, format) == ("30d", "value(textPayload)")
        body = {
            "resourceNames": [f"projects/{self._project}"],
            "filter": wanted,
            "orderBy": f"timestamp {order}",
        }
        self._ask("POST", f"{endpoint('logging')}/v2/entries:list", json=body)

    def services_enable(self, *names: str) -> None:
        for name in names:
            assert name.removesuffix(".googleapis.com") in KNOWN
            url = f"{endpoint('serviceusage')}/v1/projects/{self._project}/services/{name}:enable"
            self._ask("POST", url, json={})

    def storage_buckets_create(
        self,
        url: str,
        *,
        location: str,
        uniform_bucket_level_access: str,
        public_access_prevention: str,
        soft_delete_duration: str,
    ) -> None:
        assert (uniform_bucket_level_access, public_access_prevention) == ("", "")
        assert soft_delete_duration == "0"
        settings = {
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "enforced",
        }
        body = {
            "name": url.removeprefix("gs://"),
            "location": location,
            "iamConfiguration": settings,
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
        }
        self._ask("POST", f"{endpoint('storage')}/storage/v1/b?project={self._project}", json=body)

    def storage_buckets_update(self, url: str, *, lifecycle_file: str) -> None:
        assert lifecycle_file == "/dev/stdin"
        bucket = url.removeprefix("gs://")
        body = {"lifecycle": json.loads(self._stdin)}
        self._ask("PATCH", f"{endpoint('storage')}/storage/v1/b/{bucket}", json=body)

    def iam_roles_create(self, name: str, **options: str) -> None:
        if "file" in options:
            role = yaml.safe_load((ROOT / options["file"]).read_text())
        else:
            role = {
                "title": options["title"],
                "description": options["description"],
                "stage": options["stage"],
                "includedPermissions": options["permissions"].split(","),
            }
        url = f"{endpoint('iam')}/v1/projects/{self._project}/roles"
        self._ask("POST", url, json={"roleId": name, "role": role})

    def iam_service_accounts_create(self, name: str) -> None:
        url = f"{endpoint('iam')}/v1/projects/{self._project}/serviceAccounts"
        self._ask("POST", url, json={"accountId": name})

    def compute_networks_create(self, name: str, *, subnet_mode: str) -> None:
        assert subnet_mode == "auto"
        url = f"{endpoint('compute')}/compute/v1/projects/{self._project}/global/networks"
        self._ask("POST", url, json={"name": name, "autoCreateSubnetworks": True})

    def compute_firewall_rules_create(
        self,
        name: str,
        *,
        network: str,
        allow: str,
        source_service_accounts: str,
        target_service_accounts: str,
    ) -> None:
        body = {
            "name": name,
            "network": f"projects/{self._project}/global/networks/{network}",
            "direction": "INGRESS",
            "allowed": [{"IPProtocol": allow}],
            "sourceServiceAccounts": source_service_accounts.split(","),
            "targetServiceAccounts": target_service_accounts.split(","),
        }
        url = f"{endpoint('compute')}/compute/v1/projects/{self._project}/global/firewalls"
        self._ask("POST", url, json=body)

    def projects_add_iam_policy_binding(self, project: str, *, condition: str, **binding: str) -> None:
        # With conditions in the policy, gcloud asks for one, or for None.
        url = f"{endpoint('cloudresourcemanager')}/v1/projects/{project}"
        policy = self._ask("POST", f"{url}:getIamPolicy", json={"options": {"requestedPolicyVersion": 3}})
        changed = _with_binding(policy, condition=_condition(condition), **binding)
        self._ask("POST", f"{url}:setIamPolicy", json={"policy": changed})

    def storage_buckets_add_iam_policy_binding(self, bucket: str, **binding: str) -> None:
        url = f"{endpoint('storage')}/storage/v1/b/{bucket.removeprefix('gs://')}/iam"
        policy = self._ask("GET", f"{url}?optionsRequestedPolicyVersion=3")
        self._ask("PUT", url, json=_with_binding(policy, **binding))

    def iam_service_accounts_add_iam_policy_binding(self, email: str, **binding: str) -> None:
        url = f"{endpoint('iam')}/v1/projects/{self._project}/serviceAccounts/{email}"
        policy = self._ask("POST", f"{url}:getIamPolicy?options.requestedPolicyVersion=3")
        self._ask("POST", f"{url}:setIamPolicy", json={"policy": _with_binding(policy, **binding)})


def _condition(text: str) -> Mapping[str, str] | None:
    """Return the condition of ``--condition``, whose fields are separated as `gcloud topic escaping` says."""
    if text == "None":
        return None
    match = re.fullmatch(r"\^(.)\^(.*)", text)
    separator, fields = (match[1], match[2]) if match else (",", text)
    return dict(one.split("=", 1) for one in fields.split(separator))


def _with_binding(
    policy: Mapping[str, Any], *, member: str, role: str, condition: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    more = {"role": role, "members": [member]} | ({} if condition is None else {"condition": condition})
    return {**policy, "bindings": [*policy.get("bindings", ()), more], "version": 3}
