"""Clients of AWS's services: one for each service and region, with our timeouts, retries and user agent.

boto3's own chain finds the credentials: environment, profile, SSO, the instance's role.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
import botocore.config
import botocore.exceptions
import botocore.session
from botocore.parsers import ResponseParserError, ResponseParserFactory
from botocore.utils import parse_timestamp

import cloudspot
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.plugin.answers import UNREADABLE
from cloudspot.plugin.apirecording import is_observed
from cloudspot.plugin.cloudprovider import Caller
from cloudspot_aws.apihooks import report_calls
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.imds import Imds

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
"""How long a connection may be silent, in seconds. All services usually answer within a few seconds."""
MAX_CONNECTIONS = 32
NUM_ATTEMPTS = 3
METADATA_SECONDS = 1.0
"""How long to wait for the metadata service, which exists only on EC2."""


class AwsClients:
    """Makes and caches clients of one account's services. Thread-safe; construction does no I/O.

    The region comes from the options, else from ``AWS_REGION``, ``AWS_DEFAULT_REGION``, the profile, or the
    EC2 instance on which this runs.
    """

    def __init__(self, *, region: str | None = None) -> None:
        """Use ``region``, or the environment's region if it is None."""
        self._wanted_region = region
        self._lock = threading.RLock()
        self._boto_session: boto3.session.Session | None = None
        self._region: str | None = None
        self._clients: dict[tuple[str, str, int, str], Any] = {}

    @property
    def region(self) -> str:
        """Return the region to which requests are sent.

        Raises:
            SpecError: no region is configured and this is not an EC2 instance, or the profile does not exist.
        """
        region = self.region_or_none()
        if region is None:
            raise SpecError(
                "no AWS region: set providers.aws.region, AWS_REGION or the profile's region (aws configure)"
            )
        return region

    def region_or_none(self) -> str | None:
        """Return the region, or None if it cannot be found; raise SpecError if the profile does not exist."""
        with self._lock:
            if self._region is None:
                self._region = (
                    self._wanted_region
                    or os.environ.get("AWS_REGION")  # botocore itself reads only AWS_DEFAULT_REGION
                    or self._session().region_name
                    or region_of_this_instance()
                )
            return self._region

    def client(
        self, service: str, *, region: str | None = None, num_attempts: int = NUM_ATTEMPTS, **config: Any
    ) -> Any:
        """Return the client of a service such as ``ec2``, in ``region`` or the session's.

        ``num_attempts`` is how many times botocore tries a request; with 1, every retry is left to the
        caller. ``config`` goes to botocore's Config. Calls with the same arguments return the same client.

        Raises:
            SpecError: no region was found, or the profile does not exist.
            AuthError: the profile's ``credential_process`` returns no credentials.
        """
        region = region or self.region
        with self._lock:
            key = (service, region, num_attempts, repr(sorted(config.items())))
            if key not in self._clients:
                try:
                    self._clients[key] = self._session().client(
                        service, region_name=region, config=_config(num_attempts, config)
                    )
                except (OSError, json.JSONDecodeError, botocore.exceptions.CredentialRetrievalError) as error:
                    # botocore has just run the profile's credential_process, which failed or printed no JSON.
                    raise ERRORS.translation(error, f"AWS {service}") from error
                except (ValueError, botocore.exceptions.BotoCoreError) as error:
                    # The region or AWS_ENDPOINT_URL is malformed, or one half of a pair of keys is missing.
                    raise SpecError(f"cannot use AWS {service} in {region!r}: {error}") from error
            return self._clients[key]

    @property
    def core(self) -> botocore.session.Session:
        """Return botocore's session, which has the credentials; raise SpecError as ``client`` does."""
        self._session()
        return self._core

    def _session(self) -> boto3.session.Session:
        with self._lock:
            if self._boto_session is None:
                try:
                    self._core = botocore.session.get_session()
                    parsers = _Parsers()
                    parsers.set_parser_defaults(timestamp_parser=parse_time)
                    self._core.register_component("response_parser_factory", parsers)
                    if is_observed():
                        report_calls(self._core)
                    self._boto_session = boto3.session.Session(botocore_session=self._core)
                except botocore.exceptions.ProfileNotFound as error:
                    raise SpecError(
                        f"{error}; to list the profiles that exist, run: aws configure list-profiles"
                    ) from error
                except botocore.exceptions.BotoCoreError as error:
                    raise SpecError(f"the AWS configuration cannot be read: {error}") from error
            return self._boto_session


class _Parsers(ResponseParserFactory):  # type: ignore[misc]
    """Parsers that raise botocore's own error for any unreadable answer, such as a malformed size."""

    def create_parser(self, protocol_name: str) -> Any:
        """Return the parser; see botocore."""
        parser = super().create_parser(protocol_name)
        parse = parser.parse

        def parse_or_refuse(response: Any, shape: Any) -> Any:
            try:
                return parse(response, shape)
            except UNREADABLE as error:
                raise ResponseParserError("the answer cannot be read") from error

        parser.parse = parse_or_refuse
        return parser


def caller(clients: AwsClients) -> Caller:
    """Return the account and the ARN to which the credentials belong. The request needs no permission."""
    with ERRORS.translated("asking AWS whose credentials these are"):
        answer = clients.client("sts").get_caller_identity()
    return Caller(account=str(answer["Account"]), arn=str(answer["Arn"]))


def parse_time(value: Any) -> datetime:
    """Return the time that an answer states; raise ValueError if it states none.

    The usual formats are tried first: botocore tries many, and takes 51 ms instead of 15 for a page of an S3
    listing.
    """
    text = str(value)
    with suppress(ValueError):
        if text.endswith(" GMT"):
            return parsedate_to_datetime(text)
        if text.endswith("Z") and text[10:11] == "T":
            return datetime.fromisoformat(f"{text[:-1]}+00:00")
    try:
        found: datetime = parse_timestamp(value)
    except (OSError, OverflowError, RuntimeError) as error:
        raise ValueError("it is not a time") from error
    return found


def region_of_this_instance() -> str | None:
    """Return the region of the EC2 instance on which this runs, or None elsewhere."""
    try:
        return Imds(timeout_seconds=METADATA_SECONDS).get("meta-data/placement/region")
    except CloudspotError:
        return None


def _config(num_attempts: int, more: dict[str, Any]) -> botocore.config.Config:
    usual = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "max_pool_connections": MAX_CONNECTIONS,
        "retries": {"mode": "standard", "total_max_attempts": num_attempts},
        "tcp_keepalive": True,
        "user_agent_extra": f"cloudspot/{cloudspot.__version__}",
    }
    return botocore.config.Config(**{**usual, **more})
