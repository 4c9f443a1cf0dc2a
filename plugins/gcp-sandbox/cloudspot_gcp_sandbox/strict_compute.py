"""Compute Engine as strict as the real one: checks every request against Google's own API description.

The module also answers a submitter's requests to other services: the price list (Cloud Billing) and the
caller's permissions (Resource Manager). Each call is recorded by its method's id, such as
``compute.instances.list``.

Faults use these ids: ``inject("compute.regionInstances.bulkInsert", ...)`` refuses the request;
``inject("operation compute.regionInstances.bulkInsert", CODE, ...)`` accepts it and lets its operation end
with the error, with ``happens`` after the machines were made; the operation of ``compute.images.insert`` can
fail in the same way. ``inject("preemption", "")`` reclaims the next new machine at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.cloud import MachineHost
from cloudspot_gcp.options import DEFAULT_SERVICE_ACCOUNT
from cloudspot_gcp_sandbox import prices
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.batch import answer_batch
from cloudspot_gcp_sandbox.catalogue import IMAGES, ZONES, zone_names
from cloudspot_gcp_sandbox.computelists import Lists
from cloudspot_gcp_sandbox.computewrites import Writes
from cloudspot_gcp_sandbox.discovery import Matched, api
from cloudspot_gcp_sandbox.disks import Disks
from cloudspot_gcp_sandbox.guardedapi import NO_GRANTS, Grants
from cloudspot_gcp_sandbox.identities import Identities
from cloudspot_gcp_sandbox.launching import Site
from cloudspot_gcp_sandbox.machines import Machines
from cloudspot_gcp_sandbox.operations import Operations
from cloudspot_gcp_sandbox.partial import select
from cloudspot_gcp_sandbox.rights import is_granted_to_machines, resource_of, rights_of
from cloudspot_gcp_sandbox.saved_images import SavedImages
from cloudspot_gcp_sandbox.wsgi import Reply, Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

PROJECT: Final = "cloudspot-sandbox"
_APIS: Final = (
    ("/compute/v1/", "compute.v1"),
    (f"/v1/services/{prices.SERVICE}/", "cloudbilling.v1"),
    ("/v1/projects/", "cloudresourcemanager.v1"),
)


_BATCH: Final = "/batch/compute/v1"
_OF_ANY_PROJECT: Final = frozenset(
    {"compute.images.get", "compute.images.getFromFamily", "compute.images.list"}
)


class StrictCompute:
    """A WSGI application; requests to other services go to ``inner``."""

    def __init__(
        self,
        host: MachineHost,
        *,
        identities: Identities,
        inner: WSGIApplication | None = None,
        faults: Faults | None = None,
        grants: Grants = NO_GRANTS,
        clock: Callable[[], float] = time.time,
        project: str = PROJECT,
    ) -> None:
        """Boot machines on ``host``; ``clock`` (seconds since the epoch) measures lags."""
        self.faults = faults or Faults()
        self.project = project
        self.operations = Operations(project, clock)
        self.machines = Machines(host, self.operations, self.faults, clock, project)
        self.site = Site(
            project=project,
            networks=["global/networks/default"],
            subnetworks={
                f"regions/{region}/subnetworks/default": "global/networks/default" for region in ZONES
            },
            service_accounts=[f"{DEFAULT_SERVICE_ACCOUNT}@{project}.iam.gserviceaccount.com"],
            policies={},
            images=IMAGES,
        )
        self._identities = identities
        self._grants = grants
        self._inner = inner
        disks = Disks(self.site, self.machines, self.operations, clock)
        self._images = SavedImages(self.site, host, self.operations, disks, self.faults, clock)
        self._lists = lists = Lists(self.site, self.machines, self.operations, disks, self.faults)
        self._writes = Writes(
            self.site, self.machines, self.operations, disks, self._images, self.faults, clock
        )
        lists.rules = self._writes.networks.rules
        self._handlers = {**lists.handlers(), **self._writes.handlers()}

    def preempted(self) -> list[tuple[str, str]]:
        """Return each machine preempted so far, with its region, under the names that the audit log uses."""
        with self.machines.lock:
            self.machines.refresh()
            shown = [one for ones in self.operations.by_scope().values() for one in ones]
        links = [
            str(one["targetLink"]).partition("/projects/")[2]
            for one in shown
            if one["operationType"] == "compute.instances.preempted"
        ]
        return [(f"projects/{link}", link.split("/")[2].rpartition("-")[0]) for link in links]

    @property
    def unreachable(self) -> set[str]:
        """Return the zones that do not answer listings; tests may add to the set, which is empty at first."""
        return self._lists.unreachable

    @property
    def operation_seconds(self) -> float:
        """Return the duration of operations that make or remove something, in seconds; it is 0 at first."""
        return self._writes.operation_seconds

    @operation_seconds.setter
    def operation_seconds(self, seconds: float) -> None:
        self._writes.operation_seconds = seconds

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        request = Request.of(environ)
        if self._inner is not None and _api_of(request) is None and request.path != _BATCH:
            return self._inner(environ, start_response)
        return self._reply(request).send(start_response)

    def _reply(self, request: Request) -> Reply:
        if request.path == _BATCH and request.method == "POST":
            try:
                return answer_batch(request, self._reply)
            except ApiError as refused:
                return Reply.refusal(refused)
        name = _api_of(request)
        if name is None:
            return Reply.refusal(ApiError(404, "notFound", "Not Found"))
        return self._answer(request, name)

    def _answer(self, request: Request, name: str) -> Reply:
        service = name.partition(".")[0]
        caller, action, region, error = "", request.path, "", None
        parameters: dict[str, Any] = {}
        try:
            caller = self._identities.authenticate(request)
            body = request.read_json()
            matched = api(name).check(request.method, request.path, request.query, body)
            action = matched.method_id
            parameters = {**matched.path, **matched.query, **({"body": body} if body is not None else {})}
            region = matched.path.get("region", matched.path.get("zone", "-").rpartition("-")[0])
            reply = self._carry_out(name, matched, body or {}, caller, parameters)
        except ApiError as refused:
            error = refused.reason
            reply = Reply.refusal(refused)
        self.faults.record(Call(service, action, parameters, region, error, access_key=caller))
        return reply

    def _carry_out(
        self, name: str, matched: Matched, body: Mapping[str, Any], caller: str, parameters: Mapping[str, Any]
    ) -> Reply:
        action = matched.method_id
        if name == "compute.v1" and self.faults.is_throttled():
            message = f"Rate Limit Exceeded for {action}"
            raise ApiError(403, "rateLimitExceeded", message, domain="usageLimits")
        injected = self.faults.take(action)
        if injected is not None and not injected.happens:
            raise ApiError(injected.status, injected.code, injected.message)
        self._check_place(matched)
        self._authorize(Call("compute", action, parameters, "", None, access_key=caller))
        with self.machines.lock:
            self.machines.refresh()
            self._images.refresh()
            answer = self._value(matched, body, caller)
        if injected is not None:
            raise ApiError(injected.status, injected.code, injected.message)
        api(name).check_answer(action, answer)
        fields = matched.query.get("fields") or matched.query.get("$fields")
        return Reply.json(select(answer, fields) if fields else answer)

    def _value(self, matched: Matched, body: Mapping[str, Any], caller: str) -> Mapping[str, Any]:
        if matched.method_id == "cloudbilling.services.skus.list":
            return self._skus(matched.query)
        if matched.method_id == "cloudresourcemanager.projects.testIamPermissions":
            wanted = body.get("permissions", ())
            granted = [
                one
                for one in wanted
                if one not in self.faults.denied and not self._grants.lacks(caller, one, "")
            ]
            return {"permissions": granted} if granted else {}
        handler = self._handlers.get(matched.method_id)
        if handler is None:
            raise ApiError(
                501, "notImplemented", f"the emulated Compute Engine does not support {matched.method_id}"
            )
        return handler(matched.path, matched.query, body, caller)

    def _skus(self, query: Mapping[str, Any]) -> Mapping[str, Any]:
        if query.get("currencyCode", "USD") != "USD":
            raise ApiError(501, "notImplemented", "the emulated price list is only in USD")
        found, start = prices.skus(), int(query.get("pageToken", 0) or 0)
        if "disk-without-price" in self.faults.contrary:
            found = tuple(one for one in found if "Capacity" not in str(one["description"]))
        end = start + (query.get("pageSize") or 5000)
        return {"skus": list(found[start:end]), "nextPageToken": str(end) if end < len(found) else ""}

    def _check_place(self, matched: Matched) -> None:
        """Refuse a project, region or zone that this account does not have."""
        path = matched.path
        project = path.get("project", path.get("resource", self.project))
        if project != self.project and matched.method_id not in _OF_ANY_PROJECT:
            raise ApiError(404, "notFound", f"The resource 'projects/{project}' was not found")
        for kind, known in (("zone", zone_names()), ("region", list(ZONES))):
            if kind in path and path[kind] not in known:
                where = f"projects/{project}/{kind}s/{path[kind]}"
                if matched.method_id in {"compute.zones.get", "compute.regions.get"}:
                    raise ApiError(404, "notFound", f"The resource '{where}' was not found")
                raise ApiError(
                    400, "invalid", f"Invalid value for field '{kind}': '{path[kind]}'. Unknown {kind}."
                )

    def _authorize(self, call: Call) -> None:
        taken = rights_of(call)
        lacking = sorted(taken & self.faults.denied)
        caller, where = call.access_key, resource_of(call)
        for right in sorted(taken):
            resource = self.site.service_accounts[0] if right == "iam.serviceAccounts.actAs" else where
            if caller not in self.site.service_accounts:
                is_lacking = self._grants.lacks(caller, right, resource)
            else:
                is_lacking = not (
                    is_granted_to_machines(right, where) or self._grants.has(caller, right, resource)
                )
                is_end = right == "compute.instances.delete"
                is_lacking = is_lacking or (is_end and "self-delete-refused" in self.faults.contrary)
            lacking += [right] if is_lacking else []
        if lacking:
            where = f"projects/{self.project}"
            if lacking[0] == "iam.serviceAccounts.actAs":
                message = (
                    "The user does not have access to service account "
                    f"'{self.site.service_accounts[0]}'.  User: 'you'.  Ask a project owner to grant you the "
                    "iam.serviceAccountUser role on the service account"
                )
                raise ApiError(400, "SERVICE_ACCOUNT_ACCESS_DENIED", message)
            raise ApiError(403, "forbidden", f"Required '{lacking[0]}' permission for '{where}'")


def _api_of(request: Request) -> str | None:
    """Return the document of a request's API, or None if the API is not emulated here."""
    name = next((name for start, name in _APIS if request.path.startswith(start)), None)
    if name == "cloudresourcemanager.v1" and not request.path.endswith(":testIamPermissions"):
        return None
    return name
