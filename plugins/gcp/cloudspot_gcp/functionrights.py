"""The service account of a driver, and its permissions: two roles of its own, and three grants.

Source: IAM API reference, ServiceAccount, Role, Policy ("Allow policies and role bindings": versions, etags);
    "Create and manage custom roles": the id of a deleted role cannot be reused for 37 days (checked 2026-11).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from google.api_core import exceptions as api

from cloudspot.errors import AuthError
from cloudspot.model import DriverFunction
from cloudspot.plugin.answers import moment
from cloudspot.plugin.driverinventory import DriverRest
from cloudspot.plugin.functionchecks import once_effective
from cloudspot_gcp import permissions
from cloudspot_gcp.clients import GcpClients, endpoint
from cloudspot_gcp.iampolicies import (
    Binding,
    Change,
    Policy,
    account_policy,
    bucket_policy,
    change_policy,
    project_policy,
    with_member,
    without_member,
)
from cloudspot_gcp.options import DEFAULT_SERVICE_ACCOUNT

KNOWN_SECONDS: Final = 120.0
"""How long a new account or grant may be unknown to Google. "Typically 2 minutes, potentially 7 minutes or
longer" for grants (IAM documentation, "Access change propagation")."""
REAP_PERMISSIONS: Final = (
    "cloudfunctions.functions.get",
    "cloudfunctions.functions.list",
    "cloudscheduler.jobs.get",
    "compute.disks.delete",
    "compute.disks.list",
    "iam.roles.list",
    "iam.serviceAccounts.get",
)
"""The permissions that `cloudspot reap` needs in addition to a driver's own."""
_DESCRIPTION: Final = re.compile(r"cloudspot: drives the jobs of gs://(\S+?)(?: since (\S+))?")
_INVOKER: Final = "roles/run.invoker"
_ACCOUNT_USER: Final = "roles/iam.serviceAccountUser"


class DriverRights:
    """Makes and removes the account and the permissions of one driver.

    An existing account or permission is brought up to date.
    """

    def __init__(
        self, clients: GcpClients, name: str, *, region: str, sleep: Callable[[float], None]
    ) -> None:
        """Do no I/O; ``sleep`` is used to wait until Google knows a new account."""
        self._clients = clients
        self._name = name
        self._region = region
        self._sleep = sleep

    @property
    def email(self) -> str:
        """Return the service account's address."""
        return f"{self._name}@{self._clients.project}.iam.gserviceaccount.com"

    def make(self, function: DriverFunction, bucket: str) -> None:
        """Make the account, and grant it access to machines, to the bucket and to the nodes' account."""
        self._make_account(bucket)
        role = json.loads(Path(__file__).with_name("role-driver.json").read_text(encoding="utf-8"))
        more = REAP_PERMISSIONS if function.reaps else ()
        driver = self._make_role("driver", (*role["includedPermissions"], *more), bucket)
        objects = self._make_role("bucket", permissions.role("bucket").permissions, bucket)
        self._bind(project_policy(self._clients.project), driver)
        self._bind(bucket_policy(bucket), objects)
        self._bind(self._account_policy(), _ACCOUNT_USER)

    def let_it_run(self) -> None:
        """Let only the account run the function; the schedule and the trigger use the account for this."""
        self._bind(self._service_policy(), _INVOKER)

    def remove(self) -> Iterator[str]:
        """Revoke the grants, then remove the roles and the account; yield the name of each removed one.

        The account and the roles name the bucket, so they are removed last: a removal that was interrupted
        can be repeated, and a removal is possible after the account was deleted by hand.
        """
        account = self._account()
        described = [account or {}, *self._roles("driver"), *self._roles("bucket")]
        found = (_DESCRIPTION.fullmatch(str(one.get("description"))) for one in described)
        buckets = sorted({one[1] for one in found if one is not None})
        policies = [project_policy(self._clients.project), self._account_policy()]
        for policy in [*policies, *map(bucket_policy, buckets)]:
            try:
                self._change(policy, self._without)
            except api.NotFound:  # The bucket or the nodes' account is deleted, as is its policy.
                continue
        for kind in ("driver", "bucket"):
            for role in self._roles(kind):
                self._ask("DELETE", f"{endpoint('iam')}/v1/{role['name']}")
                yield f"role {role['name'].rpartition('/')[2]}"
        if account is not None:
            self._ask("DELETE", self._account_url)
            yield f"service account {self.email}"

    def rest(self) -> DriverRest | None:
        """Return the account and the roles that exist and are cloudspot's, or None if none exist."""
        account = self._account() or {}
        roles = [*self._roles("driver"), *self._roles("bucket")]
        parts = ["service account"] if _DESCRIPTION.fullmatch(str(account.get("description"))) else []
        parts += [f"role {one['name'].rpartition('/')[2]}" for one in roles]
        found = (_DESCRIPTION.fullmatch(str(one.get("description"))) for one in roles)
        since = [at for one in found if one is not None and (at := moment(one[2])) is not None]
        return DriverRest(tuple(parts), min(since, default=None)) if parts else None

    def once_known(self, call: Callable[[], Any]) -> Any:
        """Repeat ``call`` until Google knows the new account and its permissions; return its result.

        The call is repeated only after an error about this account; an error about the caller's own
        permissions is raised at once.
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
        """Find the driver's roles of this kind by their title, because ids cannot be reused for weeks."""
        url = f"{endpoint('iam')}/v1/projects/{self._clients.project}/roles"
        roles: list[dict[str, Any]] = []
        asked = {"view": "FULL", "pageSize": 1000}
        while True:
            answer = self._ask("GET", url, params=asked)
            roles += [one for one in answer.get("roles", ()) if one.get("title") == f"{self._name} {kind}"]
            if not answer.get("nextPageToken"):
                return roles
            asked["pageToken"] = answer["nextPageToken"]

    def _make_role(self, kind: str, wanted: Sequence[str], bucket: str) -> str:
        """Make or update the role with these permissions; return its name."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        role = {
            "title": f"{self._name} {kind}",
            "description": f"{_described(bucket)} since {now}",
            "stage": "GA",
            "includedPermissions": sorted(wanted),
        }
        roles = self._roles(kind)
        if not roles:
            chosen = f"{self._name}_{kind}_{secrets.token_hex(4)}".replace("-", "_")
            url = f"{endpoint('iam')}/v1/projects/{self._clients.project}/roles"
            roles = [self._ask("POST", url, json={"roleId": chosen, "role": role})]
        elif sorted(roles[0].get("includedPermissions", ())) != sorted(wanted):
            url = f"{endpoint('iam')}/v1/{roles[0]['name']}"
            self._ask("PATCH", url, json=role, params={"updateMask": "includedPermissions"})
        return str(roles[0]["name"])

    # --- policies ---------------------------------------------------------------------------------

    def _bind(self, policy: Policy, role: str) -> None:
        """Grant the role to the account, unless it already has it."""
        self.once_known(lambda: self._change(policy, lambda found: with_member(found, role, self._member)))

    def _without(self, bindings: Sequence[Binding]) -> list[Binding]:
        return without_member(bindings, self._member)

    def _change(self, policy: Policy, change: Change) -> None:
        change_policy(self._clients, policy, change, sleep=self._sleep)

    @property
    def _member(self) -> str:
        return f"serviceAccount:{self.email}"

    def _account_policy(self) -> Policy:
        project = self._clients.project
        return account_policy(project, f"{DEFAULT_SERVICE_ACCOUNT}@{project}.iam.gserviceaccount.com")

    def _service_policy(self) -> Policy:
        """Return the policy of the function's service, which is removed with the function."""
        where = f"projects/{self._clients.project}/locations/{self._region}/services/{self._name}"
        url = f"{endpoint('run')}/v2/{where}"
        asked = "options.requestedPolicyVersion=3"
        return Policy(("GET", f"{url}:getIamPolicy?{asked}"), ("POST", f"{url}:setIamPolicy"))

    def _ask(self, method: str, url: str, **options: Any) -> Any:
        return self._clients.ask_json(method, url, **options)


def _described(bucket: str) -> str:
    return f"cloudspot: drives the jobs of gs://{bucket}"
