"""Signs URLs with a service account's own key, or with IAM on a machine, which has no key."""

from __future__ import annotations

import base64
from typing import Any

import google.auth.credentials
import google.auth.transport.requests

from cloudspot.errors import CloudspotError
from cloudspot_gcp.clients import GcpClients, endpoint


class IamSigner(google.auth.credentials.Signing):  # type: ignore[misc] # google-auth's class is untyped here
    """Signs with IAM's signBlob, for a service account that is Token Creator on itself."""

    def __init__(self, clients: GcpClients, email: str) -> None:
        self._clients = clients
        self._email = email

    @property
    def signer_email(self) -> str:
        """Return the signing account's address."""
        return self._email

    @property
    def signer(self) -> Any:
        """Return this object, which signs."""
        return self

    def sign_bytes(self, message: bytes) -> bytes:
        """Return the signature; raise GoogleAPICallError if IAM refuses."""
        url = f"{endpoint('iamcredentials')}/v1/projects/-/serviceAccounts/{self._email}:signBlob"
        payload = base64.b64encode(message).decode("ascii")
        answer = self._clients.ask_json("POST", url, json={"payload": payload})
        return base64.b64decode(answer["signedBlob"])


def signer(clients: GcpClients) -> Any:
    """Return credentials that sign; raise CloudspotError for a user's own login, which cannot sign."""
    credentials = clients.credentials()
    if isinstance(credentials, google.auth.credentials.Signing):
        return credentials
    email = getattr(credentials, "service_account_email", None)
    if email == "default":  # A machine's account, whose address comes with the first token.
        credentials.refresh(google.auth.transport.requests.Request())
        email = credentials.service_account_email
    if not email:
        raise CloudspotError(
            "cannot presign a URL with a user's own login; set GOOGLE_APPLICATION_CREDENTIALS to a service "
            "account's key, or impersonate one (gcloud auth application-default login "
            "--impersonate-service-account=EMAIL)"
        )
    return IamSigner(clients, email)
