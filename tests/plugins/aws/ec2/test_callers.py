"""Whose requests the emulated services take, and how each refuses the others."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timedelta, timezone

import boto3
import pytest
from botocore.exceptions import ClientError

KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

# Service, call, arguments, and how it refuses: an unknown key, another secret, an expired key, a wrong clock.
WORDS = [
    ("ec2", "describe_instances", {}, ["AuthFailure", "AuthFailure", "RequestExpired", "RequestExpired"]),
    (
        "sts",
        "get_caller_identity",
        {},
        ["InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken", "SignatureDoesNotMatch"],
    ),
    *(
        (
            service,
            call,
            arguments,
            [
                "UnrecognizedClientException",
                "InvalidSignatureException",
                "ExpiredTokenException",
                "InvalidSignatureException",
            ],
        )
        for service, call, arguments in (
            ("scheduler", "get_schedule", {"Name": "a.b-c"}),
            ("ssm", "get_parameter", {"Name": "/aws/service/none"}),
            ("service-quotas", "get_service_quota", {"ServiceCode": "ec2", "QuotaCode": "L-34B43A08"}),
        )
    ),
]


def refused(cloud, service, call, arguments, *, key=KEY, secret=SECRET):
    """Return the code of the error that the call ends with."""
    client = boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=cloud.url,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )
    with pytest.raises(ClientError) as caught:
        getattr(client, call)(**arguments)
    client.close()
    return caught.value.response["Error"]["Code"]


@pytest.mark.parametrize(("service", "call", "arguments", "words"), WORDS, ids=[one[0] for one in WORDS])
def test_each_service_refuses_strangers_in_its_own_words(cloud, service, call, arguments, words):
    ask = (cloud, service, call, arguments)
    found = [refused(*ask, key="AKIAI44QH8DHBEXAMPLE"), refused(*ask, secret="another")]
    cloud.faults.expired_keys.add(KEY)
    found.append(refused(*ask))
    cloud.faults.expired_keys.clear()
    cloud.ec2._now = lambda: datetime.now(timezone.utc) + timedelta(minutes=16)
    found.append(refused(*ask))
    assert found == words


def test_what_nobody_has_signed_is_refused(cloud):
    body = urllib.parse.urlencode({"Action": "DescribeInstances", "Version": "2016-11-15"}).encode()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(cloud.url, body)
    assert caught.value.code == 403
    assert b"<Code>MissingAuthenticationToken</Code>" in caught.value.read()


def test_a_request_that_was_changed_on_its_way_is_refused(cloud, ec2_server):
    taken = []

    def meddle(environ, start_response):
        taken.append(environ["REQUEST_URI"])
        return cloud.ec2({**environ, "REQUEST_URI": environ["REQUEST_URI"] + "?more=1"}, start_response)

    ec2_server.app = meddle
    assert refused(cloud, "ec2", "describe_instances", {}) == "AuthFailure"
    assert taken == ["/"]
