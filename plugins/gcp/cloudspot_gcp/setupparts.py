"""The parts of a Google Cloud project's setup: services, bucket, roles, account, grants and network.

Source: API references of Service Usage v1, Cloud Storage, IAM v1 and Compute Engine v1; "VPC firewall rules",
filtering by service account; "Create and manage custom roles", undelete (checked 2026-11).
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.api_core import exceptions as api

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.model import PartState
from cloudspot.plugin.setupparts import FREE, CloudPart, state_of
from cloudspot_gcp.clients import GcpClients, endpoint
from cloudspot_gcp.errors import ERRORS, NOT_ENABLED, error_of
from cloudspot_gcp.iampolicies import (
    Policy,
    bucket_policy,
    change_policy,
    read_policy,
    with_member,
    without_member,
)
from cloudspot_gcp.permissions import Role

OPERATION_SECONDS: Final = 300.0
"""How long making a network or enabling a service may take, in seconds."""
KNOWN_SECONDS: Final = 120.0
"""How long IAM may not know a new account, in seconds."""
LABEL: Final = {"cloudspot-setup": "cloudspot"}
"""The bucket's label."""
MARK: Final = "made by cloudspot setup"
"""The description of parts that cannot have labels."""
ABORT_DAYS: Final = 3
"""The age, in days, at which the parts of an unfinished upload are deleted."""


class GcpPart(CloudPart):
    """A part of one project."""

    provider = "gcp"
    errors = ERRORS
    forbids = ("organization policy", "orgpolicy", "constraints/")

    def __init__(
        self,
        clients: GcpClients,
        kind: str,
        name: str,
        purpose: str,
        *,
        cost: str = FREE,
        rights: Sequence[str] = (),
        commands: Sequence[Sequence[str]] = (),
    ) -> None:
        """Do no I/O; ``commands`` are gcloud's arguments."""
        super().__init__(kind, name, purpose, cost=cost, rights=rights, commands=[*map(_gcloud, commands)])
        self.clients = clients

    def look(self, *, is_own: bool) -> PartState:
        """Return the state of the part; if its API is off, the part does not exist."""
        with self.errors.translated(f"looking at {self.kind} {self.name}"):
            try:
                return self.state(is_own=is_own)
            except api.Forbidden as error:
                if ERRORS.code_of(error) not in NOT_ENABLED:
                    raise
                return PartState(exists=False)

    def make(self) -> None:
        """Make the part, and repeat that until a newly enabled API is known."""
        with self.explained(f"making {self.kind} {self.name}"):
            end = time.monotonic() + KNOWN_SECONDS
            while True:
                try:
                    self.create()
                except api.Forbidden as error:
                    if ERRORS.code_of(error) not in NOT_ENABLED or time.monotonic() >= end:
                        raise
                else:
                    return
                time.sleep(2.0)

    def ask(self, method: str, url: str, **options: Any) -> Any:
        """Make a request, and return its response; raise GoogleAPICallError."""
        return self.clients.ask_json(method, url, **options)

    def find(self, url: str) -> Any:
        """Return the resource at the URL, or None if it does not exist."""
        try:
            return self.ask("GET", url)
        except api.NotFound:
            return None

    def unless_there(self, method: str, url: str, **options: Any) -> Any:
        """Make a resource and return the response, or None if the resource already exists."""
        try:
            return self.ask(method, url, **options)
        except api.Conflict:
            return None

    def drop(self, url: str) -> Any:
        """Delete a resource and return the response, or None if the resource did not exist."""
        answer = self.clients.session().request("DELETE", url, timeout=60.0)
        if answer.status_code == 404:
            return None
        if not answer.ok:
            raise error_of(answer)
        return answer.json() if answer.content else {}

    def wait(self, look: Callable[[], bool], what: str, *, seconds: float = OPERATION_SECONDS) -> None:
        """Wait until ``look`` returns True.

        Raises:
            TransientError: this takes longer than ``seconds``.
        """
        end = time.monotonic() + seconds
        while not look():
            if time.monotonic() >= end:
                raise TransientError(f"{what} took longer than {seconds:.0f} s; repeat the command")
            time.sleep(1.0)


class Services(GcpPart):
    """Google's APIs that the project uses."""

    def __init__(self, clients: GcpClients, whose: str, names: Sequence[str]) -> None:
        """Do no I/O; ``whose`` names the component that uses the APIs."""
        full = [f"{one}.googleapis.com" for one in names]
        super().__init__(
            clients,
            "APIs",
            whose,
            f"must be enabled: {', '.join(names)}",
            cost="no charge by itself",
            commands=[("services", "enable", *full, f"--project={clients.project}")],
        )
        url = f"{endpoint('serviceusage')}/v1/projects/{clients.project}/services"
        self._urls = {name: f"{url}/{name}.googleapis.com" for name in names}

    def state(self, *, is_own: bool) -> PartState:
        """Return whether all APIs are enabled."""
        return PartState(exists=not self._missing())

    def create(self) -> None:
        """Enable the APIs that are off."""
        for name in self._missing():
            self.ask("POST", f"{self._urls[name]}:enable", json={})
        self.wait(lambda: not self._missing(), f"enabling the {self.kind} {self.name}")

    def delete(self) -> str:
        """Leave the APIs enabled."""
        return "stay enabled, because something else may use them by now"

    def _missing(self) -> list[str]:
        return [name for name, url in self._urls.items() if self.ask("GET", url).get("state") != "ENABLED"]


class Bucket(GcpPart):
    """A bucket without soft delete that nobody outside the project can read."""

    is_store = True

    def __init__(self, clients: GcpClients, name: str, *, location: str, members: Sequence[str]) -> None:
        """Do no I/O; ``members`` are granted access by the setup itself."""
        where = (f"gs://{name}", f"--project={clients.project}")
        super().__init__(
            clients,
            "bucket",
            name,
            "keeps all that jobs need and make; private, encrypted, and without unfinished uploads",
            cost="about 0.020 USD for each GB that it keeps, and 0.005 USD for 1,000 writes",
            commands=[
                (
                    *("storage", "buckets", "create", *where, f"--location={location}"),
                    *("--uniform-bucket-level-access", "--public-access-prevention"),
                    "--soft-delete-duration=0",
                ),
            ],
        )
        lifecycle = shlex.quote(json.dumps(self._wanted["lifecycle"]))
        update = _gcloud(("storage", "buckets", "update", where[0], "--lifecycle-file=/dev/stdin"))
        self.commands = (*self.commands, f"echo {lifecycle} | {update}")
        self._url = f"{endpoint('storage')}/storage/v1/b/{name}"
        self._location = location
        self._members = {
            *members,
            *(f"project{one}:{clients.project}" for one in ("Editor", "Owner", "Viewer")),
        }

    @property
    def _wanted(self) -> dict[str, Any]:
        rule = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": ABORT_DAYS}}
        return {
            "iamConfiguration": {
                "uniformBucketLevelAccess": {"enabled": True},
                "publicAccessPrevention": "enforced",
            },
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
            "lifecycle": {"rule": [rule]},
            "labels": LABEL,
        }

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the bucket exists, belongs to the project, and is closed to others."""
        try:
            found = self.find(self._url)
        except api.Forbidden as error:
            if ERRORS.code_of(error) in NOT_ENABLED:
                raise
            taken = "it belongs to another project, or you may not look at it: choose another with --store"
            return PartState(exists=True, excess=(taken,))
        if found is None:
            return PartState(exists=False)
        project = self.ask("GET", f"{endpoint('cloudresourcemanager')}/v1/projects/{self.clients.project}")
        if str(found.get("projectNumber")) != str(project["projectNumber"]):
            return PartState(exists=True, excess=("it belongs to another project",))
        settings = found.get("iamConfiguration", {})
        open_to = []
        if not settings.get("uniformBucketLevelAccess", {}).get("enabled"):
            open_to.append("its objects have access lists of their own")
        if settings.get("publicAccessPrevention") != "enforced":
            open_to.append("it may be made public")
        lacks = []
        if not any(
            one["action"]["type"] == "AbortIncompleteMultipartUpload"
            for one in found.get("lifecycle", {}).get("rule", ())
        ):
            lacks.append("it keeps unfinished uploads")
        if str(found.get("softDeletePolicy", {}).get("retentionDurationSeconds", "0")) != "0":
            lacks.append("it keeps, and is billed for, what was deleted")
        state = state_of(is_own=is_own, differences=open_to, lacks=lacks)
        beyond = [
            f"it gives {binding['role']} to {member}"
            for binding in read_policy(self.clients, bucket_policy(self.name))
            for member in binding["members"]
            if member not in self._members
        ]
        return PartState(exists=True, excess=(*state.excess, *beyond), lacks=state.lacks)

    def create(self) -> None:
        """Make the bucket, or correct its settings."""
        body = {"name": self.name, "location": self._location, **self._wanted}
        url = f"{endpoint('storage')}/storage/v1/b?project={self.clients.project}"
        if self.unless_there("POST", url, json=body) is None:
            if self.state(is_own=True).excess:
                raise CloudspotError(
                    f"bucket {self.name}: somebody else has just taken the name; choose another with --store"
                )
            self.ask("PATCH", self._url, json=self._wanted)

    def delete(self) -> None:
        """Delete it."""
        self.drop(self._url)


class CustomRole(GcpPart):
    """A custom role of the project."""

    def __init__(self, clients: GcpClients, role_id: str, role: Role) -> None:
        """Do no I/O; ``role_id`` is, for example, ``cloudspot_node``."""
        permissions = ",".join(role.permissions)
        super().__init__(
            clients,
            "role",
            role_id,
            role.description,
            rights=role.reasons,
            commands=[
                (
                    *("iam", "roles", "create", role_id, f"--project={clients.project}"),
                    *(f"--title={role.title}", f"--description={role.description}", "--stage=GA"),
                    f"--permissions={permissions}",
                )
            ],
        )
        self._role = role
        self._roles = f"{endpoint('iam')}/v1/projects/{clients.project}/roles"
        self._url = f"{self._roles}/{role_id}"

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the role exists, and how its permissions differ."""
        found = self.find(self._url)
        if found is None or found.get("deleted"):
            return PartState(exists=False)
        has, wanted = {*found.get("includedPermissions", ())}, {*self._role.permissions}
        return state_of(
            is_own=is_own,
            differences=[f"it grants {one}" for one in sorted(has - wanted)],
            lacks=[f"it does not grant {one}" for one in sorted(wanted - has)],
        )

    def create(self) -> None:
        """Make, undelete or update the role."""
        found = self.find(self._url)
        if found is None:
            self.unless_there("POST", self._roles, json={"roleId": self.name, "role": self._role.body()})
            return
        if found.get("deleted"):  # the id of a deleted role cannot be reused for weeks
            self.ask("POST", f"{self._url}:undelete", json={})
        mask = {"updateMask": "includedPermissions,title,description"}
        self.ask("PATCH", self._url, json=self._role.body(), params=mask)

    def delete(self) -> None:
        """Delete it."""
        found = self.find(self._url)
        if found is not None and not found.get("deleted"):
            self.drop(self._url)


class Account(GcpPart):
    """A service account."""

    def __init__(self, clients: GcpClients, name: str, purpose: str) -> None:
        """Do no I/O; ``name`` does not contain the project."""
        super().__init__(
            clients,
            "service account",
            name,
            purpose,
            commands=[("iam", "service-accounts", "create", name, f"--project={clients.project}")],
        )
        self._accounts = f"{endpoint('iam')}/v1/projects/{clients.project}/serviceAccounts"
        self._url = f"{self._accounts}/{name}@{clients.project}.iam.gserviceaccount.com"

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the account exists; its grants are separate parts."""
        return PartState(exists=self.find(self._url) is not None)

    def create(self) -> None:
        """Make it."""
        body = {"accountId": self.name, "serviceAccount": {"displayName": self.name, "description": MARK}}
        self.unless_there("POST", self._accounts, json=body)

    def delete(self) -> None:
        """Delete it."""
        self.drop(self._url)


class Grant(GcpPart):
    """The grant of a role to one member on a project, a bucket or an account."""

    def __init__(
        self,
        clients: GcpClients,
        member: str,
        role: str,
        purpose: str,
        *,
        on: str,
        policy: Policy,
        command: Sequence[str],
        condition: Mapping[str, str] | None = None,
    ) -> None:
        """Do no I/O; ``on`` names the resource for people, and ``command`` for gcloud."""
        binding = [f"--member={member}", f"--role={role}"]
        if condition is not None:
            # gcloud separates the fields at commas unless another separator is named.
            binding.append(f"--condition=^|^expression={condition['expression']}|title={condition['title']}")
        elif on == f"project {clients.project}":
            binding.append("--condition=None")
        super().__init__(
            clients,
            "grant",
            f"{role.rpartition('/')[2]} on {on} to {member}",
            purpose,
            commands=[(*command, *binding)],
        )
        self._member, self._role, self._policy, self._condition = member, role, policy, condition

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the member has the role, and whether the wanted condition is missing."""
        try:
            bindings = read_policy(self.clients, self._policy)
        except api.NotFound:
            return PartState(exists=False)
        found = [one for one in bindings if one["role"] == self._role and self._member in one["members"]]
        if not found:
            return PartState(exists=False)
        is_wider = self._condition is not None and all("condition" not in one for one in found)
        wider = ["it holds for all machines, not only for cloudspot's"] if is_wider else []
        return PartState(exists=True, excess=tuple(wider))

    def create(self) -> None:
        """Grant the role, as soon as IAM knows the account."""

        def is_known() -> bool:
            try:
                change_policy(
                    self.clients,
                    self._policy,
                    lambda found: with_member(found, self._role, self._member, self._condition),
                )
            except (api.BadRequest, api.NotFound) as error:
                if "does not exist" not in str(error) and "not found" not in str(error):
                    raise
                return False
            return True

        self.wait(is_known, f"until IAM knows {self._member}", seconds=KNOWN_SECONDS)

    def delete(self) -> None:
        """Revoke the grant."""
        try:
            change_policy(
                self.clients, self._policy, lambda found: without_member(found, self._member, self._role)
            )
        except api.NotFound:
            return


class Network(GcpPart):
    """cloudspot's own VPC network: Google's default network admits anybody at the ports of SSH and RDP."""

    def __init__(self, clients: GcpClients, name: str) -> None:
        """Do no I/O. The network has a subnetwork in each region."""
        super().__init__(
            clients,
            "network",
            name,
            "holds the machines; it has a subnetwork in each region",
            commands=[
                ("compute", "networks", "create", name, "--subnet-mode=auto", f"--project={clients.project}")
            ],
        )
        self._networks = f"{endpoint('compute')}/compute/v1/projects/{clients.project}/global/networks"
        self._url = f"{self._networks}/{name}"

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the network exists; its firewall rule is a separate part."""
        found = self.find(self._url)
        if found is None:
            return PartState(exists=False)
        lacks = () if found.get("autoCreateSubnetworks") else ("it has no subnetwork in each region",)
        return PartState(exists=True, lacks=lacks)

    def create(self) -> None:
        """Make the network, and wait until it exists."""
        body = {"name": self.name, "description": MARK, "autoCreateSubnetworks": True}
        self.unless_there("POST", self._networks, json=body)
        self.wait(lambda: self.find(self._url) is not None, f"making network {self.name}")

    def delete(self) -> None:
        """Delete the network, and wait until its name can be used again."""
        self.drop(self._url)
        self.wait(lambda: self.find(self._url) is None, f"removing network {self.name}")


class Rule(GcpPart):
    """The network's only firewall rule, which lets machines with the nodes' account reach one another."""

    def __init__(self, clients: GcpClients, name: str, *, network: str, account: str) -> None:
        """Do no I/O; ``account`` is the address of the nodes' account."""
        super().__init__(
            clients,
            "firewall rule",
            name,
            "lets the nodes of a job reach one another, and nobody else reach them",
            commands=[
                (
                    *("compute", "firewall-rules", "create", name, f"--network={network}"),
                    *("--allow=tcp", f"--source-service-accounts={account}"),
                    *(f"--target-service-accounts={account}", f"--project={clients.project}"),
                )
            ],
        )
        self._project = f"{endpoint('compute')}/compute/v1/projects/{clients.project}/global"
        self._rules = f"{self._project}/firewalls"
        self._network, self._account = network, account

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the rule exists, and whether it or another rule of the network admits others."""
        listed = self.ask("GET", self._rules).get("items", ())
        ours = [one for one in listed if str(one["network"]).rpartition("/")[2] == self._network]
        others = [
            f"rule {one['name']} lets in {_sources(one)}"
            for one in ours
            if one["name"] != self.name and one.get("direction", "INGRESS") == "INGRESS" and "allowed" in one
        ]
        found = next((one for one in listed if one["name"] == self.name), None)
        if found is None:
            return PartState(exists=False, excess=tuple(others))
        differences = []
        if found.get("sourceServiceAccounts") != [self._account] or found.get("sourceRanges"):
            differences.append(f"it lets in {_sources(found)}")
        state = state_of(is_own=is_own, differences=differences)
        return PartState(exists=True, excess=(*state.excess, *others), lacks=state.lacks)

    def create(self) -> None:
        """Make the rule, and wait until it exists; replace a rule that was changed."""
        if self.state(is_own=True).lacks:
            self.delete()
        body = {
            "name": self.name,
            "description": MARK,
            "network": f"projects/{self.clients.project}/global/networks/{self._network}",
            "direction": "INGRESS",
            "allowed": [{"IPProtocol": "tcp"}],
            "sourceServiceAccounts": [self._account],
            "targetServiceAccounts": [self._account],
        }
        self.unless_there("POST", self._rules, json=body)
        self.wait(lambda: self.find(f"{self._rules}/{self.name}") is not None, f"making {self.name}")

    def delete(self) -> None:
        """Delete the rule, and wait until it no longer exists."""
        self.drop(f"{self._rules}/{self.name}")
        self.wait(lambda: self.find(f"{self._rules}/{self.name}") is None, f"removing {self.name}")


def _gcloud(arguments: Sequence[str]) -> str:
    return shlex.join(("gcloud", *arguments))


def _sources(rule: Mapping[str, Any]) -> str:
    names = ("sourceRanges", "sourceTags", "sourceServiceAccounts")
    found = [str(one) for name in names for one in rule.get(name, ())]
    return ", ".join(found) or json.dumps(rule.get("allowed", []))
