"""Enables Google's APIs in a project, and refuses requests to APIs that are off.

Source: Service Usage API v1 (checked 2026-11); the refusal's wording and details are from memory of the
current APIs. serviceusage.googleapis.com itself is on in each new project.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.discovery import Matched
from cloudspot_gcp_sandbox.guardedapi import Grants, GuardedApi
from cloudspot_gcp_sandbox.identities import Identities
from cloudspot_gcp_sandbox.wsgi import Reply, Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

KNOWN: Final = frozenset(
    {
        *("artifactregistry", "cloudbilling", "cloudbuild", "cloudfunctions", "cloudresourcemanager"),
        *("cloudscheduler", "compute", "eventarc", "iam", "logging", "pubsub", "run", "storage"),
    }
)
"""The services that cloudspot may need."""
_OWN: Final = re.compile(r"/v1/(?:projects/[^/]+/services(?:/.*)?|operations/.*)")
_PATHS: Final = (
    (re.compile(r"/compute/v1/.*|/batch/compute/v1"), "compute"),
    (re.compile(r"/(?:upload/|download/|resumable/upload/)?storage/v1/.*"), "storage"),
    (re.compile(r"/v1/projects/[^/:]+/(?:serviceAccounts|roles)(?:[/:].*)?"), "iam"),
    (re.compile(r"/v1/projects/[^/:]+(?::.*)?"), "cloudresourcemanager"),
    (re.compile(r"/v2/entries:.*"), "logging"),
    (re.compile(r"/v2/projects/[^/]+/locations/[^/]+/functions.*"), "cloudfunctions"),
    (re.compile(r"/v1/projects/[^/]+/locations/[^/]+/jobs.*"), "cloudscheduler"),
)
"""The services' paths; requests to other services are not refused here."""


class ServiceUsage:
    """WSGI middleware; requests to enabled services reach ``app`` unchanged. Thread-safe."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        faults: Faults,
        identities: Identities,
        grants: Grants,
        enabled: Iterable[str] = KNOWN,
    ) -> None:
        """The services in ``enabled`` are on from the start."""
        self._app = app
        self._lock = threading.Lock()
        self.enabled = set(enabled)
        methods = {
            "serviceusage.services.get": self._get,
            "serviceusage.services.enable": self._enable,
        }
        self._api = GuardedApi(
            "serviceusage.v1", methods, faults=faults, identities=identities, grants=grants
        )

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request.of(environ)
        if _OWN.fullmatch(request.path):
            return self._api.answer(request).send(start_response)
        service = next((name for path, name in _PATHS if path.fullmatch(request.path)), None)
        if service is not None and service not in self.enabled:
            name = f"{service}.googleapis.com"
            refusal = ApiError(
                403,
                "accessNotConfigured",
                f"{name} has not been used in project before or it is disabled.",
                domain="usageLimits",
                details=[
                    {
                        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                        "reason": "SERVICE_DISABLED",
                        "domain": "googleapis.com",
                        "metadata": {"service": name},
                    }
                ],
            )
            return Reply.refusal(refusal).send(start_response)
        return self._app(environ, start_response)

    def _get(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        name = self._known(matched)
        with self._lock:
            state = "ENABLED" if name in self.enabled else "DISABLED"
        return {"name": matched.path["name"], "state": state}

    def _enable(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        name = self._known(matched)
        with self._lock:
            self.enabled.add(name)
        return {"name": "operations/noop.DONE_OPERATION", "done": True}

    def _known(self, matched: Matched) -> str:
        name = matched.path["name"].rpartition("/")[2].removesuffix(".googleapis.com")
        if name not in KNOWN:
            raise ApiError(403, "forbidden", f"Not found or permission denied for service(s): {name}.")
        return name
