"""botocore's errors as cloudspot's: class and message."""

import botocore.exceptions as boto
import pytest

from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ObjectMissing,
    SpecError,
    TransientError,
)
from cloudspot_aws.errors import ERRORS


def refusal(code, status=400, message="said so"):
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(response, "Operation")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (refusal("AccessDenied", 403), AuthError, "x: access denied: said so (AccessDenied)"),
        (
            refusal("UnauthorizedOperation", 403),
            AuthError,
            "x: access denied: said so (UnauthorizedOperation)",
        ),
        (
            refusal("ExpiredToken"),
            AuthError,
            "x: the AWS credentials have expired; log in again or renew them",
        ),
        (
            refusal("RequestTimeTooSkewed", 403),
            AuthError,
            "x: this machine's clock differs too much from AWS's; set it (RequestTimeTooSkewed)",
        ),
        (
            refusal("InvalidClientTokenId", 403),
            AuthError,
            "x: AWS does not accept the credentials: said so (InvalidClientTokenId)",
        ),
        (refusal("403", 403, ""), AuthError, "x: access denied: HTTP status 403 (403)"),
        (refusal("Strange", 401), AuthError, "x: access denied: said so (Strange)"),
        (
            refusal("RequestLimitExceeded", 503),
            TransientError,
            "x: AWS throttles the requests: said so (RequestLimitExceeded)",
        ),
        (refusal("Odd", 429), TransientError, "x: AWS throttles the requests: said so (Odd)"),
        (refusal("InternalError", 500), TransientError, "x: AWS failed: said so (InternalError)"),
        (refusal("BadDigest", 400), TransientError, "x: AWS failed: said so (BadDigest)"),
        (refusal("Unheard", 502), TransientError, "x: AWS failed: said so (Unheard)"),
        (refusal("Unheard", 400), CloudspotError, "x: AWS refuses: said so (Unheard)"),
        (
            boto.NoCredentialsError(),
            AuthError,
            "x: no AWS credentials found; run `aws configure`, set AWS_PROFILE, or give the machine a role",
        ),
        (
            boto.EndpointConnectionError(
                endpoint_url="https://h.example/p?X-Amz-Signature=abc", error="down"
            ),
            TransientError,
            "x: no answer from h.example: down",
        ),
        (
            boto.ReadTimeoutError(endpoint_url="https://user:pw@h.example/p"),
            TransientError,
            'x: no answer from h.example: Read timeout on endpoint URL: "..."',
        ),
        (boto.NoRegionError(), SpecError, "x: You must specify a region."),
    ],
)
def test_an_error_becomes_what_the_caller_can_act_on(error, kind, message):
    with pytest.raises(CloudspotError) as caught, ERRORS.translated("x"):
        raise error
    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert caught.value.__cause__ is error


def test_a_services_own_codes_come_first():
    codes = {"InsufficientInstanceCapacity": CapacityError, "AccessDenied": ObjectMissing}
    with (
        pytest.raises(CapacityError, match=r"^x: said so \(InsufficientInstanceCapacity\)$"),
        ERRORS.translated("x", codes),
    ):
        raise refusal("InsufficientInstanceCapacity", 500)
    with pytest.raises(ObjectMissing), ERRORS.translated("x", codes):
        raise refusal("AccessDenied", 403)


def test_errors_that_are_not_the_sdks_pass():
    with pytest.raises(KeyError), ERRORS.translated("x"):
        raise KeyError


def test_a_message_is_one_line_without_secrets():
    text = (
        "key AKIAIOSFODNN7EXAMPLE\n at https://b/k?X-Amz-Credential=ASIA%2Fx&X-Amz-Signature=0123&"
        "X-Amz-Security-Token=abc&a=b\tEncoded authorization failure message: s3cret\nmore"
    )
    assert ERRORS.one_line(text) == "key ... at https://b/k?...&...&...&a=b ..."
    assert len(ERRORS.one_line("x" * 1000)) == 400


def test_code_and_status_are_those_of_the_answer():
    assert (ERRORS.code_of(refusal("SlowDown", 503)), ERRORS.status_of(refusal("SlowDown", 503))) == (
        "SlowDown",
        503,
    )
    assert (ERRORS.code_of(boto.NoRegionError()), ERRORS.status_of(OSError())) == ("", 0)
