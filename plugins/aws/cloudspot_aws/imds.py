"""Reads a node's identity and notices from EC2's metadata service (IMDSv2).

The module uses only the standard library, because every agent carries it and it must work where nothing is
installed. Sources: EC2 user guide, "Use the Instance Metadata Service to access instance metadata", "Spot
Instance interruption notices", "EC2 instance rebalance recommendations" (checked 2026-11).
"""

from __future__ import annotations

import json
import logging
from typing import ClassVar, Final

from cloudspot.decoding import MAX_NODES, whole_number
from cloudspot.errors import TransientError
from cloudspot.interfaces import PreemptionSource
from cloudspot.model import Market, NodeIdentity, PreemptionNotice
from cloudspot.plugin.answers import UNREADABLE
from cloudspot.plugin.metadataclient import MetadataClient, parse_time

ENDPOINT: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""The environment variable that overrides the service's address in every AWS SDK."""
DISABLED: Final = "AWS_EC2_METADATA_DISABLED"
"""The environment variable that turns the service off in every AWS SDK."""
SPOT_NOTICE_SECONDS: Final = 120.0
"""The notice before a spot machine is terminated or stopped. Hibernation begins at its notice."""
MAX_ACTION: Final = 40
"""The maximum length of an action; EC2's longest is "hibernate"."""
REBALANCE_EVERY: Final = 10
"""The rebalance recommendation is read at every poll whose number is a multiple of this."""

# A child of the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.aws.imds")


class Imds(MetadataClient):
    """A client of the metadata service that renews its session token in time. Thread-safe."""

    default_endpoint: ClassVar[str] = "http://169.254.169.254"
    endpoint_variable: ClassVar[str] = ENDPOINT
    disabled_variable: ClassVar[str] = DISABLED
    token_header: ClassVar[str] = "X-aws-ec2-metadata-token"  # noqa: S105 # the name of a header


class SpotNoticeSource(PreemptionSource):
    """Reads ``spot/instance-action``; a rebalance recommendation is a hint, and is logged once."""

    notice_seconds: float = SPOT_NOTICE_SECONDS
    poll_seconds: ClassVar[float] = 1.0

    def __init__(self, imds: Imds | None = None) -> None:
        self._imds = imds or Imds()
        self._num_polls = 0
        self._recommended: str | None = None

    def poll(self) -> PreemptionNotice | None:
        text = self._imds.get("meta-data/spot/instance-action")
        if text is None:
            if self._num_polls % REBALANCE_EVERY == 0:
                self._look_for_recommendation()
            self._num_polls += 1
            return None
        try:
            value = json.loads(text)
            action, at = str(value["action"])[:MAX_ACTION], parse_time(str(value["time"]))
        except UNREADABLE as error:
            # The machine is reclaimed all the same; if no time is stated, the shortest promised notice
            # applies.
            _log.warning("spot/instance-action is %r, which cannot be read: %s", text[:200], error)
            action, at = "terminate", None
        return PreemptionNotice(deadline=at, action=action, source="imds")

    def is_at_risk(self) -> bool:
        return self._recommended is not None

    def _look_for_recommendation(self) -> None:
        try:
            text = self._imds.get("meta-data/events/recommendations/rebalance")
        except TransientError:
            return  # the next poll may find it
        if text is not None and text != self._recommended:
            self._recommended = text
            _log.warning(
                "EC2 recommends leaving this machine (rebalance recommendation %s): a reclaim is likelier "
                "than usual; the training goes on, and a driver may buy a machine to take its place",
                text.strip()[:200],
            )


def node_identity(imds: Imds | None = None) -> NodeIdentity:
    """Return this machine's identity; its rank is its index within its RunInstances call.

    Raises:
        TransientError: the metadata service is not available yet, or its answer is invalid.
    """
    imds = imds or Imds()
    index = imds.require("meta-data/ami-launch-index")
    rank = whole_number(index.strip(), most=MAX_NODES - 1)
    if rank is None:
        raise TransientError(f"the metadata service's ami-launch-index is {index[:40]!r}, not a rank")
    life_cycle = imds.get("meta-data/instance-life-cycle")
    return NodeIdentity(
        instance_id=imds.require("meta-data/instance-id"),
        rank=rank,
        address=imds.require("meta-data/local-ipv4"),
        zone=imds.get("meta-data/placement/availability-zone"),
        instance_type=imds.get("meta-data/instance-type"),
        market=None if life_cycle is None else Market.SPOT if life_cycle == "spot" else Market.ON_DEMAND,
    )
