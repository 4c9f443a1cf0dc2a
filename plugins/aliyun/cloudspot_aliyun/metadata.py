"""Reads a node's identity and notices from ECS's metadata service.

The module uses only the standard library, because every agent carries it and it must work where nothing is
installed. Sources: ECS user guide, "Instance metadata" (items; security hardening mode), "Preemptible
instances", API reference of ModifyInstanceMetadataOptions (checked 2026-11).
"""

from __future__ import annotations

import logging
import re
from typing import ClassVar, Final

from cloudspot.errors import TransientError
from cloudspot.interfaces import PreemptionSource
from cloudspot.model import NodeIdentity, PreemptionNotice
from cloudspot.plugin.metadataclient import MetadataClient, parse_time
from cloudspot_aliyun.names import rank_of

ENDPOINT: Final = "CLOUDSPOT_ALIYUN_METADATA"
"""The environment variable that overrides the service's address; the SDKs have no such variable."""
DISABLED: Final = "ALIBABA_CLOUD_ECS_METADATA_DISABLED"
"""The environment variable that turns the service off in Alibaba Cloud's SDKs."""
SPOT_NOTICE_SECONDS: Final = 300.0
"""The notice before the reclaim of a spot machine."""
TERMINATION: Final = "meta-data/instance/spot/termination-time"

# A child of the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.aliyun.metadata")


class EcsMetadata(MetadataClient):
    """A client of the metadata service, in hardened mode or without it. Thread-safe.

    In hardened mode (HttpTokens=required) a request without a token gets status 403, and a request with an
    expired token 401. In normal mode the service also issues tokens, but accepts requests without one.
    """

    default_endpoint: ClassVar[str] = "http://100.100.100.200"
    endpoint_variable: ClassVar[str] = ENDPOINT
    disabled_variable: ClassVar[str] = DISABLED
    token_header: ClassVar[str] = "X-aliyun-ecs-metadata-token"  # noqa: S105 # the name of a header
    refusals: ClassVar[frozenset[int]] = frozenset({401, 403})
    needs_token: ClassVar[bool] = False


class AliyunNoticeSource(PreemptionSource):
    """Reads ``instance/spot/termination-time``, which is missing or empty until a reclaim is announced."""

    notice_seconds: float = SPOT_NOTICE_SECONDS
    # It is polled: there are no long polls, frequent requests are throttled, and the notice is five minutes
    # long.
    poll_seconds: ClassVar[float] = 3.0

    def __init__(self, metadata: EcsMetadata | None = None) -> None:
        self._metadata = metadata or EcsMetadata()
        self._unread = ""

    def poll(self) -> PreemptionNotice | None:
        text = (self._metadata.get(TERMINATION) or "").strip()
        if not text:
            return None
        try:
            at = parse_time(text)
        except ValueError:
            problem = f"{TERMINATION.partition('/')[2]} is {text[:200]!r}, which is not a time"
            # A value that looks like a time is a notice; if it is not a valid time, the shortest promised
            # notice applies. Any other text is not a notice: otherwise, a service that answers everyone with
            # an error page would end every machine.
            if not re.match(r"[0-9]{4}-", text):
                raise TransientError(problem) from None
            if text != self._unread:
                self._unread = text
                _log.warning("%s", problem)
            at = None
        return PreemptionNotice(deadline=at, source="metadata")


def node_identity(metadata: EcsMetadata | None = None) -> NodeIdentity:
    """Return this machine's identity; its rank is the number at the end of its host name.

    The metadata contain no other index (see ``names``), and no market.

    Raises:
        TransientError: the metadata service is not available yet, or its answer is invalid.
    """
    metadata = metadata or EcsMetadata()
    host_name = metadata.require("meta-data/hostname").strip()
    rank = rank_of(host_name)
    if rank is None:
        raise TransientError(
            f"the metadata service's hostname is {host_name[:80]!r}, which does not end in a number"
        )
    return NodeIdentity(
        instance_id=metadata.require("meta-data/instance-id"),
        rank=rank,
        address=metadata.require("meta-data/private-ipv4"),
        zone=metadata.get("meta-data/zone-id"),
        instance_type=metadata.get("meta-data/instance/instance-type"),
    )
