"""Clients of Google's services: each is made once, when first used, with our timeouts and user agent.

Credentials are Google's Application Default Credentials: ``GOOGLE_APPLICATION_CREDENTIALS``, gcloud's login,
the machine's service account.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import google.auth
import google.auth.exceptions
import requests.adapters
from google.api_core.client_info import ClientInfo
from google.auth.transport.requests import AuthorizedSession

import cloudspot
from cloudspot.errors import SpecError
from cloudspot.plugin.apirecording import is_observed
from cloudspot_gcp.apihooks import report_answers
from cloudspot_gcp.errors import ERRORS, error_of

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
"""How long a connection may be silent, in seconds. All services usually answer within a few seconds."""
TIMEOUT = (CONNECT_SECONDS, READ_SECONDS)
MAX_CONNECTIONS = 32
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_NEVER = datetime.max  # noqa: DTZ901 - google-auth compares times without zones
USER_AGENT = f"cloudspot/{cloudspot.__version__}"


class GcpClients:
    """Makes and caches clients of one project's services. Thread-safe; construction does no I/O.

    The project comes from the options, else from the sources of Application Default Credentials:
    ``GOOGLE_CLOUD_PROJECT``, the credentials' file, gcloud's configuration, the machine.
    """

    def __init__(self, *, project: str | None = None) -> None:
        """Use ``project``, or the environment's project if it is None."""
        self._wanted_project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or None
        self._lock = threading.RLock()
        self._found: tuple[Any, str | None] | None = None
        self._made: dict[str, Any] = {}

    @property
    def project(self) -> str:
        """Return the project to which machines and logs belong.

        Raises:
            SpecError: no project is configured.
            AuthError: there are no credentials, which could have named the project.
        """
        project = self.project_or_none()
        if project is None:
            raise SpecError(
                "no Google Cloud project: set providers.gcp.project, GOOGLE_CLOUD_PROJECT or "
                "`gcloud config set project PROJECT`"
            )
        return project

    def project_or_none(self) -> str | None:
        """Return the project, or None if none is configured; raise AuthError as ``project`` does."""
        return self._wanted_project or self._default()[1]

    def credentials(self) -> Any:
        """Return ``google.auth.credentials.Credentials`` for all services; raise AuthError without any."""
        return self._default()[0]

    def session(self) -> Any:
        """Return an ``AuthorizedSession``: requests with a bearer token, up to 32 connections at once.

        The session repeats a request only in order to use a fresh token.
        """
        return self._once("session", self._make_session)

    def storage(self) -> Any:
        """Return the ``google.cloud.storage.Client``."""
        return self._once("storage", self._make_storage)

    def compute(self, kind: str) -> Any:
        """Return a client of ``google.cloud.compute_v1``, such as ``InstancesClient``, over HTTP."""
        return self._once(f"compute.{kind}", lambda: self._make_compute(kind))

    def call(
        self, kind: str, method: str, request: Mapping[str, Any], *, seconds: float = READ_SECONDS
    ) -> Any:
        """Make a request once with a client of this kind; the SDK's errors are not translated."""
        return getattr(self.compute(kind), method)(request=dict(request), retry=None, timeout=seconds)

    def ask_json(self, method: str, url: str, **options: Any) -> Any:
        """Make a request for which there is no client; return its response, or raise GoogleAPICallError."""
        answer = self.session().request(method, url, timeout=TIMEOUT, **options)
        if not answer.ok:
            raise error_of(answer)
        return answer.json()

    def _default(self) -> tuple[Any, str | None]:
        with self._lock:
            if self._found is None:
                with ERRORS.translated("Google Cloud"), warnings.catch_warnings():
                    # For a user's own login, Google warns that the quota of another project is used.
                    warnings.simplefilter("ignore")
                    self._found = google.auth.default(scopes=SCOPES)
                    if endpoint("iamcredentials") != "https://iamcredentials.googleapis.com":
                        _ask_no_boundary(self._found[0])
            return self._found

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def _make_session(self) -> AuthorizedSession:
        session = AuthorizedSession(self.credentials(), refresh_timeout=READ_SECONDS)
        adapter = requests.adapters.HTTPAdapter(
            pool_connections=4, pool_maxsize=MAX_CONNECTIONS, max_retries=0
        )
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        session.headers["User-Agent"] = USER_AGENT
        if is_observed():
            report_answers(session)
        return session

    def _make_storage(self) -> Any:
        import google.cloud.storage

        client = google.cloud.storage.Client(
            project=None,  # Objects are found by their bucket alone.
            credentials=self.credentials(),
            _http=self.session(),
            client_info=ClientInfo(user_agent=USER_AGENT),
            client_options={"api_endpoint": endpoint("storage")},
        )
        # Otherwise, a thread would read the bucket's settings for tracing, which a node is not permitted to
        # do.
        client._bucket_metadata_cache = None  # noqa: SLF001 - its switch is an environment variable
        return client

    def _make_compute(self, kind: str) -> Any:
        from google.cloud import compute_v1

        made = getattr(compute_v1, kind)(
            credentials=self.credentials(),
            transport="rest",
            client_options={"api_endpoint": endpoint("compute")},
        )
        if is_observed():
            # The client's interceptors see only the fields that its types keep; these hooks see the whole
            # response.
            report_answers(made.transport._session)  # noqa: SLF001 - there is no other way to it
        return made


def _ask_no_boundary(credentials: Any) -> None:
    """Keep google-auth from asking where the credentials may be used, in a thread started at the first token.

    The question would go to IAM's real address, even if the other services are redirected.
    """
    manager = getattr(credentials, "_rab_manager", None)
    if manager is not None:
        manager._data = manager._data._replace(cooldown_expiry=_NEVER)  # noqa: SLF001 - no switch


def endpoint(service: str) -> str:
    """Return a service's base URL, without a path: ``https://compute.googleapis.com`` for ``compute``.

    The variables of Google's own tools replace it, for instance with an emulator's URL:
    ``CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE`` as for gcloud (its path does not matter), and for storage
    ``STORAGE_EMULATOR_HOST`` as for the SDKs.

    Raises:
        SpecError: the variable's value is not a URL.
    """
    name = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"
    if service == "storage" and os.environ.get("STORAGE_EMULATOR_HOST"):
        name = "STORAGE_EMULATOR_HOST"
    overridden = os.environ.get(name)
    if not overridden:
        return f"https://{service}.googleapis.com"
    parts = urlsplit(overridden if "://" in overridden else f"http://{overridden}")
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise SpecError(f"{name} must be a URL such as http://127.0.0.1:8080")
    return f"{parts.scheme}://{parts.netloc}"
