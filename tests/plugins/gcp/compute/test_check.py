import pytest

from cloudspot.model import Resources
from cloudspot.testing import plaincalls
from cloudspot_gcp.check import PERMISSIONS
from cloudspot_gcp_sandbox.catalogue import IMAGES, Image

ROLE = (
    "an administrator runs: cloudspot setup gcp --grant-to "
    "serviceAccount:you@my-project-123.iam.gserviceaccount.com"
)


def lines(provider, **resources):
    found = plaincalls.check(provider, resources=Resources(**resources))
    return {one.name: one for one in found}


def failed(provider, **resources):
    return {
        name: (one.detail, one.remedy) for name, one in lines(provider, **resources).items() if not one.ok
    }


@pytest.mark.full
def test_a_project_that_is_ready_passes_every_line(cloud):
    cloud.faults.vcpu_quota["spot"] = 64
    found = lines(cloud.provider(placement_policy="auto"))
    assert [name for name, one in found.items() if not one.ok] == []
    assert {name: one.detail for name, one in found.items() if name not in {"clock", "offers"}} == {
        "credentials": "you@my-project-123.iam.gserviceaccount.com",
        "project": "my-project-123",
        "listing": "0 machines of cloudspot's",
        "permissions": f"all {len(PERMISSIONS) + 5}",
        "quota, spot": "64 vCPUs left in us-central1, enough for 16 n2-standard-4",
        "quota, on-demand": "1000 vCPUs left in us-central1, enough for 250 n2-standard-4",
    }
    assert found["clock"].detail.startswith("within ")
    assert "(spot n2-standard-4 in us-central1; by Google's price list)" in found["offers"].detail
    assert cloud.alive == []
    assert cloud.listed("ResourcePoliciesClient") == {}


@pytest.mark.full
def test_the_permissions_that_are_missing_are_named_at_once(cloud):
    cloud.faults.denied = {"compute.instances.create", "compute.subnetworks.useExternalIp"}
    assert failed(cloud.provider()) == {
        "permissions": (
            "the credentials lack compute.instances.create, compute.subnetworks.useExternalIp",
            ROLE,
        )
    }
    assert "permissions" in failed(cloud.provider(public_ip=False))
    cloud.faults.denied = {"compute.subnetworks.useExternalIp"}
    assert failed(cloud.provider(public_ip=False)) == {}


@pytest.mark.full
def test_an_image_of_ones_own_needs_a_right_that_googles_do_not(cloud):
    image = Image("my-project-123", "train-v1", "train", 20)
    cloud.compute.site.images = (*IMAGES, image)
    cloud.faults.denied = {"compute.images.useReadOnly"}
    assert failed(cloud.provider()) == {}
    provider = cloud.provider(image=image.path)
    assert failed(provider) == {
        "permissions": ("the credentials lack compute.images.useReadOnly", ROLE),
    }


@pytest.mark.full
def test_the_right_to_the_nodes_account_may_be_granted_on_that_account_alone(cloud):
    cloud.faults.denied = {"iam.serviceAccounts.actAs"}
    found = lines(cloud.provider())["permissions"]
    assert found.ok
    assert found.detail.endswith("of the project; iam.serviceAccounts.actAs is not granted on all accounts")


@pytest.mark.full
def test_where_resource_manager_cannot_be_asked_the_permissions_are_unknown(cloud):
    cloud.faults.inject(
        "cloudresourcemanager.projects.testIamPermissions",
        "accessNotConfigured",
        status=403,
        message="cloudresourcemanager.googleapis.com is disabled",
    )
    found = lines(cloud.provider())["permissions"]
    assert found.ok
    assert not found.is_known
    assert "asking for the permissions: the API is not enabled; run: gcloud" in found.detail


@pytest.mark.parametrize(
    ("right", "line"),
    [
        ("compute.instances.list", "listing"),
        ("compute.zoneOperations.list", "listing"),
        ("compute.machineTypes.list", "offers"),
        ("compute.regions.get", "offers"),
    ],
)
def test_a_right_that_is_missing_fails_the_line_that_takes_it(cloud, right, line):
    cloud.faults.denied = {right}
    found = failed(cloud.provider())
    assert set(found) == {line, "permissions"}
    assert f"Required '{right}' permission" in found[line][0]
    assert found[line][1] == ROLE


def test_a_project_that_is_none_is_told_and_nothing_else_is_tried(cloud):
    provider = cloud.provider()
    cloud.compute.project = "another-project"
    found = failed(provider)
    assert list(found) == ["project"]
    assert "'projects/my-project-123' was not found" in found["project"][0]


def test_an_api_that_is_not_enabled_is_told_with_the_command_that_enables_it(cloud):
    cloud.faults.inject("compute.projects.get", "accessNotConfigured", status=403, message="not enabled")
    (detail, _) = failed(cloud.provider())["project"]
    assert "the API is not enabled; run: gcloud services enable compute.googleapis.com" in detail


def test_a_quota_that_is_too_small_for_one_machine_fails_its_line(cloud):
    cloud.faults.vcpu_quota["on-demand"] = 3
    assert failed(cloud.provider()) == {
        "quota, on-demand": (
            (
                "3 of 3 vCPUs are left in us-central1, but one n2-standard-4 needs 4; ask for more of CPUS under "
                "IAM & Admin > Quotas"
            ),
            "",
        )
    }


def test_a_spot_quota_of_0_counts_against_the_other_one(cloud):
    cloud.faults.vcpu_quota["spot"] = 0
    assert lines(cloud.provider())["quota, spot"].detail == ("us-central1 has no quota PREEMPTIBLE_CPUS")


def test_what_fits_nowhere_is_told(cloud):
    found = failed(cloud.provider(machine_types=()), cpus=4096)
    assert found == {"offers": ("no machine type fits; ask for less in resources, or try another region", "")}


def test_an_option_that_names_what_does_not_exist_fails_the_offers(cloud):
    found = failed(cloud.provider(network="gone"))
    assert found["offers"][0] == 'providers.gcp.network: there is no "gone"'
