"""The service account that a driver runs as, and its rights: two roles of its own, and three grants of them.

Source: IAM API reference, ServiceAccount, Role, Policy ("Allow policies and role bindings": versions, etags);
"Create and manage custom roles": the id of a deleted role is taken for 37 days (checked 2026-11).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from google.api_core import exceptions as api

from cloudspot.errors import AuthError
from cloudspot.model import DriverFunction
from cloudspot.plugin.answers import moment
from cloudspot.plugin.driverinventory import DriverRest
from cloudspot.plugin.functionchecks import once_effective
from cloudspot_gcp.clients import GcpClients, endpoint
from cloudspot_gcp.options import DEFAULT_SERVICE_ACCOUNT

KNOWN_SECONDS: Final = 120.0
"""How long a new account, or a new grant, may be unknown. "Typically 2 minutes, potentially 7 minutes or
longer" for grants (IAM documentation, "Access change propagation")."""
BUCKET_PERMISSIONS: Final = (
    "storage.buckets.get",
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.list",
)
"""As docs/gcp/role-bucket.yaml."""
REAP_PERMISSIONS: Final = (
    "cloudfunctions.functions.get",
    "cloudfunctions.functions.list",
    "cloudscheduler.jobs.get",
    "compute.disks.delete",
    "compute.disks.list",
    "iam.roles.list",
    "iam.serviceAccounts.get",
)
"""What `cloudspot reap` takes besides, where the driver stands."""
NUM_TRIES: Final = 8
"""How often a policy is changed when others change it at the same time."""
_DESCRIPTION: Final = re.compile(r"cloudspot: drives the jobs of gs://(\S+?)(?: since (\S+))?")
_INVOKER: Final = "roles/run.invoker"
_ACCOUNT_USER: Final = "roles/iam.serviceAccountUser"


@dataclass(frozen=True)
class _Policy:
    """Where a resource's policy is read and written: services differ in the form."""

    read: tuple[str, str]
    write: tuple[str, str]
    is_wrapped: bool = True
    """It is written as ``{"policy": ...}``."""
    asked: Mapping[str, Any] | None = None
    """The body of the request that reads it."""


class DriverRights:
    """Makes and removes what one driver may do. Whatever is there already is brought up to date."""

    def __init__(
        self, clients: GcpClients, name: str, *, region: str, sleep: Callable[[float], None]
    ) -> None:
        """Do no I/O; ``sleep`` waits for Google to know a new account."""
        self._clients = clients
        self._name = name
        self._region = region
        self._sleep = sleep

    @property
    def email(self) -> str:
        """Return the service account's address."""
        return f"{self._name}@{self._clients.project}.iam.gserviceaccount.com"

    def make(self, function: DriverFunction, bucket: str) -> None:
        """Make the account, and grant it what a driver needs: machines, the bucket, the nodes' account."""
        self._make_account(bucket)
        role = json.loads(Path(__file__).with_name("role-driver.json").read_text(encoding="utf-8"))
        more = REAP_PERMISSIONS if function.reaps else ()
        driver = self._make_role("driver", (*role["includedPermissions"], *more), bucket)
        objects = self._make_role("bucket", BUCKET_PERMISSIONS, bucket)
        self._bind(self._project_policy(), driver)
        self._bind(_bucket_policy(bucket), objects)
        self._bind(self._account_policy(), _ACCOUNT_USER)

    def let_it_run(self) -> None:
        """Let the account, and nobody else, run the function: as it, the schedule and the trigger do."""
        self._bind(self._service_policy(), _INVOKER)

    def remove(self) -> Iterator[str]:
        """Take the grants back, then remove roles and account; yield what was there.

        The account and the roles tell the bucket, so they go last, and a removal that was cut off can be
        repeated, as can one after somebody has deleted the account.
        """
        account = self._account()
        described = [account or {}, *self._roles("driver"), *self._roles("bucket")]
        found = (_DESCRIPTION.fullmatch(str(one.get("description"))) for one in described)
        buckets = sorted({one[1] for one in found if one is not None})
        policies = [self._project_policy(), self._account_policy()]
        for policy in [*policies, *map(_bucket_policy, buckets)]:
            try:
                self._change(policy, self._without)
            except api.NotFound:  # The bucket or the nodes' account is gone, and its policy with it.
                continue
        for kind in ("driver", "bucket"):
            for role in self._roles(kind):
                self._ask("DELETE", f"{endpoint('iam')}/v1/{role['name']}")
                yield f"role {role['name'].rpartition('/')[2]}"
        if account is not None:
            self._ask("DELETE", self._account_url)
            yield f"service account {self.email}"

    def rest(self) -> DriverRest | None:
        """Return what there is of all this, as far as it is cloudspot's; None: nothing."""
        account = self._account() or {}
        roles = [*self._roles("driver"), *self._roles("bucket")]
        parts = ["service account"] if _DESCRIPTION.fullmatch(str(account.get("description"))) else []
        parts += [f"role {one['name'].rpartition('/')[2]}" for one in roles]
        found = (_DESCRIPTION.fullmatch(str(one.get("description"))) for one in roles)
        since = [at for one in found if one is not None and (at := moment(one[2])) is not None]
        return DriverRest(tuple(parts), min(since, default=None)) if parts else None

    def once_known(self, call: Callable[[], Any]) -> Any:
        """Return what ``call`` returns, as soon as Google knows the new account and what it may do.

        An AuthError says that the account lacks a right; one of the caller's own is no such error.
        """

        def is_new(error: Exception) -> bool:
            is_about_it = isinstance(error, AuthError) or "does not exist" in str(error)
            return is_about_it and self.email in str(error)

        return once_effective(
            call,
            is_new=is_new,
            kind=(api.BadRequest, api.NotFound, AuthError),
            within_seconds=KNOWN_SECONDS,
            sleep=self._sleep,
        )

    # --- the account and its roles ----------------------------------------------------------------

    @property
    def _account_url(self) -> str:
        return f"{endpoint('iam')}/v1/projects/{self._clients.project}/serviceAccounts/{self.email}"

    def _account(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._ask("GET", self._account_url)
        except api.NotFound:
            return None
        return found

    def _make_account(self, bucket: str) -> None:
        if self._account() is not None:
            return
        described = _described(bucket)
        body = {
            "accountId": self._name,
            "serviceAccount": {"displayName": self._name, "description": described},
        }
        self._ask("POST", self._account_url.rpartition("/")[0], json=body)

    def _roles(self, kind: str) -> list[dict[str, Any]]:
        """Return the driver's roles of this kind, by their title: ids cannot be used again for weeks."""
        url = f"{endpoint('iam')}/v1/projects/{self._clients.project}/roles"
        roles: list[dict[str, Any]] = []
        asked = {"view": "FULL", "pageSize": 1000}
        while True:
            answer = self._ask("GET", url, params=asked)
            roles += [one for one in answer.get("roles", ()) if one.get("title") == f"{self._name} {kind}"]
            if not answer.get("nextPageToken"):
                return roles
            asked["pageToken"] = answer["nextPageToken"]

    def _make_role(self, kind: str, permissions: Sequence[str], bucket: str) -> str:
        """Return the name of the role with these permissions."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        role = {
            "title": f"{self._name} {kind}",
            "description": f"{_described(bucket)} since {now}",
            "stage": "GA",
            "includedPermissions": sorted(permissions),
        }
        roles = self._roles(kind)
        if not roles:
            chosen = f"{self._name}_{kind}_{secrets.token_hex(4)}".replace("-", "_")
            url = f"{endpoint('iam')}/v1/projects/{self._clients.project}/roles"
            roles = [self._ask("POST", url, json={"roleId": chosen, "role": role})]
        elif sorted(roles[0].get("includedPermissions", ())) != sorted(permissions):
            url = f"{endpoint('iam')}/v1/{roles[0]['name']}"
            self._ask("PATCH", url, json=role, params={"updateMask": "includedPermissions"})
        return str(roles[0]["name"])

    # --- policies ---------------------------------------------------------------------------------

    def _bind(self, policy: _Policy, role: str) -> None:
        """Grant the account the role, unless it has it."""

        def with_it(bindings: list[dict[str, Any]]) -> list[dict[str, Any]]:
            for binding in bindings:
                if binding["role"] == role and "condition" not in binding:
                    if self._member in binding["members"]:
                        return bindings
                    others = [other for other in bindings if other is not binding]
                    return [*others, {**binding, "members": [*binding["members"], self._member]}]
            return [*bindings, {"role": role, "members": [self._member]}]

        self.once_known(lambda: self._change(policy, with_it))

    def _without(self, bindings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the bindings without the account's."""
        # Of an account that was deleted, Google keeps the grants, under this name.
        deleted = f"deleted:{self._member}?"

        def others(members: Sequence[str]) -> list[str]:
            return [one for one in members if one != self._member and not one.startswith(deleted)]

        left = [{**one, "members": others(one["members"])} for one in bindings]
        return [one for one in left if one["members"]]

    def _change(
        self, policy: _Policy, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
    ) -> None:
        """Read the policy, change its bindings and write it, again if somebody else has written meanwhile.

        Version 3 is asked for: an older one would lose the conditions of others' grants.
        """
        for left in reversed(range(NUM_TRIES)):
            read = self._ask(*policy.read, json=policy.asked)
            before = read.get("bindings", [])
            after = change(before)
            if after == before:
                return
            value = {**read, "bindings": after, "version": 3}
            try:
                self._ask(*policy.write, json={"policy": value} if policy.is_wrapped else value)
            except (api.Conflict, api.PreconditionFailed):
                if not left:
                    raise
                self._sleep(0.5)
            else:
                return

    @property
    def _member(self) -> str:
        return f"serviceAccount:{self.email}"

    def _project_policy(self) -> _Policy:
        url = f"{endpoint('cloudresourcemanager')}/v1/projects/{self._clients.project}"
        asked = {"options": {"requestedPolicyVersion": 3}}
        return _Policy(("POST", f"{url}:getIamPolicy"), ("POST", f"{url}:setIamPolicy"), asked=asked)

    def _account_policy(self) -> _Policy:
        """Return the policy of the machines' own account."""
        project = self._clients.project
        email = f"{DEFAULT_SERVICE_ACCOUNT}@{project}.iam.gserviceaccount.com"
        url = f"{endpoint('iam')}/v1/projects/{project}/serviceAccounts/{email}"
        asked = "options.requestedPolicyVersion=3"
        return _Policy(("POST", f"{url}:getIamPolicy?{asked}"), ("POST", f"{url}:setIamPolicy"))

    def _service_policy(self) -> _Policy:
        """Return the policy of the function's service, which goes when the function does."""
        where = f"projects/{self._clients.project}/locations/{self._region}/services/{self._name}"
        url = f"{endpoint('run')}/v2/{where}"
        asked = "options.requestedPolicyVersion=3"
        return _Policy(("GET", f"{url}:getIamPolicy?{asked}"), ("POST", f"{url}:setIamPolicy"))

    def _ask(self, method: str, url: str, **options: Any) -> Any:
        return self._clients.ask_json(method, url, **options)


def _described(bucket: str) -> str:
    return f"cloudspot: drives the jobs of gs://{bucket}"


def _bucket_policy(bucket: str) -> _Policy:
    url = f"{endpoint('storage')}/storage/v1/b/{bucket}/iam"
    return _Policy(("GET", f"{url}?optionsRequestedPolicyVersion=3"), ("PUT", url), is_wrapped=False)
