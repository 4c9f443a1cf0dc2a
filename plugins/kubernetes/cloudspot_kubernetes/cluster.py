"""Makes requests to the cluster's API with a kubeconfig's credentials, and translates its refusals."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from cloudspot.errors import AuthError, CloudspotError, ProvisionError, QuotaError, TransientError
from cloudspot.plugin.answers import UNREADABLE
from cloudspot.plugin.apirecording import ApiExchange, is_observed, report
from cloudspot_kubernetes.options import KubernetesOptions, field_error

TIMEOUT_SECONDS: Final = 30.0
PAGE: Final = 500
STARTING_SECONDS: Final = 60.0
"""How long after a failure a denial may come from an API server that has just started, in seconds."""
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MAX_MESSAGE: Final = 400
_MAX_REFUSAL: Final = 3900
"""The maximum length of a refusal; that of a quota names each of its resources three times."""
_NO_LIMIT: Final = ("must specify limits.", "No limit is specified")
"""The messages of a ResourceQuota and a LimitRange about a container without the limit that they require."""


class Refusal(CloudspotError):
    """The API server refused a request; ``translated`` turns this into cloudspot's error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Cluster:
    """One cluster as one user. Thread-safe; reads the kubeconfig when it is first used."""

    def __init__(
        self, options: KubernetesOptions, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Do no I/O."""
        self._options = options
        self._monotonic = monotonic
        self._failed_at = -STARTING_SECONDS
        self._lock = threading.RLock()
        self._api: Any = None
        self._context_namespace = ""

    @property
    def namespace(self) -> str:
        """Return the namespace of the options, or else of the context."""
        self.connect()
        return self._options.namespace or self._context_namespace or "default"

    @property
    def digest(self) -> str:
        """Return a digest that identifies this cluster, whatever its address."""
        settings = self.connect().configuration
        authority = settings.ssl_ca_cert
        identity = Path(authority).read_bytes() if authority else str(settings.host).encode()
        return hashlib.sha256(b"\n".join(identity.split())).hexdigest()[:16]

    def connect(self) -> Any:
        """Return the SDK's client; this makes no request.

        Raises:
            AuthError: there is no kubeconfig, or it leads to a cluster other than the job's.
            SpecError: the context does not exist in the kubeconfig.
        """
        with self._lock:
            if self._api is None:
                self._api = self._load()
                wanted = self._options.cluster
                if wanted is not None and wanted != self.digest:
                    self._api = None
                    raise AuthError(
                        f"providers.kubernetes.cluster: the job's pods are in the cluster {wanted}, but this "
                        "kubeconfig leads to another; use that cluster's kubeconfig, or name its context"
                    )
            return self._api

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        is_text: bool = False,
    ) -> Any:
        """Make a request once, and return the response's JSON, or its text if it is not JSON.

        Raises:
            Refusal: the request was refused.
            TransientError: there is no readable response; the request may have been carried out.
        """
        api = self.connect()
        settings = api.configuration
        headers = {
            "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"
        }
        # The credentials are read each time, because the SDK renews those that come from a program or a file.
        # The SDK's methods are not used, because their models refuse the responses of other versions of
        # Kubernetes.
        for one in settings.auth_settings().values():
            headers[one["key"]] = one["value"]
        url = f"{settings.host}{path}"
        began = self._monotonic()
        try:
            answer = api.rest_client.pool_manager.request(
                method,
                f"{url}?{urlencode(query)}" if query else url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(total=TIMEOUT_SECONDS),
                retries=False,
            )
            if is_observed():
                _report(method, path, body, query, answer, self._monotonic() - began)
            if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
                raise self._understood(_refusal(answer.status, answer.data))
            return answer.data.decode("utf-8", "replace") if is_text else json.loads(answer.data)
        except urllib3.exceptions.HTTPError as error:
            self._failed_at = self._monotonic()
            raise TransientError(f"no answer from the cluster's API: {one_line(str(error))}") from error
        except UNREADABLE as error:
            raise TransientError("the answer of the cluster's API cannot be read") from error

    def list(self, path: str, *, selector: str) -> Iterator[Mapping[str, Any]]:
        """Yield the objects with these labels, from every page; see ``request``."""
        query = {"labelSelector": selector, "limit": str(PAGE)}
        while True:
            answer = self.request("GET", path, query=query)
            yield from answer["items"]
            following = str(answer["metadata"].get("continue") or "")
            if not following:
                return
            if following == query.get("continue"):
                raise TransientError("the cluster's API returned the same page of a list twice")
            query["continue"] = following

    def _understood(self, refusal: Refusal) -> CloudspotError:
        """Return the refusal, or a TransientError if the API server may not have read its roles yet.

        A server that has just started refuses every request for some seconds (seen with 1.20).
        """
        if refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._failed_at = self._monotonic()
        is_new = self._monotonic() - self._failed_at < STARTING_SECONDS
        if refusal.status == HTTPStatus.FORBIDDEN and is_denial(refusal) and is_new:
            return TransientError(
                f"the cluster's API was away and may not have read its roles yet: {refusal}"
            )
        return refusal

    def _load(self) -> Any:
        settings = client.Configuration()
        # The SDK reads KUBECONFIG only when it is imported.
        path = self._options.kubeconfig or os.environ.get("KUBECONFIG") or None
        wanted = self._options.context or None
        try:
            config.load_kube_config(path, context=wanted, client_configuration=settings, persist_config=False)
            contexts, current = config.list_kube_config_contexts(path)
            chosen = next((one for one in contexts if one["name"] == wanted), current)
            self._context_namespace = chosen["context"].get("namespace", "")
        except config.ConfigException as error:
            if wanted is not None or self._options.kubeconfig:
                raise field_error("context", one_line(str(error))) from error
            self._load_service_account(settings, error)
        return client.ApiClient(settings)

    def _load_service_account(self, settings: Any, outside: Exception) -> None:
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException as error:
            raise AuthError(
                f"there is no kubeconfig: {one_line(str(outside))}; set KUBECONFIG, or name it in "
                "providers.kubernetes.kubeconfig"
            ) from error
        if _NAMESPACE_FILE.exists():
            self._context_namespace = _NAMESPACE_FILE.read_text(encoding="ascii").strip()


def translated(refusal: Refusal, what: str) -> CloudspotError:
    """Return the error for a refusal, with ``what`` before the reason.

    Admission refuses requests with the same status as RBAC, so the message distinguishes the two. Sources:
    the API concepts and the admission plugins of Kubernetes ("exceeded quota" of ResourceQuota, "no
    PriorityClass", "error looking up service account"), seen with 1.20.
    """
    text = f"{what}: {refusal}"
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        return AuthError(f"{what}: the cluster does not accept the credentials")
    if refusal.status == HTTPStatus.FORBIDDEN:
        if "exceeded quota" in str(refusal):
            return QuotaError(f"{text}; ask for less, or raise the namespace's ResourceQuota")
        if "status unknown for quota" in str(refusal):  # the quota is new
            return TransientError(text)
        if any(one in str(refusal) for one in _NO_LIMIT):
            return ProvisionError(
                f"{text}; set cpu_limit and memory of the type in providers.kubernetes.types"
            )
        if is_denial(refusal):
            return AuthError(f"{what}: access denied: {refusal}")
        return ProvisionError(text)
    if refusal.status == HTTPStatus.TOO_MANY_REQUESTS or refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return TransientError(text)
    if refusal.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}:
        return ProvisionError(text)
    return CloudspotError(text)


def is_denial(refusal: Refusal) -> bool:
    """Return whether a 403 means that a permission is missing; a 403 without a reason is a gateway's."""
    return not refusal.reason or (" cannot " in str(refusal) and "User " in str(refusal))


def _refusal(status: int, data: bytes) -> Refusal:
    try:
        content = json.loads(data)
        return Refusal(
            status,
            str(content.get("reason", "")),
            one_line(str(content.get("message", "")), most=_MAX_REFUSAL),
        )
    except UNREADABLE:
        return Refusal(status, "", f"HTTP status {status}")


def _report(
    method: str, path: str, body: Any, query: Mapping[str, str] | None, answer: Any, seconds: float
) -> None:
    """Report a response, omitting its body if that is not JSON, as for a pod's log."""
    try:
        content = json.loads(answer.data)
    except UNREADABLE:
        content = None
    failed = answer.status >= HTTPStatus.MULTIPLE_CHOICES
    reason = content.get("reason") if isinstance(content, Mapping) else None
    report(
        ApiExchange(
            service="kubernetes",
            action=f"{method} {path}",
            request={"query": dict(query or {}), "body": body},
            answer=content,
            status=answer.status,
            code=str(reason or answer.status) if failed else "",
            seconds=seconds,
        )
    )


def one_line(text: str, *, most: int = _MAX_MESSAGE) -> str:
    """Return a text from outside as a printable line of limited length."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return line if len(line) <= most else line[: most - 3] + "..."
