"""Creates, lists and ends Compute Engine machines: one bulk insert a launch, safe to repeat by its id."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from google.api_core import exceptions as api

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import Provisioner
from cloudspot.model import Instance, InstanceGroup, InstanceState, LaunchRequest, Offer, Resources
from cloudspot_gcp import attributes, placement
from cloudspot_gcp.clients import READ_SECONDS, GcpClients
from cloudspot_gcp.errors import SDK_ERRORS, translated, translation
from cloudspot_gcp.listing import (
    END_OPERATIONS,
    Ending,
    endings,
    is_done,
    last_part,
    machine_id,
    split_id,
    target_of,
    to_instance,
    to_vanished_instance,
)
from cloudspot_gcp.lookups import ask
from cloudspot_gcp.offers import OfferFinder
from cloudspot_gcp.operations import wait_for_region
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.refusals import MIN_COUNT, causes_of, failure, launching, refusal, unless_throttled
from cloudspot_gcp.request import ComputeRequest, decode_request, render_request, request_id

_log = logging.getLogger("cloudspot.gcp.compute")

PAGE: Final = 500
"""The most that a page of a listing has."""
_ENDS: Final = " OR ".join(f'(operationType = "{kind}")' for kind in END_OPERATIONS)
"""Whose targets' names are compared here: the API's own filter finds nothing by a part of a URL."""

_LATER: Final = {"notFound": TransientError, "conditionNotMet": TransientError}
"""A machine that does not show yet, and one whose attributes somebody else has just changed."""


class ComputeProvisioner(Provisioner):
    """The machines of one project. Thread-safe; asks nothing before it is asked."""

    # Google names no time for which Compute Engine remembers a request id; its younger APIs promise an hour.
    # Half of that is believed. A launch that is not known by then is closed, and another one is begun.
    token_seconds: ClassVar[float] = 1800.0
    # A machine that is gone is told of by the operation that ended it. Without one (operations are kept for
    # two weeks) it is believed to be gone after ten minutes: listings lag by seconds at most.
    absence_proves_after_seconds: ClassVar[float] = 600.0

    def __init__(self, options: GcpOptions, clients: GcpClients, *, provider: str = "gcp") -> None:
        """Keep the job's options; ``provider`` is the name that goes into requests."""
        self._options = options
        self._clients = clients
        self._provider = provider
        self._finder = OfferFinder(options, clients)
        self._lock = threading.Lock()
        self._stores: dict[str, str] = {}
        """By ``store_digest``: the stores whose machines were seen."""

    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return one bulk insert; what must be looked up came with the offer.

        Raises:
            SpecError: the boot script is too long for Compute Engine.
        """
        return render_request(self._options, group, provider=self._provider)

    def offers(self, resources: Resources) -> Sequence[Offer]:
        """Return the types that fit, in each region, on both markets; what is wrong with an option, too.

        Raises:
            SpecError: an option names what does not exist.
            AuthError: a right is missing.
            TransientError: Google did not answer.
        """
        return self._finder.offers(resources)

    def create(self, request: LaunchRequest, *, token: str) -> Sequence[Instance]:
        """Create all machines of the request by one bulk insert, or none.

        Its operation is waited for: only that tells whether there is capacity.
        """
        body = decode_request(request)
        self._learn_store(body.store_url)
        if body.made_placement_policy is not None:
            placement.make(self._clients, body)
        operation = self._bulk_insert(body, token)
        operation = wait_for_region(self._clients, body.region, operation, launching(body))
        causes = causes_of(operation)
        group = self._operations(f'operationGroupId = "{operation.operation_group_id}"', launching(body))
        made = [
            target
            for one in group
            if one.operation_type == "insert"
            and not causes_of(one)
            and (target := target_of(one)) is not None
        ]
        if causes:
            self._remove(made, launching(body))
            if any(cause.code == MIN_COUNT for cause in causes):
                causes += [
                    cause for one in group for cause in causes_of(one) if one.operation_type == "insert"
                ]
            raise failure(causes, body)
        return self._made(body, made)

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Mend the attributes of machines whose launch is smaller than was asked for; safe to repeat.

        The others have been told all by their request: how many they are, and the name of the first.

        Raises:
            TransientError: not all machines have the facts; call again.
        """
        ids = {one.id for one in instances}
        for one in instances:
            where = split_id(one.id)
            if where is not None and one.state is not InstanceState.ENDED:
                self._tell(where, ids, facts)

    def instances(self, *, job_id: str | None = None) -> Sequence[Instance]:
        """Return the machines with cloudspot's labels, and those that are gone, for two weeks.

        Without ``job_id`` those that are gone are left out whose job's id is too long for their names.

        Raises:
            TransientError: the listing failed; nothing is known.
        """
        wanted = f"labels.{attributes.JOB}:*" if job_id is None else f'labels.{attributes.JOB} = "{job_id}"'
        described = self._described(wanted, "listing the machines")
        ended = endings(self._operations(_ENDS, "listing what became of the machines"))
        found: dict[str, Instance] = {}
        for one in described:
            instance = to_instance(one, ended.get(machine_id(last_part(one.zone), one.name)))
            if instance is not None:
                self._learn_store(instance.store_url)
                found[instance.id] = instance
        for key, ending in ended.items():
            if key not in found:
                gone = self._vanished(ending, job_id)
                if gone is not None:
                    found[key] = gone
        return tuple(found.values())

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Delete the machines and return without waiting; those that are gone are left out."""
        targets = [where for one in dict.fromkeys(instance_ids) if (where := split_id(one)) is not None]
        self._delete(targets, "deleting machines")

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Delete what the job's machines have left: stopped machines, and placement policies; safe to repeat.

        A machine that shuts itself down stays, stopped, and its disk is billed.

        Raises:
            TransientError: something is still in use, or cannot be told.
        """
        wanted = f'labels.{attributes.JOB} = "{job_id}"'
        digest = attributes.store_digest(store_url) if store_url else None
        stopped = [
            (last_part(one.zone), one.name)
            for one in self._described(wanted, "listing the job's machines")
            if one.status == "TERMINATED"
            and attributes.launch_and_rank(one.name) is not None
            and digest in {None, attributes.digest_in(one.name)}
        ]
        self._delete(stopped, "deleting stopped machines")
        if self._options.placement_policy == "auto":
            placement.remove(self._clients, self._options, job_id, store_url=store_url)

    # --- the bulk insert --------------------------------------------------------------------------

    def _bulk_insert(self, body: ComputeRequest, token: str) -> Any:
        from google.cloud.compute_v1 import BulkInsertInstanceResource

        # With the very fields of the stored request: one that the SDK does not know is an error.
        resource = BulkInsertInstanceResource.from_json(json.dumps(body.bulk_insert))
        client = self._clients.compute("RegionInstancesClient")
        asked = {
            "project": body.project,
            "region": body.region,
            "request_id": request_id(token),
            "bulk_insert_instance_resource_resource": resource,
        }
        try:
            return unless_throttled(
                lambda: client.bulk_insert_unary(request=asked, retry=None, timeout=READ_SECONDS)
            )
        except SDK_ERRORS as error:
            raise refusal(error, body) from error

    def _remove(self, made: Sequence[tuple[str, str]], what: str) -> None:
        """Delete what a launch that failed has made all the same, as its operations tell."""
        if not made:
            return
        try:
            self._delete(made, f"{what}: deleting what is left of it")
        except TransientError:
            raise
        except CloudspotError as error:
            raise TransientError(f"{error}; machines may be left") from error

    def _made(self, body: ComputeRequest, made: Sequence[tuple[str, str]]) -> tuple[Instance, ...]:
        """Return the machines of a launch that went well, the youngest of which no listing may have yet."""
        job_id = body.labels[attributes.JOB]
        if not made:
            raise TransientError(f"{launching(body)}: no machine shows yet; asking again")
        listed = {one.id: one for one in self.instances(job_id=job_id)}
        found = []
        for zone, name in made:
            launch, rank = attributes.launch_and_rank(name) or (0, None)
            young = Instance(
                id=machine_id(zone, name),
                state=InstanceState.PENDING,
                job_id=job_id,
                launch=launch,
                rank=rank,
                zone=zone,
                instance_type=body.machine_type,
                market=body.market,
                store_url=body.store_url,
            )
            found.append(listed.get(young.id, young))
        return tuple(sorted(found, key=lambda one: one.rank or 0))

    # --- listings ---------------------------------------------------------------------------------

    def _described(self, expression: str, what: str) -> list[Any]:
        client = self._clients.compute("InstancesClient")
        request = {"project": self._clients.project, "filter": expression, "max_results": PAGE}
        pages = ask(
            what, lambda: list(client.aggregated_list(request=request, retry=None, timeout=READ_SECONDS))
        )
        return [one for _, scope in pages for one in scope.instances]

    def _operations(self, expression: str, what: str) -> list[Any]:
        client = self._clients.compute("GlobalOperationsClient")
        request = {"project": self._clients.project, "filter": expression, "max_results": PAGE}
        pages = ask(
            what, lambda: list(client.aggregated_list(request=request, retry=None, timeout=READ_SECONDS))
        )
        return [one for _, scope in pages for one in scope.operations]

    def _vanished(self, ending: Ending, job_id: str | None) -> Instance | None:
        if job_id is not None:
            job = job_id if attributes.is_of_job(ending.name, job_id) else None
        else:
            job = attributes.job_of(ending.name)
        if job is None:
            return None
        store_url = self._stores.get(attributes.digest_in(ending.name), "")
        return to_vanished_instance(ending, job_id=job, store_url=store_url)

    def _learn_store(self, store_url: str) -> None:
        with self._lock:
            self._stores[attributes.store_digest(store_url)] = store_url

    # --- single machines --------------------------------------------------------------------------

    def _tell(self, where: tuple[str, str], ids: set[str], facts: Mapping[str, str]) -> None:
        zone, name = where
        client = self._clients.compute("InstancesClient")
        request = {"project": self._clients.project, "zone": zone, "instance": name}
        what = "announcing to the machines"
        with translated(what, _LATER):
            metadata = unless_throttled(
                lambda: client.get(request=request, retry=None, timeout=READ_SECONDS)
            ).metadata
            told = {one.key: one.value for one in metadata.items}
            mended = dict(told)
            if attributes.NUM_NODES in facts:
                mended[attributes.NUM_NODES] = facts[attributes.NUM_NODES]
            first = told.get(attributes.MASTER_ADDR, "")
            if attributes.MASTER_ADDR in facts and machine_id(zone, first) not in ids:
                mended[attributes.MASTER_ADDR] = facts[attributes.MASTER_ADDR]
            if mended == told:
                return
            resource = {
                "fingerprint": metadata.fingerprint,
                "items": [{"key": key, "value": value} for key, value in mended.items()],
            }
            asked = {**request, "metadata_resource": resource}
            operation = unless_throttled(
                lambda: client.set_metadata_unary(request=asked, retry=None, timeout=READ_SECONDS)
            )
        causes = causes_of(operation) if is_done(operation) else []
        if causes:
            raise TransientError(f"{what}: {causes[0].message} ({causes[0].code})")

    def _delete(self, targets: Sequence[tuple[str, str]], what: str) -> None:
        """Ask for the end of each, also where that of another cannot be asked for; the first error counts."""
        first: CloudspotError | None = None
        for zone, name in targets:
            try:
                self._delete_one(zone, name)
            except api.NotFound:
                continue
            except SDK_ERRORS as error:
                first = first or translation(error, what)
        if first is not None:
            raise first

    def _delete_one(self, zone: str, name: str) -> None:
        client = self._clients.compute("InstancesClient")
        request = {"project": self._clients.project, "zone": zone, "instance": name}
        unless_throttled(
            lambda: client.delete_unary(request=request, retry=None, timeout=READ_SECONDS),
        )
