"""An emulated IAM: service accounts, custom roles, and policies.

Policies belong to the project, the accounts, the buckets and the Cloud Run services. New accounts and new
grants are unknown for a few seconds; on Google's services, for minutes.

Source: IAM API reference; "Allow policies and role bindings" (etags, versions, conditions in version 1);
    "Create and manage custom roles" (a deleted role's id cannot be reused); checked 2026-11, the refusals'
    wording is from memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot_gcp_sandbox.apierror import ApiError, invalid
from cloudspot_gcp_sandbox.discovery import Matched
from cloudspot_gcp_sandbox.guardedapi import GuardedApi
from cloudspot_gcp_sandbox.identities import Identities, ServiceAccount
from cloudspot_gcp_sandbox.objects import PROJECT_NUMBER
from cloudspot_gcp_sandbox.wsgi import Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

LAG_SECONDS: Final = 3.0
"""How long a new account is unknown to policies, and how long a new grant has no effect."""
PREDEFINED: Final[Mapping[str, frozenset[str]]] = {
    "roles/iam.serviceAccountUser": frozenset({"iam.serviceAccounts.actAs", "iam.serviceAccounts.get"}),
    "roles/run.invoker": frozenset({"run.routes.invoke"}),
}
_ACCOUNT_ID: Final = re.compile(r"[a-z](?=.{5,29}$)[-a-z0-9]*[a-z0-9]")
_ROLE_ID: Final = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_PERMISSION: Final = re.compile(r"[a-z]+\.[a-zA-Z]+\.[a-zA-Z]+")
_PATHS: Final = (
    (re.compile(r"/v1/projects/[^/:]+/(?:serviceAccounts|roles)(?:[/:].*)?"), "iam.v1"),
    (re.compile(r"/v1/projects/[^/:]+(?::(?:get|set)IamPolicy)?"), "cloudresourcemanager.v1"),
    (re.compile(r"/v2/projects/[^/]+/locations/[^/]+/services/[^/]+:(?:get|set)IamPolicy"), "run.v2"),
    (re.compile(r"/storage/v1/b/[^/]+/iam"), "storage.v1"),
)


class StrictIam:
    """WSGI middleware; requests to other services reach ``app`` unchanged. Thread-safe.

    The other services ask it what accounts are allowed to do, so ``app`` is set after they have been created.
    """

    app: WSGIApplication
    url: str = ""
    """The service's URL, which keys contain for the token endpoint."""

    def __init__(
        self,
        *,
        project: str,
        faults: Faults,
        identities: Identities,
        buckets: Iterable[str],
        accounts: Iterable[str],
        machines: str | None,
        has_bucket: Callable[[str], bool] = lambda _name: False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Start with these buckets and accounts.

        ``has_bucket`` returns whether a bucket was made later. ``machines`` is the account of the nodes,
        which has the grant in docs/gcp.md; if it is None, no account has a grant.
        """
        self._project = project
        self._identities = identities
        self._has_bucket = has_bucket
        self._now = now
        self._lock = threading.RLock()
        self._accounts = {one: self._account_value(one, "", "") for one in accounts}
        self._made_at: dict[str, float] = {}
        """When each account was made, if it was made through the API."""
        self._roles: dict[str, dict[str, Any]] = {}
        self._policies: dict[str, dict[str, Any]] = {f"projects/_/buckets/{one}": {} for one in buckets}
        self._granted_at: dict[tuple[str, str, str], float] = {}
        bindings = [] if machines is None else [_self_end(project, machines)]
        self._policies[f"projects/{project}"] = {"bindings": bindings}
        for one in self._accounts:
            self._policies[self._account_path(one)] = {}
        resource = "projects.serviceAccounts"
        methods = {
            f"iam.{resource}.create": self._create_account,
            f"iam.{resource}.get": self._get_account,
            f"iam.{resource}.list": self._list_accounts,
            f"iam.{resource}.delete": self._delete_account,
            f"iam.{resource}.getIamPolicy": self._get_policy,
            f"iam.{resource}.setIamPolicy": self._set_policy,
            f"iam.{resource}.keys.create": self._create_key,
            "iam.projects.roles.create": self._create_role,
            "iam.projects.roles.get": self._get_role,
            "iam.projects.roles.undelete": self._undelete_role,
            "cloudresourcemanager.projects.get": self._get_project,
            "iam.projects.roles.list": self._list_roles,
            "iam.projects.roles.patch": self._patch_role,
            "iam.projects.roles.delete": self._delete_role,
            "cloudresourcemanager.projects.getIamPolicy": self._get_policy,
            "cloudresourcemanager.projects.setIamPolicy": self._set_policy,
            "run.projects.locations.services.getIamPolicy": self._get_policy,
            "run.projects.locations.services.setIamPolicy": self._set_policy,
            "storage.buckets.getIamPolicy": self._get_policy,
            "storage.buckets.setIamPolicy": self._set_policy,
        }
        self._apis = {
            name: GuardedApi(name, methods, faults=faults, identities=identities, grants=self)
            for _, name in _PATHS
        }

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request.of(environ)
        name = next((name for path, name in _PATHS if path.fullmatch(request.path)), None)
        # Another service signs on behalf of accounts.
        if name is None or request.path.endswith(":signBlob"):
            return self.app(environ, start_response)
        return self._apis[name].answer(request).send(start_response)

    # --- for the other services ---------------------------------------------------------------------

    def exists(self, email: str) -> bool:
        """Return whether the account exists and is known to the other services."""
        with self._lock:
            return email in self._accounts and self._now() >= self._made_at.get(email, 0.0) + LAG_SECONDS

    def lacks(self, email: str, right: str, resource: str) -> bool:
        """Return whether an account made through the API was not granted the permission; see Grants."""
        return email in self._made_at and not self.has(email, right, resource)

    def has(self, email: str, right: str, resource: str) -> bool:
        """Return whether an unconditional grant gives the permission on the resource; see Grants."""
        if "@" in resource and "/" not in resource:
            resource = self._account_path(resource)
        member, now = f"serviceAccount:{email}", self._now()
        with self._lock:
            if email not in self._accounts:
                return False
            for where, policy in self._policies.items():
                if where != f"projects/{self._project}" and where != "/".join(
                    resource.split("/")[: where.count("/") + 1]
                ):
                    continue
                for binding in policy.get("bindings", ()):
                    since = self._granted_at.get((where, binding["role"], member), now)
                    if (
                        member in binding["members"]
                        and "condition" not in binding
                        and now >= since + LAG_SECONDS
                        and right in self._permissions(binding["role"])
                    ):
                        return True
        return False

    def add_service(self, path: str) -> None:
        """Give a Cloud Run service a policy."""
        with self._lock:
            self._policies.setdefault(path, {})

    def remove_service(self, path: str) -> None:
        """Remove a service's policy."""
        with self._lock:
            self._policies.pop(path, None)

    def left(self, text: str) -> list[str]:
        """Return the names of all accounts, roles and grants that contain this word."""
        with self._lock:
            leftovers = [one for one in self._accounts if text in one]
            leftovers += [
                one["title"] for one in self._roles.values() if text in one["title"] and not _is_deleted(one)
            ]
            for where, policy in self._policies.items():
                for one in policy.get("bindings", ()):
                    leftovers += [f"{member} on {where}" for member in one["members"] if text in member]
        return sorted(leftovers)

    def _permissions(self, role: str) -> frozenset[str]:
        own = self._roles.get(role, {})
        return PREDEFINED.get(role) or frozenset(
            () if _is_deleted(own) else own.get("includedPermissions", ())
        )

    # --- accounts -----------------------------------------------------------------------------------

    def _account_path(self, email: str) -> str:
        return f"projects/{self._project}/serviceAccounts/{email}"

    def _account_value(self, email: str, shown: str, described: str) -> dict[str, Any]:
        number = str(10**20 + int.from_bytes(secrets.token_bytes(7), "big"))
        account = {
            "name": self._account_path(email),
            "projectId": self._project,
            "uniqueId": number,
            "email": email,
            "oauth2ClientId": number,
            "etag": "MDEwMjE5MjA=",
        }
        return account | {
            key: text for key, text in (("displayName", shown), ("description", described)) if text
        }

    def _create_account(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        name, wanted = body.get("accountId", ""), body.get("serviceAccount", {})
        if matched.path["name"] != f"projects/{self._project}":
            raise ApiError(404, "notFound", f"Unknown project {matched.path['name']}.")
        if _ACCOUNT_ID.fullmatch(name) is None:
            raise invalid(f"Invalid service account ID: {name!r}", field="account_id")
        if not wanted.keys() <= {"displayName", "description"}:
            raise invalid("Only display_name and description are user assignable.")
        if len(wanted.get("description", "").encode()) > 256:
            raise invalid("Service account description must be at most 256 bytes.")
        email = f"{name}@{self._project}.iam.gserviceaccount.com"
        with self._lock:
            if email in self._accounts:
                raise ApiError(409, "alreadyExists", f"Service account {name} already exists within project.")
            account = self._account_value(email, wanted.get("displayName", ""), wanted.get("description", ""))
            self._accounts[email] = account
            self._made_at[email] = self._now()
            self._policies[self._account_path(email)] = {}
        return account

    def _find_account(self, matched: Matched) -> dict[str, Any]:
        email = matched.path["name"].rpartition("/")[2]
        with self._lock:
            if email not in self._accounts:
                raise ApiError(404, "notFound", f"Unknown service account: {email}")
            return self._accounts[email]

    def _get_account(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        return self._find_account(matched)

    def _create_key(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        """Give the account a key, which only this response contains."""
        account = self._find_account(matched)
        made = ServiceAccount.make(account["email"], project=self._project)
        self._identities.add(made)
        file = made.key_file(f"{self.url}/token")
        return {
            "name": f"{account['name']}/keys/{made.key_id}",
            "privateKeyType": "TYPE_GOOGLE_CREDENTIALS_FILE",
            "keyAlgorithm": "KEY_ALG_RSA_2048",
            "privateKeyData": base64.b64encode(json.dumps(file).encode()).decode(),
        }

    def _list_accounts(self, _matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            return {"accounts": list(self._accounts.values())}

    def _delete_account(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        email = self._find_account(matched)["email"]
        with self._lock:
            del self._accounts[email]
            self._policies.pop(self._account_path(email), None)
            # The account's grants stay, for an account that can never return, even under the same name.
            for policy in self._policies.values():
                for binding in policy.get("bindings", ()):
                    binding["members"] = [
                        f"deleted:{member}?uid=1" if member == f"serviceAccount:{email}" else member
                        for member in binding["members"]
                    ]
        return {}

    # --- roles --------------------------------------------------------------------------------------

    def _create_role(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        name, wanted = body.get("roleId", ""), body.get("role", {})
        if _ROLE_ID.fullmatch(name) is None:
            raise invalid(f"The role_id {name!r} is not valid.")
        self._check_permissions(wanted)
        full = f"{matched.path['parent']}/roles/{name}"
        with self._lock:
            known = self._roles.get(full)
            if known is not None:
                message = (
                    f"You can't create a role with role_id ({name}) where there is an existing role with "
                    "that role_id in a deleted state."
                    if _is_deleted(known)
                    else f"A role named {name} in {matched.path['parent']} already exists."
                )
                status = 400 if _is_deleted(known) else 409
                raise ApiError(
                    status, "failedPrecondition" if _is_deleted(known) else "alreadyExists", message
                )
            self._roles[full] = {**wanted, "name": full, "etag": _etag()}
            return dict(self._roles[full])

    def _list_roles(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        size, start = matched.query.get("pageSize", 300), int(matched.query.get("pageToken", 0) or 0)
        if size > 1000:
            raise invalid("page_size must be at most 1000.")
        with self._lock:
            shown = [one for one in self._roles.values() if not _is_deleted(one)]
        page = shown[start : start + size]
        if matched.query.get("view") != "FULL":
            page = [{key: one[key] for key in one if key != "includedPermissions"} for one in page]
        more = {"nextPageToken": str(start + size)} if start + size < len(shown) else {}
        return {"roles": page, **more}

    def _get_role(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            role = self._roles.get(matched.path["name"])
            if role is None:
                raise ApiError(404, "notFound", f"The role named {matched.path['name']} was not found.")
            return dict(role)

    def _undelete_role(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            role = self._roles.get(matched.path["name"])
            if role is None or not _is_deleted(role):
                raise ApiError(400, "failedPrecondition", "The role is not deleted.")
            del role["deleted"]
            return dict(role)

    def _patch_role(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        mask = str(matched.query.get("updateMask", "")).split(",")
        with self._lock:
            role = self._find_role(matched.path["name"])
            changed = {field: body[field] for field in mask if field in body}
            self._check_permissions({**role, **changed})
            role.update(changed)
            return dict(role)

    def _delete_role(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            role = self._find_role(matched.path["name"])
            role["deleted"] = True
            return dict(role)

    def _find_role(self, name: str) -> dict[str, Any]:
        role = self._roles.get(name)
        if role is None or _is_deleted(role):
            raise ApiError(404, "notFound", f"The role named {name} was not found.")
        return role

    def _check_permissions(self, role: Mapping[str, Any]) -> None:
        for permission in role.get("includedPermissions", ()):
            # This permission exists only for organizations.
            if _PERMISSION.fullmatch(permission) is None or permission == "resourcemanager.projects.list":
                raise invalid(f"Permission {permission} is not valid.", field="permissions")
        if len(role.get("title", "").encode()) > 100:
            raise invalid("The role title must be at most 100 bytes.")

    def _get_project(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        if matched.path["projectId"] != self._project:
            raise ApiError(403, "forbidden", "The caller does not have permission")
        return {
            "projectId": self._project,
            "projectNumber": PROJECT_NUMBER,
            "lifecycleState": "ACTIVE",
            "name": self._project,
        }

    # --- policies -----------------------------------------------------------------------------------

    def _policy(self, matched: Matched) -> tuple[str, dict[str, Any]]:
        path = matched.path
        where = path.get("resource", "")
        if "bucket" in path:
            where = f"projects/_/buckets/{path['bucket']}"
        elif "/" not in where:
            where = f"projects/{where}"
        with self._lock:
            if self._has_bucket(path.get("bucket", "")):
                self._policies.setdefault(where, {})
            if where not in self._policies:
                raise ApiError(404, "notFound", f"Resource {where!r} was not found.")
            return where, self._policies[where]

    def _get_policy(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        asked = body.get("options", {}).get("requestedPolicyVersion")
        for name in ("options.requestedPolicyVersion", "optionsRequestedPolicyVersion"):
            asked = matched.query.get(name, asked)
        with self._lock:
            _, policy = self._policy(matched)
            bindings = [dict(binding) for binding in policy.get("bindings", ())]
        conditional = [binding for binding in bindings if "condition" in binding]
        if asked != 3:
            # If version 3 is not requested, conditions are replaced by names, and cannot be written back.
            for binding in conditional:
                digest = secrets.token_hex(10)
                binding["role"] = f"{binding['role']}_withcond_{digest}"
                del binding["condition"]
        version = 3 if conditional and asked == 3 else 1
        found = {"bindings": bindings} if bindings else {}
        return {"version": version, "etag": _etag_of(policy), **found}

    def _set_policy(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        wanted = body if "bucket" in matched.path else body.get("policy", {})
        with self._lock:
            where, policy = self._policy(matched)
            if "etag" not in wanted:
                raise invalid(
                    "The emulated IAM accepts a policy only with the etag of the policy that it replaces."
                )
            if wanted["etag"] != _etag_of(policy):
                text = "There were concurrent policy changes. Please retry the whole read-modify-write."
                raise ApiError(409, "aborted", text)
            before = policy.get("bindings", [])
            is_conditional = any("condition" in binding for binding in (*before, *wanted.get("bindings", ())))
            if is_conditional and wanted.get("version") != 3:
                raise invalid(
                    "Specified policy version must be 3, since there are role bindings with conditions."
                )
            for binding in wanted.get("bindings", ()):
                self._check_binding(binding, before)
            had = {(binding["role"], member) for binding in before for member in binding["members"]}
            for binding in wanted.get("bindings", ()):
                for member in binding["members"]:
                    if (binding["role"], member) not in had:
                        self._granted_at[where, binding["role"], member] = self._now()
            policy["bindings"] = [dict(binding) for binding in wanted.get("bindings", ())]
            return {
                "version": wanted.get("version", 1),
                "etag": _etag_of(policy),
                "bindings": policy["bindings"],
            }

    def _check_binding(self, binding: Mapping[str, Any], before: Iterable[Mapping[str, Any]]) -> None:
        role = binding["role"]
        is_old = any(one["role"] == role for one in before)
        if not binding.get("members"):
            raise invalid(f"The binding of {role} has no members.")
        if (
            not is_old
            and role not in PREDEFINED
            and (role not in self._roles or _is_deleted(self._roles[role]))
        ):
            raise invalid(f"Role {role} does not exist in the resource's hierarchy.")
        for member in binding["members"]:
            kind, _, email = member.partition(":")
            if kind == "serviceAccount" and not self.exists(email):
                raise invalid(f"Service account {email} does not exist.")


def _self_end(project: str, machines: str) -> dict[str, Any]:
    """Return the conditional grant in docs/gcp.md."""
    return {
        "role": f"projects/{project}/roles/cloudspot_self_end",
        "members": [f"serviceAccount:{machines}"],
        "condition": {
            "title": "machines of cloudspot's",
            "expression": "resource.type == 'compute.googleapis.com/Instance' && "
            "resource.name.extract('/instances/{name}').startsWith('cs-')",
        },
    }


def _is_deleted(role: Mapping[str, Any]) -> bool:
    return bool(role.get("deleted"))


def _etag() -> str:
    return base64.b64encode(secrets.token_bytes(8)).decode()


def _etag_of(policy: Mapping[str, Any]) -> str:
    text = json.dumps(policy, sort_keys=True).encode()
    return base64.b64encode(hashlib.sha256(text).digest()[:8]).decode()
