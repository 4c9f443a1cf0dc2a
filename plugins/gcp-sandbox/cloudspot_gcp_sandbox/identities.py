"""The callers of the emulated Google Cloud: service accounts with keys, and their tokens.

Tokens are issued as by Google: for a service account's key at the token endpoint, by a machine's metadata
server (see :mod:`~cloudspot_gcp_sandbox.machinetokens`), or signed by the account itself (a self-signed JWT).

Source: "Using OAuth 2.0 for server to server applications"; IAM Credentials API, signBlob (from memory).
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.machinetokens import MachineTokens
from cloudspot_gcp_sandbox.wsgi import Reply, Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

TOKEN_SECONDS = 3600
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_SIGN_BLOB = "/v1/projects/-/serviceAccounts/"
_NOT_AUTHENTICATED = (
    "Request is missing required authentication credential. Expected OAuth 2 access token, login cookie or "
    "other valid authentication credential."
)
_NOT_VALID = (
    "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
    "valid authentication credential."
)


@dataclass(frozen=True)
class ServiceAccount:
    """An account of a machine or a program, with a key of its own."""

    email: str
    project: str
    key_id: str
    private_key: str
    """PEM."""
    public_key: bytes
    """PEM."""

    @classmethod
    def make(cls, email: str, *, project: str) -> ServiceAccount:
        """Return an account with a new key."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return cls(email, project, secrets.token_hex(20), private.decode(), public)

    def key_file(self, token_uri: str) -> Mapping[str, str]:
        """Return the content of the file for ``GOOGLE_APPLICATION_CREDENTIALS``."""
        return {
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": self.key_id,
            "private_key": self.private_key,
            "client_email": self.email,
            "client_id": "100000000000000000000",
            "token_uri": token_uri,
        }

    def sign(self, payload: bytes) -> bytes:
        """Return the payload's signature."""
        signature: bytes = crypt.RSASigner.from_string(self.private_key).sign(payload)
        return signature

    def has_signed(self, payload: bytes, signature: bytes) -> bool:
        """Return whether the signature was made by this account."""
        return bool(crypt.RSAVerifier.from_string(self.public_key).verify(payload, signature))


@dataclass(frozen=True)
class _Token:
    email: str
    expires_at: float


class Identities:
    """Accounts and tokens and, as WSGI middleware, the endpoints that issue tokens and signatures.

    The endpoints are ``/token`` and ``.../serviceAccounts/EMAIL:signBlob``; other requests reach ``app``
    unchanged. Thread-safe.
    """

    def __init__(
        self,
        app: WSGIApplication | None = None,
        *,
        faults: Faults | None = None,
        now: Callable[[], float] = time.time,
        machine_tokens: MachineTokens | None = None,
    ) -> None:
        self._app = app
        self._machine_tokens = machine_tokens
        self._faults = faults or Faults()
        self._now = now
        self._lock = threading.Lock()
        self._accounts: dict[str, ServiceAccount] = {}
        self._tokens: dict[str, _Token] = {}

    def add(self, account: ServiceAccount) -> None:
        """Add the account."""
        with self._lock:
            self._accounts[account.email] = account

    def account(self, email: str) -> ServiceAccount | None:
        """Return the account, or None if it does not exist."""
        with self._lock:
            return self._accounts.get(email)

    def issue(self, email: str, *, seconds: float = TOKEN_SECONDS) -> str:
        """Return a new token for this address, even if no account with the address was added."""
        token = f"ya29.{secrets.token_urlsafe(48)}"
        with self._lock:
            self._tokens[token] = _Token(email, self._now() + seconds)
        return token

    def revoke_all(self) -> None:
        """Revoke all issued tokens."""
        with self._lock:
            self._tokens.clear()

    def authenticate(self, request: Request) -> str:
        """Return the caller's address.

        Raises:
            ApiError: 401, the request carries no valid token.
        """
        header = request.header("authorization")
        if header is None:
            raise _unauthenticated(_NOT_AUTHENTICATED, "required")
        scheme, _, token = header.partition(" ")
        found = self._holder(token.strip()) if scheme.lower() == "bearer" else None
        if found is None or found in self._faults.rejected_keys:
            raise _unauthenticated(_NOT_VALID, "authError")
        return found

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request.of(environ)
        if request.method == "POST" and request.path == "/token":
            return self._exchange(request).send(start_response)
        if request.method == "POST" and request.path.startswith(_SIGN_BLOB):
            email, _, verb = unquote(request.path.removeprefix(_SIGN_BLOB)).partition(":")
            if verb == "signBlob":
                return self._sign_blob(request, email).send(start_response)
        if self._app is None:
            return Reply.refusal(ApiError(404, "notFound", "Not Found")).send(start_response)
        return self._app(environ, start_response)

    def _holder(self, token: str) -> str | None:
        with self._lock:
            found = self._tokens.get(token)
        if found is not None:
            return found.email if found.expires_at > self._now() else None
        machine = None if self._machine_tokens is None else self._machine_tokens.read(token)
        if machine is not None:
            return machine.email if machine.expires_at > self._now() else None
        claims = self._claims(token)  # The token may be signed by an account itself.
        return None if claims is None else str(claims["iss"])

    def _claims(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a JWT that one of the accounts has signed and that has not expired."""
        try:
            claims: Mapping[str, Any] = jwt.decode(token, verify=False)
            account = self.account(str(claims.get("iss")))
            if account is not None:
                jwt.decode(token, certs={account.key_id: account.public_key, "": account.public_key})
        except ValueError:  # google.auth's token errors are ValueErrors.
            return None
        return claims if account is not None else None

    def _exchange(self, request: Request) -> Reply:
        """Answer at the token endpoint: exchange a JWT that an account has signed for a token."""
        form = parse_qs(request.read().decode("utf-8", "replace"))
        error = None
        if form.get("grant_type") != [_GRANT] or len(form.get("assertion", ())) != 1:
            error = ("unsupported_grant_type", "Invalid grant_type")
            claims = None
        else:
            claims = self._claims(form["assertion"][0])
        if error is None and (claims is None or claims["iss"] in self._faults.expired_keys):
            error = ("invalid_grant", "Invalid JWT Signature.")
        elif claims is not None and not (claims.get("scope") or claims.get("target_audience")):
            error = ("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        self._faults.record(
            Call("oauth2", "token", {}, "", error[0] if error else None, str((claims or {}).get("iss", "")))
        )
        if error is not None:
            return Reply.json({"error": error[0], "error_description": error[1]}, status=400)
        assert claims is not None
        token = self.issue(claims["iss"])
        return Reply.json({"access_token": token, "expires_in": TOKEN_SECONDS - 1, "token_type": "Bearer"})

    def _sign_blob(self, request: Request, email: str) -> Reply:
        caller, code = "", None
        try:
            caller = self.authenticate(request)
            injected = self._faults.take("signBlob")
            if injected is not None:  # Signing has no effects, so there is nothing to undo.
                raise ApiError(injected.status, injected.code, injected.message)
            account = self.account(email if email != "-" else caller)
            if account is None:
                raise ApiError(404, "notFound", f"Not found; Gaia id not found for email {email}")
            if "iam.serviceAccounts.signBlob" in self._faults.denied:
                raise ApiError(
                    403,
                    "forbidden",
                    "Permission 'iam.serviceAccounts.signBlob' denied on resource (or it may not exist).",
                )
            body = request.read_json()
            payload = base64.b64decode(body["payload"], validate=True)
            reply = Reply.json(
                {
                    "keyId": account.key_id,
                    "signedBlob": base64.b64encode(account.sign(payload)).decode("ascii"),
                }
            )
        except ApiError as error:
            code, reply = error.reason, Reply.refusal(error)
        self._faults.record(Call("iamcredentials", "signBlob", {"account": email}, "", code, caller))
        return reply


def write_key_file(account: ServiceAccount, token_uri: str) -> str:
    """Return the account's key file as text."""
    return json.dumps(account.key_file(token_uri), indent=2)


def _unauthenticated(message: str, reason: str) -> ApiError:
    return ApiError(
        401,
        reason,
        message,
        headers={"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/", error="invalid_token"'},
    )
