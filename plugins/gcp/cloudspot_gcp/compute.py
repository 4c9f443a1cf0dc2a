"""Creates, lists and ends Compute Engine machines.

A launch is one bulk insert, which can be repeated because it has an id.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.api_core import exceptions as api
from google.protobuf.json_format import ParseError

from cloudspot.calls import (
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.errors import CloudspotError, ProvisionError, TransientError
from cloudspot.model import Instance, InstanceGroup, InstanceState, LaunchRequest
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import readable
from cloudspot.plugin.cloudprovider import CloudProvisioner
from cloudspot.plugin.launchrequests import decode_request
from cloudspot.plugin.terminating import end_all
from cloudspot_gcp import attributes, placement
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.listing import (
    END_OPERATIONS,
    Ending,
    Place,
    endings,
    is_done,
    last_part,
    place_of,
    place_of_id,
    target_of,
    to_instance,
    to_vanished_instance,
)
from cloudspot_gcp.lookups import ask, wanted_regions
from cloudspot_gcp.offers import GcpOfferFinder
from cloudspot_gcp.operations import wait_for_region
from cloudspot_gcp.options import GcpOptions, region_of
from cloudspot_gcp.refusals import MIN_COUNT, NoticeRefusedError, causes_of, failure, launching, refusal
from cloudspot_gcp.request import ComputeRequest, render_request, request_id, without_notice

UNREACHABLE: Final = "UNREACHABLE"
"""The warning that takes the place of a zone's part of a listing, although the response itself is a success.
"""
PAGE: Final = 500
"""The maximum number of items on a page of a listing."""
CONSOLE_BYTES: Final = 64 << 10
"""How much of a console's output is requested; a negative start counts from the end (Compute Engine API
reference, instances.getSerialPortOutput, checked 2026-11).
"""
_ENDS: Final = " OR ".join(f'(operationType = "{kind}")' for kind in END_OPERATIONS)
"""The filter for operations that end machines. The names of their targets are compared in this module,
because the API's filter cannot match part of a URL.
"""

_BUSY: Final = {"resourceNotReady": TransientError, "resourceInUseByAnotherResource": TransientError}
"""The error codes for a machine that another operation is making or ending ("Troubleshooting VM creation").
"""
_LATER: Final = {**_BUSY, "notFound": TransientError, "conditionNotMet": TransientError}
"""In addition, the codes for a machine that is not visible yet, and for attributes that have just been
changed.
"""

_log = logging.getLogger("cloudspot.gcp.compute")


class ComputeProvisioner(CloudProvisioner[GcpOptions, GcpClients]):
    """The machines of one project. Thread-safe; construction does no I/O."""

    provider = "gcp"
    finder_type = GcpOfferFinder
    # Google does not state how long Compute Engine remembers a request id; its newer APIs promise an hour.
    # The limit is half of that: a launch that is still unknown after this time is closed, and another one is
    # begun.
    token_seconds = 1800.0
    # The operation that ended a machine reports its end. Without such an operation, ten minutes of absence
    # prove that the machine has ended, because listings lag by seconds at most; operations are kept for two
    # weeks.
    absence_proves_after_seconds = 600.0

    def __init__(self, options: GcpOptions, clients: GcpClients) -> None:
        super().__init__(options, clients)
        self._lock = threading.Lock()
        self._stores: dict[str, str] = {}
        """The stores whose machines were seen, by ``store_digest``."""
        self._has_notice = True
        """Whether no launch has been refused because of its notice so far; such a refusal is logged once."""

    def render(self, group: InstanceGroup) -> LaunchRequest:
        return render_request(self.options, group)

    def create(self, request: CreateRequest) -> CreateResult:
        """Create all the machines of the request by one bulk insert, or none.

        The call waits for the insert's operation, because only the operation shows whether there is capacity.
        A launch that is refused because of its requested notice is sent again without one, under another id
        derived from the token.
        """
        body, token = decode_request(request.request, ComputeRequest), request.token
        self._learn_store(body.store_url)
        if body.made_placement_policy is not None:
            placement.make(self.clients, body)
        try:
            return self._create(body, token, request.deadline)
        except NoticeRefusedError as error:
            with self._lock:
                is_new, self._has_notice = self._has_notice, False
            if is_new:
                _log.warning(
                    "%s; launching without it: machines get a notice of 30 seconds at best "
                    "(providers.gcp.preemption_notice = 0 avoids the refused request)",
                    error,
                )
            return self._create(without_notice(body), f"{token} without notice", request.deadline)

    def _create(self, body: ComputeRequest, token: str, deadline: float) -> CreateResult:
        operation = self._bulk_insert(body, token)
        operation = wait_for_region(self.clients, body.region, operation, launching(body), deadline=deadline)
        causes = causes_of(operation)
        group = self._group(operation, body)
        made = [place for one in group if not causes_of(one) and (place := target_of(one)) is not None]
        if causes:
            self._remove(made, launching(body))
            if any(cause.code == MIN_COUNT for cause in causes):
                causes += [cause for one in group for cause in causes_of(one)]
            raise failure(causes, body)
        return CreateResult(instances=self._made(body, made))

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Correct the attributes that differ from ``facts``; safe to repeat.

        The launch's request has already set the number of its machines and the name of the first one.
        """
        address = facts.get(attributes.MASTER_ADDR)
        first = next((place_of_id(one.id) for one in instances if address and one.address == address), None)
        for one in instances:
            place = place_of_id(one.id)
            if place is not None and one.state is not InstanceState.ENDED:
                self._write_attributes(
                    place, None if first is None or first.zone != place.zone else first.name, facts
                )

    def instances(self, request: InstancesRequest) -> InstancesResult:
        """Return the machines, including those deleted within two weeks; see Provisioner.

        If no job is named, deleted machines are omitted if their job's id is too long for a machine's name.
        """
        with readable("listing the machines"):
            listed = self._listed(request.job_id)
        return InstancesResult(instances=tuple(filter(request.wants, listed)))

    def _listed(self, job_id: str | None) -> tuple[Instance, ...]:
        wanted = f"labels.{machinetags.JOB}:*" if job_id is None else f'labels.{machinetags.JOB} = "{job_id}"'
        described = self._described(wanted, "listing the machines")
        ended = endings(self._operations(_ENDS, "listing what became of the machines"))
        by_id: dict[str, Instance] = {}
        for one in described:
            instance = to_instance(one, ended.get(place_of(one).id))
            if instance is not None:
                self._learn_store(instance.store_url)
                by_id[instance.id] = instance
        for key, ending in ended.items():
            if key not in by_id:
                gone = self._vanished(ending, job_id)
                if gone is not None:
                    by_id[key] = gone
        return tuple(by_id.values())

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        def end(ids: Sequence[str]) -> None:
            self._delete(
                [place for one in ids if (place := place_of_id(one)) is not None], "deleting machines"
            )

        return end_all(request.instance_ids, end)

    def console(self, instance: Instance) -> str:
        """Return the end of the output of the machine's first serial port; see Provisioner.

        Images send the output of the boot and of the startup script to this port. The output is deleted with
        the machine.
        """
        place = place_of_id(instance.id)
        if place is None:
            return ""
        what = f"reading the serial port of {place.instance}"
        with ERRORS.translated(what, _LATER):
            answer = self._ask_about(place, "get_serial_port_output", port=1, start=-CONSOLE_BYTES)
        return str(answer.contents)

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Delete the job's stopped machines and its placement policies; see Provisioner.

        A machine that shuts itself down remains as a stopped machine, and its disk is billed.
        """
        wanted = f'labels.{machinetags.JOB} = "{job_id}"'
        digest = machinetags.store_digest(store_url) if store_url else None
        stopped = [
            place_of(one)
            for one in self._described(wanted, "listing the job's machines")
            if one.status == "TERMINATED"
            and attributes.launch_and_rank(one.name) is not None
            and digest in {None, attributes.digest_in(one.name)}
        ]
        self._delete(stopped, "deleting stopped machines")
        if self.options.placement_policy == "auto":
            placement.remove(self.clients, self.options, job_id, store_url=store_url)

    # --- the bulk insert --------------------------------------------------------------------------

    def _bulk_insert(self, body: ComputeRequest, token: str) -> Any:
        from google.cloud.compute_v1 import BulkInsertInstanceResource

        try:
            # The request has exactly the stored fields; a field that the SDK does not know is an error.
            resource = BulkInsertInstanceResource.from_json(json.dumps(body.bulk_insert))
        except ParseError as error:
            raise ProvisionError(
                f"{launching(body)}: this machine's SDK cannot read the stored request: "
                f"{ERRORS.one_line(str(error))}; install the submitter's version of google-cloud-compute"
            ) from error
        asked = {
            "project": body.project,
            "region": body.region,
            "request_id": request_id(token),
            "bulk_insert_instance_resource_resource": resource,
        }
        try:
            return ERRORS.unless_throttled(
                lambda: self.clients.call("RegionInstancesClient", "bulk_insert_unary", asked)
            )
        except ERRORS.raised as error:
            raise self.unless_new(refusal(error, body)) from error

    def _group(self, operation: Any, body: ComputeRequest) -> list[Any]:
        """Return the operations that insert the launch's machines, one for each.

        If a launch failed before there was any machine, its operation may name no group. Then there is
        nothing to look up, because operations of other jobs name no group either.
        """
        if not operation.operation_group_id:
            return []
        wanted = f'operationGroupId = "{operation.operation_group_id}"'
        names = body.bulk_insert["perInstanceProperties"]
        return [
            one
            for one in self._operations(wanted, launching(body))
            if one.operation_type == "insert" and one.target_link.rpartition("/")[2] in names
        ]

    def _remove(self, made: Sequence[Place], what: str) -> None:
        """Delete any machines that a failed launch has made."""
        if not made:
            return
        try:
            self._delete(made, f"{what}: deleting the machines of the failed launch")
        except TransientError:
            raise
        except CloudspotError as error:
            raise TransientError(f"{error}; machines may still be running") from error

    def _made(self, body: ComputeRequest, made: Sequence[Place]) -> tuple[Instance, ...]:
        """Return the machines of a successful launch, even those that listings do not show yet."""
        job_id = body.labels[machinetags.JOB]
        if not made:
            raise TransientError(f"{launching(body)}: no machine is visible yet; asking again")
        listed = {one.id: one for one in self.instances(InstancesRequest(job_id=job_id)).instances}
        instances = []
        for place in made:
            launch, rank = attributes.launch_and_rank(place.name) or (0, None)
            young = Instance(
                id=place.id,
                state=InstanceState.PENDING,
                job_id=job_id,
                launch=launch,
                rank=rank,
                zone=place.zone,
                instance_type=body.machine_type,
                market=body.market,
                store_url=body.store_url,
            )
            instances.append(listed.get(young.id, young))
        return tuple(sorted(instances, key=lambda one: one.rank or 0))

    # --- listings ---------------------------------------------------------------------------------

    def _described(self, expression: str, what: str) -> list[Any]:
        return [one for scope in self._scopes("InstancesClient", expression, what) for one in scope.instances]

    def _operations(self, expression: str, what: str) -> list[Any]:
        scopes = self._scopes("GlobalOperationsClient", expression, what)
        return [one for scope in scopes for one in scope.operations]

    def _scopes(self, kind: str, expression: str, what: str) -> list[Any]:
        """Return the listing of each zone and region.

        Raises:
            TransientError: a zone or region that the job uses does not answer, so machines that run there are
                not listed.
        """
        request = {"project": self.clients.project, "filter": expression, "max_results": PAGE}
        pages = ask(what, lambda: list(self.clients.call(kind, "aggregated_list", request).pages))
        silent = {last_part(one) for page in pages for one in page.unreachables}
        silent |= {
            last_part(name)
            for page in pages
            for name, scope in page.items.items()
            if scope.warning.code == UNREACHABLE
        }
        regions = wanted_regions(self.options)  # The options are stored, so they name all.
        ours = sorted(one for one in silent if {one, region_of(one)} & {"global", *regions})
        if ours:
            raise TransientError(f"{what}: {', '.join(ours)} cannot be reached, so the list is not complete")
        return [scope for page in pages for scope in page.items.values()]

    def _vanished(self, ending: Ending, job_id: str | None) -> Instance | None:
        if job_id is not None:
            job = job_id if attributes.is_of_job(ending.place.name, job_id) else None
        else:
            job = attributes.job_of(ending.place.name)
        if job is None:
            return None
        store_url = self._stores.get(attributes.digest_in(ending.place.name), "")
        return to_vanished_instance(ending, job_id=job, store_url=store_url)

    def _learn_store(self, store_url: str) -> None:
        with self._lock:
            self._stores[machinetags.store_digest(store_url)] = store_url

    # --- single machines --------------------------------------------------------------------------

    def _write_attributes(self, place: Place, first_name: str | None, facts: Mapping[str, str]) -> None:
        """Write ``facts`` to a machine's attributes.

        ``first_name`` is the name of the machine with the address in ``facts``, and may be written instead of
        it, or None if it may not.
        """
        what = "announcing to the machines"
        with ERRORS.translated(what, _LATER):
            metadata = self._ask_about(place, "get").metadata
            present = {one.key: one.value for one in metadata.items}
            mended = {**present, **facts}
            if first_name is not None and present.get(attributes.MASTER_ADDR) == first_name:
                mended[attributes.MASTER_ADDR] = first_name
            if mended == present:
                return
            resource = {
                "fingerprint": metadata.fingerprint,
                "items": [{"key": key, "value": value} for key, value in mended.items()],
            }
            operation = self._ask_about(place, "set_metadata_unary", metadata_resource=resource)
        causes = causes_of(operation) if is_done(operation) else []
        if causes:
            raise TransientError(f"{what}: {causes[0].message} ({causes[0].code})")

    def _delete(self, targets: Sequence[Place], what: str) -> None:
        """Delete each machine, even if that fails for another one; raise the first error at the end."""
        first: CloudspotError | None = None
        for place in targets:
            try:
                self._ask_about(place, "delete_unary")
            except api.NotFound:
                continue
            except ERRORS.raised as error:
                first = first or ERRORS.translation(error, what, _BUSY)
        if first is not None:
            raise first

    def _ask_about(self, place: Place, method: str, **more: Any) -> Any:
        where = {"project": self.clients.project, "zone": place.zone, "instance": place.instance}
        return ERRORS.unless_throttled(
            lambda: self.clients.call("InstancesClient", method, {**where, **more})
        )
