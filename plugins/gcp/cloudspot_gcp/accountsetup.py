"""``cloudspot setup gcp``: the parts that a Google Cloud project needs before its first job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cloudspot.calls import SetupRequest
from cloudspot.errors import SpecError
from cloudspot.interfaces import AccountSetup, SetupPart
from cloudspot.model import SetupSettings
from cloudspot_gcp import permissions
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.iampolicies import account_policy, bucket_policy, project_policy
from cloudspot_gcp.lookups import wanted_regions
from cloudspot_gcp.options import DEFAULT_SERVICE_ACCOUNT, GcpOptions
from cloudspot_gcp.setupparts import Account, Bucket, CustomRole, Grant, Network, Rule, Services

SERVICES: Final = ("cloudbilling", "cloudresourcemanager", "compute", "iam", "logging", "storage")
"""The APIs that jobs use."""
DRIVER_SERVICES: Final = (
    *("artifactregistry", "cloudbuild", "cloudfunctions", "cloudscheduler", "eventarc", "pubsub", "run"),
)
"""The additional APIs that are needed by drivers in the cloud."""
NETWORK: Final = "cloudspot"
RULE: Final = "cloudspot-nodes"
_USER: Final = "roles/iam.serviceAccountUser"
_MEMBER: Final = re.compile(r"(?:user|group|serviceAccount):[^\s,:]+@[^\s,:]+|principal(?:Set)?://\S+")


class GcpAccountSetup(AccountSetup):
    """The setup of one project."""

    def __init__(self, options: GcpOptions, clients: GcpClients) -> None:
        """Do no I/O."""
        self._options = options
        self._clients = clients

    def account(self) -> str:
        """Return the project."""
        return self._clients.project

    def parts(self, request: SetupRequest) -> Sequence[SetupPart]:
        """Return the services, bucket, roles, account, network and grants; see AccountSetup."""
        if request.monthly_limit is not None:
            raise SpecError(
                "--budget: Google's budgets belong to the billing account, not to the project; make one "
                "with: gcloud billing budgets create --billing-account=ACCOUNT --display-name=cloudspot "
                f"--budget-amount={request.monthly_limit:g} --threshold-rule=percent=1.0"
            )
        for grantee in request.grant_to:
            if _MEMBER.fullmatch(grantee) is None:
                raise SpecError(
                    f"--grant-to {grantee}: write user:ADDRESS, group:ADDRESS or serviceAccount:ADDRESS; "
                    "members such as allUsers are never accepted"
                )
        clients, project = self._clients, self._clients.project
        bucket, node = self._bucket(request), f"{DEFAULT_SERVICE_ACCOUNT}@{project}.iam.gserviceaccount.com"
        machines = f"serviceAccount:{node}"
        parts: list[SetupPart] = [
            Services(clients, "of jobs", SERVICES),
            Services(clients, "of drivers in the cloud", DRIVER_SERVICES),
            Bucket(clients, bucket, location=self._location, members=(machines, *request.grant_to)),
            *(
                CustomRole(clients, self._role_id(one), permissions.role(one))
                for one in ("submitter", "deployer", "node", "self-end", "bucket")
            ),
            Account(clients, DEFAULT_SERVICE_ACCOUNT, "is the account of the machines"),
        ]
        if self._makes_network:
            parts += [
                Network(clients, NETWORK),
                Rule(clients, RULE, network=NETWORK, account=node),
            ]
        why = "lets machines"
        parts += [
            self._on_project(machines, "node", f"{why} write the logs of jobs"),
            self._on_project(
                machines,
                "self-end",
                f"{why} delete themselves, if cloudspot has named them",
                is_conditional=True,
            ),
            self._on_bucket(machines, bucket, f"{why} use the bucket"),
        ]
        why = "lets them submit and drive jobs, as you asked with --grant-to"
        for grantee in request.grant_to:
            parts += [
                self._on_project(grantee, "submitter", why),
                self._on_project(grantee, "deployer", "lets them make drivers, as you asked with --grant-to"),
                self._on_bucket(grantee, bucket, why),
                Grant(
                    clients,
                    grantee,
                    _USER,
                    "lets them launch machines with this account, and no other",
                    on=DEFAULT_SERVICE_ACCOUNT,
                    policy=account_policy(project, node),
                    command=(
                        "iam",
                        "service-accounts",
                        "add-iam-policy-binding",
                        node,
                        f"--project={project}",
                    ),
                ),
            ]
        return parts

    def settings(self, request: SetupRequest) -> SetupSettings:
        """Return the store, and the options that name the parts that were made; see AccountSetup."""
        options = {"project": self._clients.project}
        if self._makes_network:
            options["network"] = NETWORK
        return SetupSettings(store_url=request.store_url or f"gs://{self._bucket(request)}", options=options)

    @property
    def _makes_network(self) -> bool:
        """Whether to set up cloudspot's own network, because the user has named no other."""
        return not self._options.subnetworks and self._options.network in {"default", NETWORK}

    @property
    def _location(self) -> str:
        return wanted_regions(self._options)[0]

    def _bucket(self, request: SetupRequest) -> str:
        if request.store_url is None:
            return f"cloudspot-{self._clients.project}"
        scheme, _, rest = request.store_url.partition("://")
        if scheme != "gs":
            raise SpecError(
                f"--store {request.store_url}: setup gcp makes a bucket in Cloud Storage, so the URL must "
                "be gs://BUCKET"
            )
        return rest.partition("/")[0]

    def _role_id(self, name: str) -> str:
        return f"cloudspot_{name.replace('-', '_')}"

    def _role(self, name: str) -> str:
        return f"projects/{self._clients.project}/roles/{self._role_id(name)}"

    def _on_project(self, member: str, role: str, why: str, *, is_conditional: bool = False) -> Grant:
        project = self._clients.project
        return Grant(
            self._clients,
            member,
            self._role(role),
            why,
            on=f"project {project}",
            policy=project_policy(project),
            command=("projects", "add-iam-policy-binding", project),
            condition=permissions.self_end_condition() if is_conditional else None,
        )

    def _on_bucket(self, member: str, bucket: str, why: str) -> Grant:
        return Grant(
            self._clients,
            member,
            self._role("bucket"),
            why,
            on=f"bucket {bucket}",
            policy=bucket_policy(bucket),
            command=("storage", "buckets", "add-iam-policy-binding", f"gs://{bucket}"),
        )
