"""Drills on Compute Engine: a simulated maintenance event preempts a spot machine as a reclaim would.

Source: Compute Engine documentation, "Create and use Spot VMs", "Simulate preemption" (from memory). This has
not run on the real service yet.
"""

from __future__ import annotations

from typing import Final

from google.api_core import exceptions as api

from cloudspot.errors import CloudspotError
from cloudspot_gcp.clients import READ_SECONDS, GcpClients
from cloudspot_gcp.errors import translated
from cloudspot_gcp.listing import is_done, place_of_id
from cloudspot_gcp.refusals import causes_of

SHUTDOWN_SECONDS: Final = 30.0
"""The most that a spot machine has after its notice: see :mod:`cloudspot_gcp.metadata`."""


def preempt(clients: GcpClients, instance_id: str, *, notice_seconds: float | None) -> None:
    """Let Compute Engine reclaim the spot machine, with the notice that its launch requested.

    Raises:
        CloudspotError: the machine is not a running spot machine, or another notice is asked for.
        AuthError: a right is missing.
        TransientError: Google did not answer.
    """
    place = place_of_id(instance_id)
    if place is None:
        raise CloudspotError(f"{instance_id} is not a machine of cloudspot's; expected ZONE/NAME/NUMBER")
    client = clients.compute("InstancesClient")
    request = {"project": clients.project, "zone": place.zone, "instance": place.instance}
    with translated(f"looking for {instance_id}"):
        try:
            machine = client.get(request=request, retry=None, timeout=READ_SECONDS)
        except api.NotFound as error:
            raise CloudspotError(f"there is no machine {instance_id}") from error
    scheduling = machine.scheduling
    if scheduling.provisioning_model != "SPOT" or machine.status != "RUNNING":
        raise CloudspotError(
            f"{instance_id} is not a running spot machine, and no other is ever reclaimed; end it with: "
            f"gcloud compute instances delete {place.name} --zone {place.zone}"
        )
    own = float(scheduling.preemption_notice_duration.seconds)
    if notice_seconds not in {None, own, own or SHUTDOWN_SECONDS}:
        raise CloudspotError(
            f"Compute Engine reclaims this machine {own or SHUTDOWN_SECONDS:g} s after its notice, never "
            "otherwise; leave out --notice and --no-notice"
        )
    with translated(f"the drill on {instance_id}"):
        operation = client.simulate_maintenance_event_unary(request=request, retry=None, timeout=READ_SECONDS)
    causes = causes_of(operation) if is_done(operation) else []
    if causes:
        raise CloudspotError(f"the drill on {instance_id}: {causes[0].message} ({causes[0].code})")
