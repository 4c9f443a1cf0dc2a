"""Clients of Alibaba Cloud: region, endpoints, credentials and timeouts for all services.

Sources: "Regions and endpoints" of OSS and of ECS (checked 2026-11). The variables that override an endpoint,
``OSS_ENDPOINT`` and ``ECS_ENDPOINT``, are those of ossutil and of the Terraform provider.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

import cloudspot
from cloudspot.errors import CloudspotError, SpecError, TransientError
from cloudspot.plugin.answers import readable
from cloudspot_aliyun.apihooks import reported
from cloudspot_aliyun.credentials import (
    CONFIG_FILE,
    PROFILE,
    Credentials,
    CredentialsSource,
    find_credentials,
    is_on_ecs,
    read_profile,
)
from cloudspot_aliyun.metadata import EcsMetadata

if TYPE_CHECKING:
    from aliyunsdkcore.client import AcsClient
    from aliyunsdkcore.request import RpcRequest

REGION: Final = "ALIBABA_CLOUD_REGION_ID"
OSS_ENDPOINT: Final = "OSS_ENDPOINT"
ECS_ENDPOINT: Final = "ECS_ENDPOINT"
OSS_DOMAINS: Final = "CLOUDSPOT_OSS_DOMAINS"
"""The environment variable with the buckets' own domains. A record must not name such domains, because a
writer of records could then send the keys' signatures elsewhere.
"""
FUNCTION_REGION: Final = "FC_REGION"
"""The environment variable with a function's region ("Environment variables", checked 2026-11)."""
CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 60.0
"""How long a connection may be silent, in seconds. The control plane answers within seconds."""
METADATA_SECONDS: Final = 1.0
"""How long to wait for the metadata service, which exists only on ECS."""
USER_AGENT: Final = f"cloudspot/{cloudspot.__version__}"
_CENTRAL_VPC: Final = frozenset(
    {
        "ap-southeast-1",
        "cn-beijing",
        "cn-hangzhou",
        "cn-hongkong",
        "cn-qingdao",
        "cn-shanghai",
        "cn-shenzhen",
        "us-east-1",
        "us-west-1",
    }
)
"""The regions that share one VPC endpoint, according to the SDK's table."""


class AliyunClients:
    """Makes the requests to one account's services. Thread-safe; construction does no I/O.

    The region comes from the options, else from ``ALIBABA_CLOUD_REGION_ID``, the profile, or the ECS instance
    on which this runs.
    """

    def __init__(self, *, region: str | None = None, credentials: CredentialsSource | None = None) -> None:
        """Use ``region`` and ``credentials``, or those of the environment if they are None."""
        self._wanted_region = region
        self._credentials = credentials
        self._lock = threading.RLock()
        self._region: str | None = None
        self._acs: dict[str, tuple[Credentials, AcsClient]] = {}

    @property
    def region(self) -> str:
        """Return the region to which requests are sent.

        Raises:
            SpecError: no region is configured and this is not an ECS instance.
        """
        region = self.region_or_none()
        if region is None:
            raise SpecError(
                f"no Alibaba Cloud region: set providers.aliyun.region, {REGION} or the profile's region "
                "(aliyun configure)"
            )
        return region

    def region_or_none(self) -> str | None:
        """Return the region, or None if it cannot be found; raise SpecError if the profile does not exist."""
        with self._lock:
            if self._region is None:
                self._region = (
                    self._wanted_region
                    or os.environ.get(REGION)
                    or _region_of_profile()
                    or region_of_this_machine()
                )
            return self._region

    def in_region(self, region: str) -> AliyunClients:
        """Return clients of another region with the same credentials."""
        return AliyunClients(region=region, credentials=self._credentials)

    @property
    def credentials(self) -> CredentialsSource:
        """Return the source of keys; raise SpecError if the profile cannot be used."""
        with self._lock:
            if self._credentials is None:
                self._credentials = find_credentials()
            return self._credentials

    def ask_ecs(self, request: RpcRequest, *, region: str | None = None) -> dict[str, Any]:
        """Make a request to the control plane once, in ``region`` or the session's, and return its response.

        The products are ECS, VPC, STS, RAM and Container Registry. A request is signed with the currently
        valid key. Errors of the SDK are not translated: see :mod:`cloudspot_aliyun.errors`.

        Raises:
            AuthError: no key was found.
            SpecError: no region was found, or an endpoint is malformed.
        """
        from aliyunsdkcore.http import protocol_type

        region = region or self.region
        is_secure = ecs_endpoint(region).scheme == "https"
        # The SDK compares by identity: an equal string would make it send an unencrypted request.
        request.set_protocol_type(protocol_type.HTTPS if is_secure else protocol_type.HTTP)
        request.set_accept_format("json")
        client = self._acs_client(region)
        with (
            reported(request) as note,
            readable(str(request.get_action_name())),  # the answer is, for example, a proxy's page
        ):
            answer = dict(json.loads(client.do_action_with_exception(request)))
            note(answer)
            return answer

    def _acs_client(self, region: str) -> AcsClient:
        from aliyunsdkcore.auth.credentials import AccessKeyCredential, StsTokenCredential
        from aliyunsdkcore.client import AcsClient

        key = self.credentials.get()
        with self._lock:
            held = self._acs.get(region)
            if held is not None and held[0] == key:
                return held[1]
            endpoint = ecs_endpoint(region)
            client = AcsClient(
                region_id=region,
                credential=(
                    StsTokenCredential(key.access_key_id, key.access_key_secret, key.security_token)
                    if key.security_token
                    else AccessKeyCredential(key.access_key_id, key.access_key_secret)
                ),
                auto_retry=False,  # Only the caller knows whether a request may be repeated.
                connect_timeout=CONNECT_SECONDS,
                timeout=READ_SECONDS,
                port=endpoint.port or (443 if endpoint.scheme == "https" else 80),
            )
            client.append_user_agent("cloudspot", cloudspot.__version__)
            for product, host in {"Ecs": endpoint.hostname, **_other_endpoints(region)}.items():
                client.add_endpoint(region, product, host)
            self._acs[region] = key, client
            return client


def ecs_endpoint(region: str) -> SplitResult:
    """Return the URL of a region's control plane; raise SpecError if ECS_ENDPOINT is malformed."""
    return _chosen_endpoint(ECS_ENDPOINT) or urlsplit(f"https://ecs.{region}.aliyuncs.com")


def fc_endpoint(region: str) -> SplitResult:
    """Return the URL of a region's Function Compute, or ECS_ENDPOINT if that is set.

    Source: the endpoints in Function Compute's own SDK (checked 2026-11).
    """
    return _chosen_endpoint(ECS_ENDPOINT) or urlsplit(f"https://fcv3.{region}.aliyuncs.com")


def _other_endpoints(region: str) -> dict[str, str | None]:
    """Return the hosts of the control plane's other products, or that of ECS_ENDPOINT if it is set."""
    products = {
        "Ram": "ram.aliyuncs.com",
        "Sts": "sts.aliyuncs.com",
        "cr": f"cr.{region}.aliyuncs.com",
        "Vpc": "vpc.aliyuncs.com" if region in _CENTRAL_VPC else f"vpc.{region}.aliyuncs.com",
    }
    chosen = _chosen_endpoint(ECS_ENDPOINT)
    return dict(products) if chosen is None else dict.fromkeys(products, chosen.hostname)


def oss_endpoint(region: str, *, is_internal: bool = False) -> str:
    """Return the URL of a region's OSS; the internal one is free of charge, and works only within the region.

    Raises:
        SpecError: OSS_ENDPOINT is malformed.
    """
    chosen = _chosen_endpoint(OSS_ENDPOINT)
    if chosen is not None:
        return chosen.geturl()
    return f"https://oss-{region}{'-internal' if is_internal else ''}.aliyuncs.com"


def oss_domain(bucket: str) -> str | None:
    """Return the URL of the bucket's domain (CNAME) in ``CLOUDSPOT_OSS_DOMAINS``, or None if it has none.

    Source: OSS user guide, "Access buckets via custom domain names": since 2025-03-20, a new account's
        buckets in mainland China can be reached over the internet only in this way (checked 2026-11).

    Raises:
        SpecError: the variable is malformed.
    """
    for pair in os.environ.get(OSS_DOMAINS, "").replace(",", " ").split():
        name, separator, url = pair.partition("=")
        parts = _endpoint_of(url) if separator and name else None
        if parts is None:
            raise SpecError(f'{OSS_DOMAINS} must be pairs such as "BUCKET=https://data.example.com"')
        if name == bucket:
            return parts.geturl()
    return None


def is_inside(region: str) -> bool:
    """Return whether this runs on an ECS machine or in a function of the region.

    Within the region, OSS's internal endpoint is free, and needs no internet access.
    """
    return os.environ.get(FUNCTION_REGION) == region or (is_on_ecs() and region_of_this_machine() == region)


def region_of_this_machine() -> str | None:
    """Return this ECS instance's region, or None elsewhere or if the service does not answer."""
    try:
        return _region_by_metadata()
    except TransientError:
        return None


@functools.cache
def _region_by_metadata() -> str | None:
    try:
        return EcsMetadata(timeout_seconds=METADATA_SECONDS).get("meta-data/region-id")
    except TransientError:
        if is_on_ecs():
            raise  # An error is not cached, because the service may answer later.
        return None
    except CloudspotError:
        return None


def _region_of_profile() -> str | None:
    path, name = CONFIG_FILE.expanduser(), os.environ.get(PROFILE)
    if not name and not path.exists():
        return None
    return read_profile(path, name).get("region_id") or None


def _chosen_endpoint(variable: str) -> SplitResult | None:
    """Return the URL in an environment variable, with its scheme, or None if it is not set."""
    chosen = os.environ.get(variable)
    if not chosen:
        return None
    parts = _endpoint_of(chosen)
    if parts is None:
        raise SpecError(
            f"{variable} must be a URL such as https://oss-cn-hangzhou.aliyuncs.com, without a path"
        )
    return parts


def _endpoint_of(text: str) -> SplitResult | None:
    """Return the URL of a service, with its scheme, or None if the text is not a URL."""
    url = text if "://" in text else f"https://{text}"
    parts = urlsplit(url.strip().rstrip("/"))
    try:
        is_good = bool(parts.hostname) and not parts.path and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        is_good = False
    return parts if is_good and parts.scheme in {"http", "https"} else None
