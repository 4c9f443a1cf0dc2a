"""The delay from Compute Engine's announcement of a preemption to the agent, by long polling and by polling.

    python benchmarks/gcp_notice.py [--rounds 40]

The metadata server is emulated on a port of this machine. The agent's watcher waits for a notice once with
the plugin's long poll and once by polling every second, from the same phase. The reference is a bare request.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from datetime import datetime, timezone

from cloudspot.agent.notices.notice_poller import poll_notices
from cloudspot.interfaces import PreemptionSource
from cloudspot.local.metadataservice import MachineView, MetadataServer, StandingNotice
from cloudspot.model import PreemptionNotice
from cloudspot_gcp.metadata import HOST, GcePreemptionSource, Metadata
from cloudspot_gcp_sandbox.metadata_server import GceMetadata

FACTS = {
    "hostname": "h",
    "id": 1,
    "image": "i",
    "ip": "10.128.0.9",
    "machine-type": "n2-standard-2",
    "name": "cs-job-0a1b2c3d-1-0",
    "numeric-project-id": 1,
    "project-id": "p",
    "scheduling": {"provisioningModel": "SPOT"},
    "zone": "us-central1-a",
}


class Polling(PreemptionSource):
    """The same server, polled every second."""

    poll_seconds = 1.0

    def __init__(self) -> None:
        self._long = GcePreemptionSource()
        self.notice_seconds = self._long.notice_seconds

    def poll(self) -> PreemptionNotice | None:
        """Poll the server."""
        return self._long.poll()


def measure(source: PreemptionSource, server: GceMetadata, phase: float) -> float:
    """Return the time from the announcement to the watcher's report in seconds."""
    server.view.notice = None
    told = threading.Event()
    stopped = threading.Event()
    threading.Thread(
        target=poll_notices, args=(source, lambda _: told.set(), lambda: None, stopped), daemon=True
    ).start()
    time.sleep(phase)
    began = time.perf_counter()
    server.view.notice = StandingNotice(deadline=datetime.now(timezone.utc))
    told.wait()
    took = time.perf_counter() - began
    stopped.set()
    return took


def show(name: str, values: list[float]) -> None:
    """Print a line of figures."""
    ordered = sorted(values)
    print(
        f"{name:30s} median {1e3 * statistics.median(ordered):8.2f} ms   "
        f"90 % within {1e3 * ordered[int(0.9 * len(ordered))]:8.2f} ms   worst {1e3 * ordered[-1]:8.2f} ms"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    service = GceMetadata(MachineView(address="10.128.0.9", facts=FACTS))
    server = MetadataServer(service, "127.0.0.1")
    os.environ[HOST] = server.url.removeprefix("http://")
    bare = []
    for _ in range(10 * rounds):
        began = time.perf_counter()
        Metadata().get("instance/preempted")
        bare.append(time.perf_counter() - began)
    show("a request that is answered", bare)
    random.seed(0)
    phases = [1.0 + random.random() for _ in range(rounds)]
    show("long poll", [measure(GcePreemptionSource(), service, phase) for phase in phases])
    show("asking each second", [measure(Polling(), service, phase) for phase in phases])
    os._exit(0)  # do not wait for the watchers


if __name__ == "__main__":
    main()
