"""The errors of Google's SDKs as cloudspot's: class and message."""

import json
from types import SimpleNamespace

import google.auth.exceptions as auth
import pytest
import requests
import urllib3.exceptions
from google.api_core import exceptions as api

from cloudspot.errors import AuthError, CapacityError, CloudspotError, TransientError
from cloudspot_gcp.errors import ERRORS, error_of


def refusal(status, reason, message="said so", **error):
    response = requests.Response()
    response.status_code = status
    response.request = requests.Request("GET", "https://storage.googleapis.com/b?upload_id=abc").prepare()
    errors = [{"message": message, "domain": "global", "reason": reason}]
    value = {"error": {"code": status, "message": message, "errors": errors, **error}}
    response._content = json.dumps(value).encode()
    return api.from_http_response(response)


@pytest.mark.parametrize(
    "body", [b"12.5", b'"x"', b'{"error": 1}', b'{"error": {"errors": 3}}', b"", b"<html>"]
)
def test_an_error_with_a_body_of_another_shape_is_an_error_of_its_status(body):
    """google-api-core takes its words out of the body, and raised AttributeError."""
    response = requests.Response()
    response.status_code = 403
    response.request = requests.Request("GET", "https://cloudbilling.googleapis.com/v1").prepare()
    response._content = body
    with pytest.raises(AuthError), ERRORS.translated("reading a price list"):
        raise error_of(response)


def disabled():
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
        "metadata": {"service": "logging.googleapis.com", "consumer": "projects/1"},
    }
    return refusal(403, "forbidden", details=[info])


def refused_connection():
    request = requests.Request("GET", "https://a.example/b?X-Goog-Signature=ff").prepare()
    cause = urllib3.exceptions.MaxRetryError(None, "/b", OSError(111, "Connection refused"))
    return requests.ConnectionError(cause, request=request)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (refusal(403, "forbidden"), AuthError, "x: access denied: said so (forbidden)"),
        (
            refusal(401, "authError"),
            AuthError,
            (
                "x: Google does not accept the credentials: said so (authError); "
                "run `gcloud auth application-default login`"
            ),
        ),
        (
            disabled(),
            AuthError,
            "x: the API is not enabled; run: gcloud services enable logging.googleapis.com (SERVICE_DISABLED)",
        ),
        (
            refusal(403, "accessNotConfigured", "Cloud Billing API (cloudbilling.googleapis.com) is off"),
            AuthError,
            (
                "x: the API is not enabled; run: gcloud services enable cloudbilling.googleapis.com "
                "(accessNotConfigured)"
            ),
        ),
        (
            refusal(403, "billingNotEnabled"),
            AuthError,
            "x: the project has no working billing account: said so (billingNotEnabled)",
        ),
        (
            refusal(403, "rateLimitExceeded"),
            TransientError,
            "x: Google throttles the requests: said so (rateLimitExceeded)",
        ),
        (refusal(429, "odd"), TransientError, "x: Google throttles the requests: said so (odd)"),
        (refusal(500, "backendError"), TransientError, "x: Google failed: said so (backendError)"),
        (refusal(408, "timeout"), TransientError, "x: Google failed: said so (timeout)"),
        (refusal(400, "invalid"), CloudspotError, "x: Google refuses: said so (invalid)"),
        (
            api.RetryError("too long", refusal(503, "backendError")),
            TransientError,
            "x: Google failed: said so (backendError)",
        ),
        (api.RetryError("too long", None), TransientError, "x: no answer in time"),
        (refused_connection(), TransientError, "x: no answer from a.example: [Errno 111] Connection refused"),
        (
            urllib3.exceptions.ProtocolError("Connection broken", ConnectionResetError(104, "reset")),
            TransientError,
            "x: the connection broke: [Errno 104] reset",
        ),
        (
            requests.exceptions.JSONDecodeError("no", "<html>", 0),
            TransientError,
            "x: the answer cannot be read",
        ),
        (
            auth.DefaultCredentialsError("Your default credentials were not found. To set up ..."),
            AuthError,
            (
                "x: no Google credentials found; run `gcloud auth application-default login`, set "
                "GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account"
            ),
        ),
        (
            auth.RefreshError(
                "invalid_grant: Token has been expired or revoked.", {"error": "invalid_grant"}
            ),
            AuthError,
            "x: the Google credentials have expired or were revoked; run `gcloud auth application-default login`",
        ),
        (
            auth.RefreshError("internal_failure", retryable=True),
            TransientError,
            "x: the Google credentials cannot be renewed now: internal_failure",
        ),
        (
            auth.RefreshError(auth.TransportError("Metadata Server unavailable. Response status: 503")),
            TransientError,
            "x: the Google credentials cannot be renewed now: Metadata Server unavailable. Response status: 503",
        ),
        (
            auth.RefreshError(auth.TransportError("Status: 404", SimpleNamespace(status=404))),
            AuthError,
            "x: the Google credentials cannot be renewed: Status: 404",
        ),
        (
            auth.TransportError(refused_connection()),
            TransientError,
            "x: no token: no answer from a.example: [Errno 111] Connection refused",
        ),
    ],
)
def test_an_sdks_error_is_one_of_ours_in_one_line(error, kind, message):
    with pytest.raises(CloudspotError) as caught, ERRORS.translated("x"):
        raise error
    assert (type(caught.value), str(caught.value)) == (kind, message)
    assert caught.value.__cause__ is error


def test_a_services_own_reasons_come_first():
    with (
        pytest.raises(CapacityError, match=r"x: said so \(stockout\)"),
        ERRORS.translated("x", {"stockout": CapacityError}),
    ):
        raise refusal(503, "stockout")


def test_code_and_status_of_an_error():
    assert (ERRORS.code_of(disabled()), ERRORS.status_of(disabled())) == ("SERVICE_DISABLED", 403)
    assert (ERRORS.code_of(refusal(412, "conditionNotMet")), ERRORS.status_of(refusal(412, "x"))) == (
        "conditionNotMet",
        412,
    )
    assert (ERRORS.code_of(api.NotFound("gone")), ERRORS.code_of(ValueError())) == ("NOT_FOUND", "")


def test_secrets_reach_no_message():
    text = ERRORS.one_line(
        "GET https://x/y?X-Goog-Signature=abcd&upload_id=efgh: Bearer ya29.ijkl\n and ya29.mnop; "
        "-----BEGIN PRIVATE KEY-----\nqrst\n-----END PRIVATE KEY-----"
    )
    assert not [secret for secret in ("abcd", "efgh", "ijkl", "mnop", "qrst", "\n") if secret in text]
    assert len(ERRORS.one_line("x" * 1000)) == 400
