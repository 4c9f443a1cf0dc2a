"""``cloudspot setup kubernetes`` on a real control plane, by an administrator."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import urllib.error

import msgspec
import pytest
from support.clouds.setuptests import SetUpAccount, SetupTests

from cloudspot.calls import SetupRequest
from cloudspot.cli.account.parts import remove
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.jobstore.jobs.state_home import HOME
from cloudspot.testing import plaincalls
from cloudspot_kubernetes import permissions
from cloudspot_kubernetes.options import KubernetesOptions, PodType
from cloudspot_kubernetes.provider import KubernetesProvider
from cloudspot_kubernetes_sandbox.build import binaries
from cloudspot_kubernetes_sandbox.controlplane import ADMIN, SUBMITTER

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
NETWORKING = "/apis/networking.k8s.io/v1"
_numbers = itertools.count(1)


class KubernetesAccount(SetUpAccount):
    provider = "kubernetes"
    request = SetupRequest(grant_to=(f"user:{SUBMITTER}", "group:ml", "serviceaccount:ops:cron"))

    def __init__(self, plane, directory):
        self.plane, self.directory = plane, directory
        self.name = ""
        self.empty()

    def provider_as(self, user, **options):
        path = self.plane.write_kubeconfig(self.directory / f"{user}.kubeconfig", user)
        fields = {"namespace": self.name, "kubeconfig": str(path), **options}
        return KubernetesProvider(KubernetesOptions(**fields))

    def setup(self):
        return self.provider_as(ADMIN, watch_taints=True).account_setup()

    def empty(self):
        """Take another namespace, and let the cluster clear the last one away in its own time."""
        for kind in ("clusterrolebindings", "clusterroles"):
            for one in self._ours(f"{RBAC}/{kind}"):
                self.plane.request("DELETE", f"{RBAC}/{kind}/{one['metadata']['name']}")
        with contextlib.suppress(urllib.error.HTTPError):
            self.plane.request("DELETE", f"/api/v1/namespaces/{self.name}")
        self.name = f"setup-{os.getpid()}-{next(_numbers)}"

    def contents(self):
        found = {
            kind: self._shown(f"{RBAC}/{kind}", *parts)
            for kind, parts in (("clusterroles", ["rules"]), ("clusterrolebindings", ["roleRef", "subjects"]))
        }
        if not self.has_namespace():
            return found
        rbac = f"{RBAC}/namespaces/{self.name}"
        return {
            **found,
            "accounts": self._shown(f"/api/v1/namespaces/{self.name}/serviceaccounts"),
            "policies": self._shown(f"{NETWORKING}/namespaces/{self.name}/networkpolicies", "spec"),
            "roles": self._shown(f"{rbac}/roles", "rules"),
            "bindings": self._shown(f"{rbac}/rolebindings", "roleRef", "subjects"),
        }

    def has_namespace(self):
        try:
            found = self.plane.get(f"/api/v1/namespaces/{self.name}")
        except urllib.error.HTTPError:
            return False
        return not found["metadata"].get("deletionTimestamp")

    def _ours(self, path):
        return [one for one in self.plane.get(path)["items"] if "cloudspot" in one["metadata"]["name"]]

    def _shown(self, path, *parts):
        found = {one["metadata"]["name"]: [one[part] for part in parts] for one in self._ours(path)}
        return msgspec.json.encode(found, order="sorted").decode().replace(self.name, "NAMESPACE")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("kubeconfigs")


@pytest.fixture
def account(plane, directory, tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path / "state"))  # where the record is
    made = KubernetesAccount(plane, directory)
    yield made
    made.empty()


def refusals(account):
    """Return why each part is refused, by its kind."""
    return {one.part.kind: one.state.excess for one in account.look() if one.state.excess}


class TestSetup(SetupTests):
    removal_stride = 7  # each takes the cluster some seconds


def test_the_printed_commands_make_what_the_setup_makes(account):
    account.make()
    whole = account.contents()
    account.begin_anew()
    environ = {
        "PATH": f"{binaries()}:{os.environ['PATH']}",
        "HOME": str(account.directory),
        "KUBECONFIG": str(account.directory / f"{ADMIN}.kubeconfig"),
    }
    for part in account.setup().parts(account.request):
        for line in part.commands:
            done = subprocess.run(
                ["sh", "-c", line], env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
    assert account.contents() == whole
    assert {*account.plans().values()} == {"adopt"}


def test_the_submitter_has_what_the_check_asks_for_once_it_was_granted(account):
    types = {"small": PodType(cpus=1, spot_price=0.1, on_demand_price=0.2)}
    provider = account.provider_as(SUBMITTER, image="image", types=types)

    def checked():
        return {one.name: one for one in plaincalls.check(provider)}

    assert checked()["rights"].remedy == (
        "have an administrator run: cloudspot setup kubernetes --grant-to user:YOU"
    )
    account.make()
    found = checked()
    assert found["rights"].detail == f"all that a driver needs in {account.name}"
    assert [one.name for one in found.values() if not one.ok and not one.name.startswith("room")] == []
    account.remove()
    assert not checked()["rights"].ok


def test_pods_get_rights_only_if_the_options_need_them(account):
    setup = account.provider_as(ADMIN).account_setup()
    names = {one.name for one in setup.parts(account.request)}
    assert f"{account.name}/cloudspot-node" in names  # the account
    assert [one.kind for one in setup.parts(account.request) if one.name.endswith("/cloudspot-node")] == [
        "ServiceAccount"
    ]
    assert "cloudspot-node-taints" not in names


def test_a_role_that_grants_more_is_refused_and_one_that_grants_less_is_adopted(account):
    account.make()
    account.record().path.unlink()
    path = f"{RBAC}/namespaces/{account.name}/roles/cloudspot-submitter"
    rules = permissions.role("submitter")["rules"]
    wider = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    account.plane.patch(path, {"rules": [*rules, wider]})
    assert refusals(account) == {"Role": ("it grants get secrets",)}
    account.plane.patch(path, {"rules": rules[:1]})
    found = next(one for one in account.look() if one.part.name.endswith("/cloudspot-submitter"))
    assert (found.plan.value, found.state.lacks) == ("adopt", ("it does not grant get pods/log",))


def test_a_binding_for_others_and_one_of_another_role_are_refused(account):
    account.make()
    account.record().path.unlink()
    path = f"{RBAC}/namespaces/{account.name}/rolebindings"
    binding = account.plane.get(f"{path}/cloudspot-node")
    mallory = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}
    account.plane.patch(f"{path}/cloudspot-node", {"subjects": [*binding["subjects"], mallory]})
    assert refusals(account) == {"RoleBinding": ("it is for User mallory, too",)}
    account.plane.request("DELETE", f"{path}/cloudspot-node")
    admin = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
    body = {"metadata": {"name": "cloudspot-node"}, "roleRef": admin, "subjects": binding["subjects"]}
    account.plane.request("POST", path, body)
    assert refusals(account) == {"RoleBinding": ("it gives the ClusterRole admin",)}


def test_a_network_policy_that_lets_others_in_is_refused_and_ones_own_is_mended(account):
    account.make()
    whole = account.contents()
    path = f"{NETWORKING}/namespaces/{account.name}/networkpolicies/cloudspot-nodes"
    account.plane.patch(path, {"spec": {"ingress": [{}]}})
    assert [one.kind for one in account.make()] == ["NetworkPolicy"]
    assert account.contents() == whole
    account.plane.patch(path, {"spec": {"ingress": [{}]}})
    account.record().path.unlink()
    assert refusals(account) == {"NetworkPolicy": ("its rules differ",)}


def test_a_namespace_that_holds_something_else_stays_and_a_job_keeps_everything(account):
    account.make()
    whole = account.contents()
    pods = f"/api/v1/namespaces/{account.name}/pods"
    pod = {
        "metadata": {"name": "digits-1-0", "labels": {"cloudspot-job": "digits-1"}},
        "spec": {"containers": [{"name": "main", "image": "image"}], "automountServiceAccountToken": False},
    }
    account.plane.request("POST", pods, pod)
    with pytest.raises(
        CloudspotError, match=r"has the pod digits-1-0 of the job digits-1; stop the job first"
    ):
        account.remove()
    assert account.contents() == whole
    account.plane.request("DELETE", f"{pods}/digits-1-0", {"gracePeriodSeconds": 0})
    keys = {"metadata": {"name": "bucket-keys"}, "data": {}}
    account.plane.request("POST", f"/api/v1/namespaces/{account.name}/secrets", keys)
    stays = {}
    parts = account.setup().parts(account.request)
    for part, why in remove(parts[::-1], None, account.record()):
        stays[part.kind] = why
    assert stays.pop("Namespace") == "stays, because it holds secrets bucket-keys"
    assert set(stays.values()) == {None}
    assert account.has_namespace()


def test_a_role_of_the_cluster_that_another_namespace_uses_stays(account):
    account.make()
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "cloudspot-submitter-nodes",
    }
    grace = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "grace"}
    other = {"metadata": {"name": "cloudspot-of-another"}, "roleRef": role, "subjects": [grace]}
    account.plane.request("POST", f"{RBAC}/clusterrolebindings", other)
    parts = account.setup().parts(account.request)
    stays = {part.name: why for part, why in remove(parts[::-1], None, account.record()) if why is not None}
    assert stays == {
        "cloudspot-submitter-nodes": "stays, because the ClusterRoleBinding cloudspot-of-another uses it"
    }


@pytest.mark.parametrize("whom", ["ada", "user:", "serviceaccount:ops", "role:admin"])
def test_whom_the_cluster_cannot_know_gets_no_rights(account, whom):
    with pytest.raises(SpecError, match="write user:NAME, group:NAME or serviceaccount:NAMESPACE:NAME"):
        account.setup().parts(SetupRequest(grant_to=(whom,)))


@pytest.mark.parametrize(
    "group", ["system:authenticated", "system:serviceaccounts:default", "system:masters"]
)
def test_rights_are_not_given_to_everybody_nor_to_who_has_all(account, group):
    with pytest.raises(SpecError, match=r"everybody|already have all rights"):
        account.setup().parts(SetupRequest(grant_to=(f"group:{group}",)))


def test_a_missing_right_says_who_can_make_it(account):
    setup = account.provider_as(SUBMITTER).account_setup()
    with pytest.raises(AuthError, match=r"making Namespace .* run this as an administrator of the account"):
        setup.parts(account.request)[0].make()


def test_a_budget_and_a_bucket_are_no_matter_of_the_cluster(account):
    with pytest.raises(SpecError, match="a cluster sends no bill"):
        account.setup().parts(SetupRequest(monthly_limit=50.0, warn="ada@example.com"))
    told = account.setup().settings(SetupRequest())
    assert told.store_url is None
    assert "a cluster has no bucket" in told.notes[0]
    named = account.setup().settings(SetupRequest(store_url="s3://jobs"))
    assert named.store_url == "s3://jobs"
    assert named.options == {"namespace": account.name}
    assert not any("bucket:" in one for one in named.notes)
