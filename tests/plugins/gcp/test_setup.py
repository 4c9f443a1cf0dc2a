"""``cloudspot setup gcp`` on an emulated project that has only an administrator."""

from __future__ import annotations

import shlex

import pytest
from support.clouds.gcloud_command_line import Gcloud
from support.clouds.setuptests import SetUpAccount, SetupTests, bare

from cloudspot.calls import SetupRequest
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot_gcp import permissions
from cloudspot_gcp.clients import endpoint
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp_sandbox import strict_iam
from cloudspot_gcp_sandbox.cloud import SUBMITTER, EmulatedGcp
from cloudspot_gcp_sandbox.strict_compute import PROJECT

pytestmark = pytest.mark.full

BUCKET = f"cloudspot-{PROJECT}"
NODE = f"serviceAccount:cloudspot-node@{PROJECT}.iam.gserviceaccount.com"


class GcpAccount(SetUpAccount):
    provider = "gcp"
    request = SetupRequest(grant_to=("user:ada@example.com", "group:ml@example.com"))

    def __init__(self, cloud):
        self.cloud = cloud
        self._clients = None

    def provider_with(self, **options):
        found = GcpProvider(GcpOptions(**options))
        found._clients = self._clients = self._clients or found.clients
        return found

    def setup(self):
        return self.provider_with().account_setup()

    def ask(self, method, url, **options):
        return self._clients.ask_json(method, url, **options)

    def empty(self):
        iam, compute = self.cloud.iam, self.cloud._compute
        iam._accounts = {SUBMITTER: iam._accounts[SUBMITTER]}
        iam._roles.clear()
        iam._policies = {f"projects/{PROJECT}": {"bindings": []}}
        iam._granted_at.clear()
        iam._made_at.clear()
        self.cloud.storage.buckets._buckets.clear()
        self.cloud.storage.foreign_buckets.clear()
        self.cloud.services.enabled.clear()
        compute._writes.networks.rules.clear()
        compute.site.networks = ["global/networks/default"]
        compute.site.subnetworks = {}
        self.cloud.faults.denied.clear()

    def contents(self):
        iam, compute = self.cloud.iam, self.cloud._compute
        return {
            "roles": {
                name: sorted(one["includedPermissions"])
                for name, one in iam._roles.items()
                if not one.get("deleted")
            },
            "accounts": sorted(iam._accounts),
            "policies": {
                where: {
                    (one["role"], member, str(sorted(one.get("condition", {}).items())))
                    for one in policy["bindings"]
                    for member in one["members"]
                }
                for where, policy in iam._policies.items()
                if policy.get("bindings")
            },
            "buckets": {
                one.name: (one.fields["location"], one.fields["iamConfiguration"], one.fields["lifecycle"])
                for one in self.cloud.storage.buckets._buckets.values()
            },
            "networks": list(compute.site.networks),
            "rules": {
                name: (one["allowed"], one["sourceServiceAccounts"], one["targetServiceAccounts"])
                for name, one in compute._writes.networks.rules.items()
            },
        }


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        # An account and a grant are known at once: otherwise each test waits for seconds.
        patch.setattr(strict_iam, "LAG_SECONDS", 0.0)
        cloud = EmulatedGcp()
        with bare(cloud, tmp_path_factory.mktemp("cloud")):
            yield GcpAccount(cloud)


@pytest.fixture
def account(emulated, tmp_path, monkeypatch):
    emulated.begin(tmp_path / "state", monkeypatch)
    return emulated


class TestSetup(SetupTests):
    pass


def test_the_printed_commands_make_what_the_setup_makes(account):
    account.make()
    whole = account.contents()
    account.empty()
    account.record().path.unlink()
    gcloud = Gcloud(account.ask, project=PROJECT)
    for part in account.setup().parts(account.request):
        for line in part.commands:
            words = shlex.split(line)
            start = words.index("gcloud")
            assert words[:start] in ([], ["echo", words[1], "|"])
            gcloud.run(words[start + 1 :], stdin=words[1])
    assert account.contents() == whole
    assert {*account.plans().values()} == {"adopt"}


def test_nothing_is_looked_at_where_its_api_is_off(account):
    assert account.cloud.services.enabled == set()
    assert {one.plan.value for one in account.look()} == {"make"}
    account.make()
    assert {"compute", "storage", "iam", "cloudfunctions"} <= account.cloud.services.enabled


def test_a_bucket_of_the_expected_name_that_a_stranger_has_is_refused(account):
    account.make()
    account.record().path.unlink()
    account.cloud.storage.foreign_buckets.add(BUCKET)
    assert account.refusals()["bucket"] == (
        "it belongs to another project, or you may not look at it: choose another with --store",
    )


def test_a_bucket_that_others_can_read_is_refused(account):
    account.make()
    account.record().path.unlink()
    url = f"{endpoint('storage')}/storage/v1/b/{BUCKET}"
    account.ask("PATCH", url, json={"iamConfiguration": {"publicAccessPrevention": "inherited"}})
    policy = account.ask("GET", f"{url}/iam?optionsRequestedPolicyVersion=3")
    open_to_all = {"role": f"projects/{PROJECT}/roles/cloudspot_bucket", "members": ["allUsers"]}
    account.ask("PUT", f"{url}/iam", json={**policy, "bindings": [*policy["bindings"], open_to_all]})
    (*settings, policy_line) = account.refusals()["bucket"]
    assert "it may be made public" in settings
    assert policy_line == f"it gives projects/{PROJECT}/roles/cloudspot_bucket to allUsers"


def test_a_role_that_grants_more_is_refused_and_one_that_grants_less_is_adopted(account):
    account.make()
    account.record().path.unlink()
    role = account.cloud.iam._roles[f"projects/{PROJECT}/roles/cloudspot_node"]
    role["includedPermissions"].append("compute.instances.delete")
    assert account.refusals()["role"] == ("it grants compute.instances.delete",)
    role["includedPermissions"] = ["logging.logEntries.list"]
    found = next(one for one in account.look() if one.part.name == "cloudspot_node")
    assert (found.plan.value, found.state.lacks) == (
        "adopt",
        ("it does not grant logging.logEntries.create",),
    )


def test_what_was_changed_of_its_own_is_mended(account):
    account.make()
    whole = account.contents()
    account.cloud.iam._roles[f"projects/{PROJECT}/roles/cloudspot_node"]["includedPermissions"] = []
    url = f"{endpoint('storage')}/storage/v1/b/{BUCKET}"
    account.ask("PATCH", url, json={"lifecycle": {"rule": []}})
    assert {one.name for one in account.make()} == {"cloudspot_node", BUCKET}
    assert account.contents() == whole


def test_a_role_that_was_deleted_is_taken_back(account):
    account.make()
    whole = account.contents()
    account.remove()
    account.make()
    assert account.contents() == whole


def test_a_rule_of_the_network_that_lets_others_in_is_refused(account):
    account.make()
    rules = account.cloud._compute._writes.networks.rules
    rules["ssh"] = {**rules["cloudspot-nodes"], "name": "ssh", "sourceRanges": ["0.0.0.0/0"]}
    del rules["ssh"]["sourceServiceAccounts"]
    try:
        assert account.refusals()["firewall rule"] == ("rule ssh lets in 0.0.0.0/0",)
    finally:
        del rules["ssh"]


def test_machines_end_themselves_under_the_condition_and_a_grant_without_it_is_refused(account):
    account.make()
    account.record().path.unlink()
    bindings = account.cloud.iam._policies[f"projects/{PROJECT}"]["bindings"]
    (found,) = [one for one in bindings if one["role"].endswith("cloudspot_self_end")]
    assert found["condition"] == permissions.self_end_condition()
    del found["condition"]
    assert account.refusals()["grant"] == ("it holds for all machines, not only for cloudspot's",)


@pytest.mark.parametrize("whom", ["allUsers", "allAuthenticatedUsers", "ada@example.com", "projectOwner:p"])
def test_rights_are_given_to_nobody_unknown(account, whom):
    with pytest.raises(SpecError, match="write user:ADDRESS"):
        account.setup().parts(SetupRequest(grant_to=(whom,)))


def test_a_budget_is_the_billing_accounts(account):
    with pytest.raises(SpecError, match=r"gcloud billing budgets create .* --budget-amount=50 "):
        account.setup().parts(SetupRequest(monthly_limit=50.0, warn="ada@example.com"))


def test_with_a_network_of_ones_own_none_is_made(account):
    setup = account.provider_with(network="train").account_setup()
    kinds = {one.kind for one in setup.parts(account.request)}
    assert not kinds & {"network", "firewall rule"}
    assert "network" not in setup.settings(account.request).options


def test_a_missing_right_says_who_can_make_it(account):
    account.cloud.faults.denied.add("iam.roles.create")
    with pytest.raises(AuthError, match=r"making role cloudspot_submitter: .* run this as an administrator"):
        account.make()


def test_a_name_that_was_taken_between_the_look_and_the_call_is_an_error_that_names_it(account):
    found = account.look()
    account.cloud.storage.buckets.make(BUCKET, project="another")
    account.cloud.storage.foreign_buckets.add(BUCKET)
    with pytest.raises(CloudspotError, match=f"bucket {BUCKET}: somebody else has just taken the name"):
        account.make(found)
