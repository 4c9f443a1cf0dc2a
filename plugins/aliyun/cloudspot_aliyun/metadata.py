"""ECS's metadata service as a node reads it: who it is, and whether it will be taken.

It stands on the standard library: every agent carries it, and it must answer on a machine where
nothing else works. Sources: ECS user guide, "Instance metadata" (items; security hardening mode),
"Preemptible instances", API reference of ModifyInstanceMetadataOptions (checked 2026-11).
"""

from __future__ import annotations

import logging
import re
from datetime import datetime, timezone
from typing import ClassVar, Final

from cloudspot.errors import TransientError
from cloudspot.interfaces import PreemptionSource
from cloudspot.model import ANNOUNCED, NodeIdentity, PreemptionNotice
from cloudspot.plugin.metadataclient import MetadataClient
from cloudspot_aliyun.names import rank_of

ENDPOINT: Final = "CLOUDSPOT_ALIYUN_METADATA"
"""The environment variable by which we find another address of the service; the SDKs have none."""
DISABLED: Final = "ALIBABA_CLOUD_ECS_METADATA_DISABLED"
"""The one by which Alibaba Cloud's SDKs are told that there is no such service."""
DEFAULT_ENDPOINT: Final = "http://100.100.100.200"
SPOT_NOTICE_SECONDS: Final = 300.0
"""A spot machine is told five minutes ahead."""
TERMINATION: Final = "meta-data/instance/spot/termination-time"

# Below the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.aliyun.metadata")


class EcsMetadata(MetadataClient):
    """A client of the metadata service in hardened mode, and of one that knows no such mode. Thread-safe.

    Where an instance is in hardened mode (HttpTokens=required), a request without a token gets 403, one with
    a token that holds no more 401. In normal mode the service gives tokens too, and takes requests without.
    """

    default_endpoint: ClassVar[str] = DEFAULT_ENDPOINT
    endpoint_variable: ClassVar[str] = ENDPOINT
    disabled_variable: ClassVar[str] = DISABLED
    token_header: ClassVar[str] = "X-aliyun-ecs-metadata-token"  # noqa: S105 # the name of a header
    refusals: ClassVar[frozenset[int]] = frozenset({401, 403})
    needs_token: ClassVar[bool] = False


class AliyunNoticeSource(PreemptionSource):
    """Reads ``instance/spot/termination-time``, which is not there, or empty, until the machine is to go."""

    notice_seconds: float = SPOT_NOTICE_SECONDS
    # There is no long poll, and who asks often is throttled; five minutes are told ahead.
    poll_seconds: ClassVar[float] = 3.0

    def __init__(self, metadata: EcsMetadata | None = None) -> None:
        self._metadata = metadata or EcsMetadata()
        self._unread = ""

    def poll(self) -> PreemptionNotice | None:
        """Return the standing notice, or None."""
        text = (self._metadata.get(TERMINATION) or "").strip()
        if not text:
            return None
        try:
            at = _parse_time(text)
        except ValueError:
            if text != self._unread:
                self._unread = text
                _log.warning("%s is %r, which is no time", TERMINATION.partition("/")[2], text[:200])
            # What looks like a time says that this machine goes; when, is then what is promised at the least.
            # A page of words is no notice: a service that gave one to all would end every machine.
            if not re.match(r"[0-9]{4}-", text):
                return None
            at = None
        return PreemptionNotice(deadline=at, source="metadata")


def node_identity(metadata: EcsMetadata | None = None) -> NodeIdentity:
    """Return who this machine is; its rank is the number at the end of its host name.

    The metadata have no other index (see ``names``), and do not tell the market.

    Raises:
        TransientError: the metadata service is not up yet, or answers nonsense.
    """
    metadata = metadata or EcsMetadata()
    host_name = metadata.require("meta-data/hostname").strip()
    rank = rank_of(host_name)
    if rank is None:
        raise TransientError(
            f"the metadata service says hostname {host_name[:80]!r}, which ends in no number"
        )
    return NodeIdentity(
        instance_id=metadata.require("meta-data/instance-id"),
        rank=rank,
        address=metadata.require("meta-data/private-ipv4"),
        zone=metadata.get("meta-data/zone-id"),
        instance_type=metadata.get("meta-data/instance/instance-type"),
    )


def announced(metadata: EcsMetadata | None = None) -> dict[str, str]:
    """Return the tags that the controller has put on this machine since it was launched.

    Empty while they lag, and where the instance's metadata show no tags: InstanceMetadataTags, which is
    ``disabled`` unless ModifyInstanceMetadataOptions has changed it. From memory: the path of the tags.

    Raises:
        TransientError: the metadata service does not answer.
    """
    metadata = metadata or EcsMetadata()
    names = (metadata.get("meta-data/tags/instance/") or "").split()
    found = {name: metadata.get(f"meta-data/tags/instance/{name}") for name in ANNOUNCED if name in names}
    return {name: value for name, value in found.items() if value}


def region_of_this_instance(*, timeout_seconds: float = 1.0) -> str | None:
    """Return the region of the ECS instance that this runs on, from its metadata; None: it has none.

    Raises:
        TransientError: nobody answers within the time, as off ECS.
        CloudspotError: the environment says that there is no such service.
    """
    return EcsMetadata(timeout_seconds=timeout_seconds).get("meta-data/region-id")


def _parse_time(text: str) -> datetime:
    """Return a time such as ``2015-01-05T18:02:00Z``."""
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
