"""The plugin's roles grant what the plugin asks for, and nothing else."""

import re

import pytest
from support.worlds.groups import group_of

from cloudspot.errors import TransientError
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_gcp import permissions
from cloudspot_gcp.attributes import machine_name
from cloudspot_gcp.check import wanted_permissions
from cloudspot_gcp_sandbox.catalogue import IMAGES, Image
from cloudspot_gcp_sandbox.taken import rights_of

ROLES = permissions.DIRECTORY
OWN_IMAGE = Image("my-project-123", "train-v1", "train", 20)
ON_THE_ACCOUNT = "iam.serviceAccounts.actAs"
"""Granted on the machines' service account by a role of Google's own, which docs/gcp.md names."""


def granted(name):
    lines = (ROLES / name).read_text().splitlines()
    start = lines.index("includedPermissions:")
    assert {line.partition(":")[0] for line in lines[:start] if not line.startswith("#")} == {
        "title",
        "description",
        "stage",
    }
    found = [line.removeprefix("- ") for line in lines[start + 1 :] if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z]+\.[a-zA-Z]+\.[a-zA-Z]+", one) for one in found)
    assert len(found) == len(set(found))
    return set(found)


def needed(calls):
    """Return the permissions that the recorded calls took."""
    return set().union(*map(rights_of, calls))


def group(offer, **fields):
    return group_of(offer, **{"num_nodes": 2, "store_url": "gs://bucket", **fields})


def bake(cloud, machine):
    """Make an image of the machine, look for it as a job's launches do, and remove it while that is slow."""
    host = cloud.provider().image_host()
    made = host.save(machine, key="0a1b", job_name="digits")
    cloud.now += 60.0
    (offer, *_) = plaincalls.offers(cloud.provider(setup_key="0a1b").provisioner(), Resources())
    assert offer.image.endswith(f"/{made.id}")
    with pytest.raises(TransientError, match="not done after"):
        host.remove(made.id)


def session(cloud):
    """Use everything that the provider can do."""
    cloud.client("ResourcePoliciesClient").insert_unary(
        project="my-project-123",
        region="us-central1",
        resource_policy_resource={"name": "mine", "group_placement_policy": {"collocation": "COLLOCATED"}},
    )
    cloud.faults.calls.clear()
    own = {
        "placement_policy": "mine",
        "subnetworks": ("regions/us-central1/subnetworks/default",),
        "image": "projects/ubuntu-os-cloud/global/images/ubuntu-2204-jammy-v20261101",
    }
    plaincalls.offers(cloud.provider(**own).provisioner(), Resources())
    cloud.compute.site.images = (*IMAGES, OWN_IMAGE)
    accelerated = Resources(accelerator="T4", accelerator_count=1)
    plaincalls.offers(cloud.provider(machine_types=()).provisioner(), accelerated)
    with pytest.raises(Exception, match="is no region"):
        plaincalls.offers(cloud.provider(regions=("us-central2",)).provisioner(), Resources())
    provider = cloud.provider(placement_policy="auto", network_tags=("training",), image=OWN_IMAGE.path)
    provisioner = provider.provisioner()
    for launch, market in enumerate(("spot", "on-demand"), start=1):
        request = provisioner.render(group(cloud.offer(provisioner, market=market), launch=launch))
        plaincalls.create(provisioner, request, token=market)
    cloud.compute.operation_seconds = 1.0
    with pytest.raises(TransientError, match="not done after"):
        plaincalls.create(
            provisioner, provisioner.render(group(cloud.offer(provisioner), launch=3)), token="slow"
        )
    machines = [one for one in plaincalls.instances(provisioner, job_id="digits-1") if one.launch < 3]
    provisioner.announce(machines, {"MASTER_ADDR": "10.0.0.4", "NUM_NODES": "1"})
    assert cloud.faults.count("compute.instances.setMetadata") == 4
    assert [provisioner.console(one) for one in machines] == [""] * 4
    assert [one.name for one in plaincalls.check(provider, resources=Resources()) if not one.ok] == []
    bake(cloud, next(one for one in machines if one.market is Market.ON_DEMAND))
    plaincalls.preempt(provider, next(one.id for one in machines if one.market is Market.SPOT))
    cloud.now += 1.0
    cloud.compute.operation_seconds = 0.0
    plaincalls.terminate(provisioner, [one.id for one in plaincalls.instances(provisioner)])
    provisioner.release("digits-1", store_url="gs://bucket")
    return cloud.faults.calls


@pytest.mark.full
def test_a_submitter_needs_no_right_that_the_role_lacks_and_the_role_has_none_to_spare(cloud):
    allowed = granted("role-submitter.yaml")
    rights = needed(session(cloud))
    assert sorted(rights - allowed) == [ON_THE_ACCOUNT]
    # What of logs is asked for is compared where whole jobs run.
    assert sorted(one for one in allowed - rights if not one.startswith("logging.")) == []


@pytest.mark.full
def test_the_session_would_be_refused_without_any_one_of_the_rights(cloud):
    """The comparison can fail: a right that is taken away is missed by it."""
    rights = needed(session(cloud))
    assert {"compute.instances.create", "compute.disks.setLabels", ON_THE_ACCOUNT} <= rights


@pytest.mark.parametrize(
    "right",
    ["compute.instances.setLabels", "compute.disks.create", "compute.zoneOperations.list", ON_THE_ACCOUNT],
)
def test_a_launch_is_refused_without_a_right_that_it_takes(cloud, right):
    provisioner = cloud.provider().provisioner()
    request = provisioner.render(group(cloud.offer(provisioner)))
    cloud.faults.denied = {right}
    with pytest.raises(Exception, match=right if right != ON_THE_ACCOUNT else "service account"):
        plaincalls.create(provisioner, request, token="t")


def test_the_check_asks_for_rights_of_the_role_only(cloud):
    options = cloud.provider(
        placement_policy="auto", network_tags=("training",), image=OWN_IMAGE.path
    ).options
    assert set(wanted_permissions(options, "my-project-123")) - granted("role-submitter.yaml") == {
        ON_THE_ACCOUNT
    }


def test_a_node_has_no_right_of_compute_engines_but_to_delete_what_is_called_as_cloudspots_machines_are():
    assert granted("role-self-end.yaml") == {"compute.instances.delete"}
    condition = (
        "resource.type == 'compute.googleapis.com/Instance' "
        "&& resource.name.extract('/instances/{name}').startsWith('cs-')"
    )
    assert condition in (ROLES / "condition-self-end.yaml").read_text()
    assert permissions.self_end_condition() == {"title": "machines of cloudspot's", "expression": condition}
    assert machine_name("digits-1", "gs://bucket", 1, 0).startswith("cs-")
    assert {one.partition(".")[0] for one in granted("role-node.yaml")} == {"logging"}
    assert {one.partition(".")[0] for one in granted("role-bucket.yaml")} == {"storage"}
