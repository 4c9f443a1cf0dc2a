"""What a machine tells of itself, printed as lines of the job's log: facts of a fixed list, and no names.

It needs the standard library alone, and reads the metadata services by themselves: the agent's reading of
them is what is on trial.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

PREFIX = "cloudspot-witness "
EVERY_SECONDS = 1.0
OUR_TAGS = ("MASTER_ADDR", "NUM_NODES", "cloudspot-job", "cloudspot-launch")


def watch(cloud: str) -> None:
    """Print the facts of this machine, and whatever of them changes, until the process ends."""
    told: dict[str, Any] = {}
    look = LOOKS.get(cloud, dict)
    while True:
        try:
            facts = {**programs(), **look()}
        except (OSError, ValueError):
            facts = {}
        for name, value in facts.items():
            if told.get(name) != value:
                told[name] = value
                line = {"rank": int(os.environ.get("RANK", "0")), "fact": name, "value": value}
                print(PREFIX + json.dumps(line), flush=True)
        time.sleep(EVERY_SECONDS)


def programs() -> dict[str, Any]:
    """Return what runs here."""
    import torch

    # What the service manager says of the agent; empty: there is no service manager.
    unit = ""
    if Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        asked = subprocess.run(
            ["systemctl", "is-active", "cloudspot-agent"], capture_output=True, text=True, check=False
        )
        unit = asked.stdout.strip()[:20]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "has-gpu": torch.cuda.is_available(),
        "agent-unit": unit,
        "prefix": sys.prefix if sys.prefix.startswith(("/opt", "/usr")) else "",
    }


def read_aws() -> dict[str, Any]:
    """Return what EC2's metadata service tells."""
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
    token = ask(f"{base}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    get = reader(f"{base}/latest/meta-data/", {"X-aws-ec2-metadata-token": token or ""})
    tags = (get("tags/instance/") or "").split()
    facts: dict[str, Any] = {
        "launch-index": number(get("ami-launch-index")),
        "tags": [name for name in OUR_TAGS if name in tags],
    }
    notice = get("spot/instance-action")
    if notice is not None:
        said = json.loads(notice)
        facts["notice"] = said.get("action")
        facts["notice-has-time"] = "time" in said
        facts["notice-seconds"] = seconds_until(said.get("time"))
    return once(facts, "notice-seconds")


def read_gcp() -> dict[str, Any]:
    """Return what Compute Engine's metadata service tells."""
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
    get = reader(f"http://{host}/computeMetadata/v1/instance/", {"Metadata-Flavor": "Google"})
    return {"notice": get("preempted") == "TRUE"}


def read_aliyun() -> dict[str, Any]:
    """Return what ECS's metadata service tells."""
    base = os.environ.get("ECS_METADATA_SERVICE_ENDPOINT", "http://100.100.100.200").rstrip("/")
    token = ask(f"{base}/latest/api/token", {"X-aliyun-ecs-metadata-token-ttl-seconds": "60"}, method="PUT")
    get = reader(f"{base}/latest/meta-data/", {"X-aliyun-ecs-metadata-token": token or ""})
    tail = re.search(r"-(\d+)$", socket.gethostname())
    facts: dict[str, Any] = {"host-index": number(tail[1] if tail else None)}
    notice = get("instance/spot/termination-time")
    if notice is not None:
        facts["notice"] = True
        facts["notice-seconds"] = seconds_until(notice)
    return once(facts, "notice-seconds")


LOOKS: dict[str, Callable[[], dict[str, Any]]] = {"aliyun": read_aliyun, "aws": read_aws, "gcp": read_gcp}
_first: dict[str, Any] = {}


def once(facts: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the facts with the first value that this one had: it changes by itself."""
    if name in facts:
        facts[name] = _first.setdefault(name, facts[name])
    return facts


def reader(base: str, headers: dict[str, str]) -> Callable[[str], str | None]:
    """Return what reads a path below an address."""
    return lambda path: ask(base + path, headers)


def ask(url: str, headers: dict[str, str], *, method: str = "GET") -> str | None:
    """Return what the service answers; None: there is no such thing."""
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return str(answer.read(4096).decode("utf-8", "replace"))
    except urllib.error.HTTPError:
        return None


def number(text: str | None) -> int | None:
    """Return a whole number; None: it is none."""
    return int(text) if text is not None and text.strip().isdecimal() else None


def seconds_until(text: object) -> int | None:
    """Return how long it is until a time; None: it is none."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return round((at - datetime.now(timezone.utc)).total_seconds())
