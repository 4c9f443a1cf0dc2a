"""What an observer hears of Compute Engine's answers; and what the emulated one does otherwise on request."""

import pytest
from google.api_core.exceptions import NotFound
from support.worlds.groups import group_of

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.plugin import apirecording
from cloudspot.testing import plaincalls
from cloudspot_gcp.clients import GcpClients
from cloudspot_prove.clouds import cloud_of
from cloudspot_prove.masking import Mask

pytestmark = pytest.mark.full


def launch(cloud, *, token="t"):
    provisioner = cloud.provider(machine_types=["e2-standard-2"]).provisioner()
    group = group_of(cloud.offer(provisioner))
    return plaincalls.create(provisioner, provisioner.render(group), token=token)


def test_an_answer_and_a_refusal_are_told_and_masked(cloud, monkeypatch):
    heard = []
    monkeypatch.setattr(apirecording, "_observers", [heard.append])
    project = cloud.compute.project
    clients = GcpClients(project=project)
    assert clients.call("RegionsClient", "get", {"project": project, "region": "us-central1"}).name
    with pytest.raises(NotFound):
        clients.call("ImagesClient", "get", {"project": project, "image": "no-such"})
    answered, refused = [one for one in heard if one.service == "compute"]
    assert answered.action == f"GET /compute/v1/projects/{project}/regions/us-central1"
    assert (answered.status, answered.code, answered.answer["name"]) == (200, "", "us-central1")
    assert (refused.status, refused.code) == (404, "notFound")
    mask = Mask(b"k" * 32, cloud_of("gcp").allowed())
    assert project not in mask.action(refused.action, "compute")
    assert project not in str(mask.tree(answered.answer, "compute"))


def test_a_contrary_project_forgets_a_request_and_the_names_are_taken(cloud):
    cloud.faults.contrary = frozenset({"request-id-forgotten"})
    launch(cloud)
    cloud.now += 11
    with pytest.raises(CloudspotError):
        launch(cloud)
    assert len(cloud.listed()) == 1


def test_a_contrary_project_does_not_know_the_account_for_a_minute(cloud):
    cloud.faults.contrary = frozenset({"account-unknown"})
    with pytest.raises(TransientError, match="may be too new to be known"):
        launch(cloud)
    cloud.now += 61
    assert len(launch(cloud)) == 1


def test_a_launch_goes_on_without_a_notice_that_a_contrary_project_refuses(cloud):
    cloud.faults.contrary = frozenset({"notice-refused"})
    assert len(launch(cloud)) == 1
    (machine,) = cloud.listed().values()
    assert not machine.scheduling.preemption_notice_duration.seconds


def test_a_contrary_price_list_has_no_disks(cloud):
    cloud.faults.contrary = frozenset({"disk-without-price"})
    provisioner = cloud.provider(machine_types=["e2-standard-2"]).provisioner()
    assert "disk not counted" in cloud.offer(provisioner).price_text
