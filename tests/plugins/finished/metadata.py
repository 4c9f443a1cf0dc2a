"""What a machine of the paper cloud reads over HTTP, where PAPER_METADATA says."""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import datetime
from typing import Any

from cloudspot.errors import TransientError
from cloudspot.interfaces import PreemptionSource
from cloudspot.model import Market, NodeIdentity, PreemptionNotice


class PaperSource(PreemptionSource):
    notice_seconds = 120.0

    def poll(self) -> PreemptionNotice | None:
        mine = _ask("identity")["instance_id"]
        for one in _ask("notice"):
            if (one["machine"], one["event"]) == (mine, "reclaim"):
                at = one["at"] and datetime.fromisoformat(one["at"])
                return PreemptionNotice(deadline=at, source="metadata")
        return None


def read_identity() -> NodeIdentity:
    found = _ask("identity")
    return NodeIdentity(**{**found, "market": Market(found["market"])})


def _ask(path: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{os.environ['PAPER_METADATA']}/{path}", timeout=2.0) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise TransientError("the metadata service does not answer: try again") from error
