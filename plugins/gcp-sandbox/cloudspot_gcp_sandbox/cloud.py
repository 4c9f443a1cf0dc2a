"""The whole emulated Google Cloud, which ``cloudspot sandbox gcp`` and the tests of whole jobs start."""

from __future__ import annotations

import json
import secrets
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from cloudspot.emulation.cloud import Contrary, EmulatedMachine, MachineHost
from cloudspot.emulation.emulated_account import EmulatedAccount, common_contraries
from cloudspot.emulation.spot_plan import SpotPlan
from cloudspot.errors import SpecError
from cloudspot_gcp.metadata import HOST as METADATA_HOST
from cloudspot_gcp.metadata import SHUTDOWN_SECONDS
from cloudspot_gcp.options import DEFAULT_SERVICE_ACCOUNT
from cloudspot_gcp_sandbox.identities import Identities, ServiceAccount, write_key_file
from cloudspot_gcp_sandbox.machinetokens import MachineTokens
from cloudspot_gcp_sandbox.serviceusage import KNOWN, ServiceUsage
from cloudspot_gcp_sandbox.strict_compute import PROJECT, StrictCompute
from cloudspot_gcp_sandbox.strict_functions import StrictFunctions
from cloudspot_gcp_sandbox.strict_iam import StrictIam
from cloudspot_gcp_sandbox.strict_logging import StrictLogging
from cloudspot_gcp_sandbox.strict_scheduler import StrictScheduler
from cloudspot_gcp_sandbox.strict_storage import StrictStorage
from cloudspot_gcp_sandbox.taken import resource_of, rights_of

REGION: Final = "us-central1"
BUCKET: Final = "cloudspot-sandbox"
SUBMITTER: Final = f"submitter@{PROJECT}.iam.gserviceaccount.com"
NODE: Final = f"{DEFAULT_SERVICE_ACCOUNT}@{PROJECT}.iam.gserviceaccount.com"
PROGRAMS: Final = {"/opt/conda/bin/python": sys.executable}
"""The programs in /opt of Google's Deep Learning VMs (from memory)."""
_PATHS: Final = {
    "cloudbilling": "/",
    "cloudfunctions": "/",
    "cloudresourcemanager": "/",
    "cloudscheduler": "/",
    "compute": "/compute/v1/",
    "iam": "/",
    "iamcredentials": "/",
    "logging": "/",
    "run": "/",
    "serviceusage": "/",
    "storage": "/storage/v1/",
}
"""The path of each service's API, which gcloud expects in its variables."""
_FETCH: Final = """\
exec curl -sf -H "Metadata-Flavor: Google" "$METADATA_URL/computeMetadata/v1/instance/attributes/{}"
"""


class EmulatedGcp(EmulatedAccount):
    """One project with a bucket, the submitter's key, the nodes' account, and every service that a job uses.

    All services have one address.
    """

    name: ClassVar[str] = "gcp"
    iam: StrictIam
    functions: StrictFunctions
    scheduler: StrictScheduler
    services: ServiceUsage
    storage: StrictStorage
    # Compute Engine's notice for a machine that did not ask for a longer notice.
    notice_seconds: ClassVar[float] = SHUTDOWN_SECONDS
    shutdown_seconds: ClassVar[float] = SHUTDOWN_SECONDS
    foreign_variables: ClassVar[tuple[str, ...]] = (
        "BOTO_",
        "CLOUDSDK_",
        "GCE_METADATA_",
        "GCLOUD_",
        "GOOGLE_",
        "STORAGE_EMULATOR_HOST",
    )
    can_be_bare: ClassVar[bool] = True
    contraries: ClassVar[Mapping[str, Contrary]] = {
        **common_contraries("gcp"),
        "account-unknown": Contrary(
            "for a minute after the first launch, the machines' account does not exist", "gcp-new-account"
        ),
        "disk-without-price": Contrary("the price list has no disks", "gcp-price-of-disks"),
        "notice-refused": Contrary(
            "a launch that asks for preemptionNoticeDuration is refused", "gcp-preemption-notice"
        ),
        "request-id-forgotten": Contrary("a request's id is forgotten after 10 seconds", "gcp-request-id"),
        "self-delete-refused": Contrary("a machine may not delete itself", "gcp-self-delete"),
    }
    network: ClassVar[str] = "10.128.0.0/16"
    metadata_service: ClassVar[str] = "cloudspot_gcp_sandbox.metadata_server:GceMetadata"
    host_names: ClassVar[Mapping[str, str]] = {
        "metadata": "169.254.169.254",
        "metadata.google.internal": "169.254.169.254",
    }
    # The same steps as those of the guest agent's script runner, at each boot and each shutdown.
    fetch_user_data: ClassVar[str] = _FETCH.format("startup-script")
    fetch_shutdown_script: ClassVar[str] = _FETCH.format("shutdown-script")

    def __init__(self) -> None:
        super().__init__()
        self.faults.is_machine = _is_machine
        self._tokens = MachineTokens(secrets.token_hex(16))
        self._preempted: set[str] = set()
        """The machines whose preemption has been published to functions."""
        self._key_file = Path()
        self._gcloud = Path()

    def follow(self, plan: SpotPlan) -> None:
        """Follow a plan without prices: Google's change at most once a day; see EmulatedCloud."""
        if any(one.price is not None for one in plan.spells):
            raise SpecError("price: Google's spot prices do not change within a day")
        super().follow(plan)

    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        """Serve the project, and keep its trail in ``requests.jsonl``; see EmulatedCloud."""
        identities = Identities(faults=self.faults, machine_tokens=self._tokens)
        submitter, node = (ServiceAccount.make(email, project=PROJECT) for email in (SUBMITTER, NODE))
        identities.add(submitter)
        if not self.is_bare:
            identities.add(node)
        shared: dict[str, Any] = {"faults": self.faults, "identities": identities}
        self.iam = iam = StrictIam(
            project=PROJECT,
            buckets=[] if self.is_bare else [BUCKET],
            accounts=[SUBMITTER] if self.is_bare else [SUBMITTER, NODE],
            machines=None if self.is_bare else NODE,
            has_bucket=lambda name: storage.buckets.exists(name),  # noqa: PLW0108 - made below
            **shared,
        )
        logs = StrictLogging(identities, grants=iam, **shared)
        contents = directory / "objects"
        contents.mkdir()
        self.storage = storage = StrictStorage(logs, grants=iam, directory=contents, **shared)
        self._compute = StrictCompute(host, inner=storage, grants=iam, **shared)
        self.functions = StrictFunctions(
            self._compute,
            project=PROJECT,
            iam=iam,
            logs=logs,
            tokens=self._tokens,
            environment=self._function_environment,
            directory=directory,
            **shared,
        )
        self.scheduler = StrictScheduler(self.functions, iam=iam, functions=self.functions, **shared)
        iam.app = self.scheduler
        enabled = () if self.is_bare else KNOWN
        self.services = ServiceUsage(iam, grants=iam, enabled=enabled, **shared)
        self.serve(self.services, address=address)
        iam.url = self.url
        self._key_file = directory / "submitter.json"
        self._key_file.write_text(write_key_file(submitter, f"{self.url}/token"), encoding="utf-8")
        self._gcloud = directory / "gcloud"
        self._gcloud.mkdir()
        if not self.is_bare:
            self._make_bucket(identities.issue(SUBMITTER))
        self.begin(directory, rights=rights_of, resource=resource_of)

    def furnish(self, machine: EmulatedMachine) -> EmulatedMachine:
        """Add the seed of the service account's tokens, and the images' programs; see EmulatedCloud."""
        facts = {**machine.metadata, "token-seed": self._tokens.seed}
        return msgspec.structs.replace(machine, metadata=facts, programs=PROGRAMS)

    def environment(self) -> Mapping[str, str]:
        """Return the variables with which the project's submitter reaches it; see EmulatedCloud."""
        return {
            **self.machine_environment(),
            "GOOGLE_APPLICATION_CREDENTIALS": str(self._key_file),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "NO_GCE_CHECK": "true",
            "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE": str(self._key_file),
            "CLOUDSDK_AUTH_TOKEN_HOST": f"{self.machine_environment()['STORAGE_EMULATOR_HOST']}/token",
            "CLOUDSDK_COMPUTE_REGION": REGION,
            "CLOUDSDK_CONFIG": str(self._gcloud),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            **({} if self.is_bare else {"CLOUDSPOT_STORE": f"gs://{BUCKET}"}),
        }

    def machine_environment(self) -> Mapping[str, str]:
        """Return the endpoints' variables, which every image contains; see EmulatedCloud."""
        return _endpoints(self.url)

    def _function_environment(self) -> Mapping[str, str]:
        return _endpoints(self.functions_url)

    def metadata_environment(self, url: str) -> Mapping[str, str]:
        """Return the variables with the metadata server's address for Google's clients."""
        host = url.removeprefix("http://")
        return {METADATA_HOST: host, "GCE_METADATA_IP": host}

    def close_functions(self) -> None:
        """End all functions; see EmulatedAccount."""
        self.functions.close()

    def tick(self) -> None:
        """Carry out the schedules, and publish preemptions to functions; see EmulatedAccount."""
        self.scheduler.run_due()
        for resource, region in self._compute.preempted():
            if resource not in self._preempted:
                self._preempted.add(resource)
                self.functions.publish(resource, "compute.instances.preempted", region)

    def _make_bucket(self, token: str) -> None:
        """Make the bucket through the API, as a user would; these calls do not count as a job's."""
        body = {"name": BUCKET, "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
        request = urllib.request.Request(  # noqa: S310 # our own server
            f"{self.url}/storage/v1/b?project={PROJECT}",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            answer.read()


def _endpoints(url: str) -> dict[str, str]:
    overrides = {
        f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name.upper()}": f"{url}{path}" for name, path in _PATHS.items()
    }
    return {**overrides, "STORAGE_EMULATOR_HOST": url}


def _is_machine(email: str) -> bool:
    return email == NODE
