"""The commands that docs/gcp.md tells a user to run, run as written on an emulated project.

gcloud is no dependency of the tests. What stands in for it knows the commands and options of the page alone, and
refuses all others; it changes policies as gcloud does, by reading version 3, adding a binding and writing it back.
"""

import pytest
import requests
import yaml
from support.clouds.documented_setup import ROOT, documented_commands, options_of

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.wsgi_server import Server
from cloudspot_gcp_sandbox.identities import Identities, ServiceAccount
from cloudspot_gcp_sandbox.strict_iam import StrictIam
from cloudspot_gcp_sandbox.strict_logging import StrictLogging
from cloudspot_gcp_sandbox.strict_storage import StrictStorage

PROJECT = "my-project-123"
NODE = f"serviceAccount:cloudspot-node@{PROJECT}.iam.gserviceaccount.com"
HERE = {"YOU@EXAMPLE.COM": "ada@example.com", "PROJECT": PROJECT, "BUCKET": "bucket"}
"""What a user writes in place of the page's own words."""
SERVICES = {
    *("artifactregistry", "cloudbilling", "cloudbuild", "cloudfunctions", "cloudresourcemanager"),
    *("cloudscheduler", "compute", "eventarc", "iam", "logging", "pubsub", "run", "storage"),
}
"""The names of Google's services that there are, among those that cloudspot may need."""


class Gcloud:
    """Stands in for gcloud: each method is a command, by its first words."""

    def __init__(self, ask):
        self._ask = ask
        self.services = set()

    def run(self, arguments):
        words, options = options_of(arguments, flags=["uniform-bucket-level-access"])
        for length in (3, 2):
            command = getattr(self, "_".join(words[:length]).replace("-", "_"), None)
            if command is not None:
                command(*words[length:], **{name.replace("-", "_"): one for name, one in options.items()})
                return
        raise AssertionError(f"gcloud {' '.join(arguments)} is not known here")

    def config_set(self, name, value):
        assert (name, value) == ("project", PROJECT)

    def auth_application_default(self, action):
        assert action == "login"

    def logging_read(self, wanted, *, order, freshness, format):  # noqa: A002 - gcloud's word
        assert (freshness, format) == ("30d", "value(textPayload)")
        body = {"resourceNames": [f"projects/{PROJECT}"], "filter": wanted, "orderBy": f"timestamp {order}"}
        self._ask("POST", "/v2/entries:list", body)

    def services_enable(self, *names):
        found = {one.removesuffix(".googleapis.com") for one in names}
        assert all(one.endswith(".googleapis.com") for one in names)
        assert found <= SERVICES
        self.services |= found

    def storage_buckets_create(self, url, *, location, uniform_bucket_level_access, soft_delete_duration):
        assert soft_delete_duration == "0"
        body = {
            "name": url.removeprefix("gs://"),
            "location": location,
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
        }
        self._ask("POST", f"/storage/v1/b?project={PROJECT}", body)

    def iam_roles_create(self, name, *, project, file):
        role = yaml.safe_load((ROOT / file).read_text())
        self._ask("POST", f"/v1/projects/{project}/roles", {"roleId": name, "role": role})

    def iam_service_accounts_create(self, name):
        self._ask("POST", f"/v1/projects/{PROJECT}/serviceAccounts", {"accountId": name})

    def projects_add_iam_policy_binding(
        self, project, *, condition=None, condition_from_file=None, **binding
    ):
        # With conditions in the policy, gcloud asks for one, or for None.
        assert (condition == "None") != (condition_from_file is not None)
        if condition_from_file is not None:
            binding["condition"] = yaml.safe_load((ROOT / condition_from_file).read_text())
        path, three = f"/v1/projects/{project}", {"options": {"requestedPolicyVersion": 3}}
        policy = self._ask("POST", f"{path}:getIamPolicy", three)
        self._ask("POST", f"{path}:setIamPolicy", {"policy": with_binding(policy, **binding)})

    def storage_buckets_add_iam_policy_binding(self, url, **binding):
        path = f"/storage/v1/b/{url.removeprefix('gs://')}/iam"
        policy = self._ask("GET", f"{path}?optionsRequestedPolicyVersion=3")
        self._ask("PUT", path, with_binding(policy, **binding))

    def iam_service_accounts_add_iam_policy_binding(self, email, **binding):
        path = f"/v1/projects/{PROJECT}/serviceAccounts/{email}"
        policy = self._ask("POST", f"{path}:getIamPolicy?options.requestedPolicyVersion=3")
        self._ask("POST", f"{path}:setIamPolicy", {"policy": with_binding(policy, **binding)})


def with_binding(policy, *, member, role, condition=None):
    more = {"role": role, "members": [member]} | ({} if condition is None else {"condition": condition})
    return {**policy, "bindings": [*policy.get("bindings", ()), more], "version": 3}


class Project:
    """A project in which there is nothing, and what its owner asks of it."""

    def __init__(self, directory):
        faults, self.now = Faults(), 1000.0
        identities = Identities(faults=faults)
        owner = f"owner@{PROJECT}.iam.gserviceaccount.com"
        identities.add(ServiceAccount.make(owner, project=PROJECT))
        shared = {"faults": faults, "identities": identities}
        self.iam = StrictIam(
            project=PROJECT,
            buckets=["bucket"],
            accounts=[owner],
            machines=None,
            now=lambda: self.now,
            **shared,
        )
        logs = StrictLogging(identities, grants=self.iam, **shared)
        self.iam.app = StrictStorage(logs, grants=self.iam, directory=directory, **shared)
        self.server = Server(self.iam)
        self._headers = {"Authorization": f"Bearer {identities.issue(owner)}"}

    def ask(self, method, path, body=None):
        answer = requests.request(
            method, f"{self.server.url}{path}", json=body, headers=self._headers, timeout=60
        )
        assert answer.ok, answer.text
        return answer.json()

    def bindings(self, method, path, body=None):
        found = self.ask(method, path, body)
        return {
            (
                one["role"].removeprefix(f"projects/{PROJECT}/roles/"),
                *sorted(one["members"]),
                "condition" in one,
            )
            for one in found["bindings"]
        }


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    yield made
    made.server.close()


def test_the_documented_setup_makes_the_roles_and_grants_them(project):
    gcloud = Gcloud(project.ask)
    for arguments in documented_commands("docs/gcp.md", "gcloud", HERE):
        gcloud.run(arguments)
        project.now += 5.0  # a new account is unknown for a moment
    assert gcloud.services == SERVICES
    roles = project.ask("GET", f"/v1/projects/{PROJECT}/roles?view=FULL")["roles"]
    assert {one["title"] for one in roles} == {
        "cloudspot submitter", "cloudspot node", "cloudspot self-end", "cloudspot bucket", "cloudspot driver",
    }  # fmt: skip
    ada = "user:ada@example.com"
    three = {"options": {"requestedPolicyVersion": 3}}
    assert project.bindings("POST", f"/v1/projects/{PROJECT}:getIamPolicy", three) == {
        ("cloudspot_node", NODE, False),
        ("cloudspot_nodes_drive", NODE, False),
        ("cloudspot_self_end", NODE, True),
        ("cloudspot_submitter", ada, False),
    }
    assert project.bindings("GET", "/storage/v1/b/bucket/iam?optionsRequestedPolicyVersion=3") == {
        ("cloudspot_bucket", NODE, False),
        ("cloudspot_bucket", ada, False),
    }
    account = f"/v1/projects/{PROJECT}/serviceAccounts/{NODE.partition(':')[2]}"
    assert project.bindings("POST", f"{account}:getIamPolicy?options.requestedPolicyVersion=3") == {
        ("roles/iam.serviceAccountUser", NODE, False),
        ("roles/iam.serviceAccountUser", ada, False),
    }
    (bucket,) = project.ask("GET", f"/storage/v1/b?project={PROJECT}")["items"]
    assert bucket["name"] == "bucket"
