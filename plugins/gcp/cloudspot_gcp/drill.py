"""Drills on Compute Engine: a simulated maintenance event preempts a spot machine as a reclaim would.

Source: Compute Engine documentation, "Create and use Spot VMs", "Simulate preemption" (from memory). This
    drill has not yet run on the real service.
"""

from __future__ import annotations

from google.api_core import exceptions as api

from cloudspot.errors import CloudspotError
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.listing import is_done, place_of_id
from cloudspot_gcp.metadata import SHUTDOWN_SECONDS
from cloudspot_gcp.refusals import causes_of


def preempt(clients: GcpClients, instance_id: str, *, notice_seconds: float | None) -> None:
    """Reclaim a running spot machine with its launch's notice; raise CloudspotError for other machines."""
    place = place_of_id(instance_id)
    if place is None:
        raise CloudspotError(f"{instance_id} is not one of cloudspot's machines; expected ZONE/NAME/NUMBER")
    request = {"project": clients.project, "zone": place.zone, "instance": place.instance}
    with ERRORS.translated(f"looking for {instance_id}"):
        try:
            machine = clients.call("InstancesClient", "get", request)
        except api.NotFound as error:
            raise CloudspotError(f"there is no machine {instance_id}") from error
    scheduling = machine.scheduling
    if scheduling.provisioning_model != "SPOT" or machine.status != "RUNNING":
        raise CloudspotError(
            f"{instance_id} is not a running spot machine, and Google reclaims only those; end it with: "
            f"gcloud compute instances delete {place.name} --zone {place.zone}"
        )
    own = float(scheduling.preemption_notice_duration.seconds)
    if notice_seconds not in {None, own, own or SHUTDOWN_SECONDS}:
        raise CloudspotError(
            f"Compute Engine always reclaims this machine {own or SHUTDOWN_SECONDS:g} s after its notice; "
            "leave out --notice and --no-notice"
        )
    with ERRORS.translated(f"the drill on {instance_id}"):
        operation = clients.call("InstancesClient", "simulate_maintenance_event_unary", request)
    causes = causes_of(operation) if is_done(operation) else []
    if causes:
        raise CloudspotError(f"the drill on {instance_id}: {causes[0].message} ({causes[0].code})")
