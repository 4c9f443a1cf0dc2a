"""Prints facts about a machine as lines of the job's log: a fixed list of facts, and no names.

It needs only the standard library, and reads the metadata services without the agent's code, because the
agent's readings are being tested.
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
    """Print the facts about this machine, and any changes to them, until the process ends."""
    printed: dict[str, Any] = {}
    look = LOOKS.get(cloud, dict)
    while True:
        try:
            facts = {**programs(), **look()}
        except (OSError, ValueError):
            facts = {}
        for name, value in facts.items():
            if printed.get(name) != value:
                printed[name] = value
                line = {"rank": int(os.environ.get("RANK", "0")), "fact": name, "value": value}
                print(PREFIX + json.dumps(line), flush=True)
        time.sleep(EVERY_SECONDS)


def programs() -> dict[str, Any]:
    """Return the versions and the state of the programs that run here."""
    import torch

    # The state of the agent's unit; empty if there is no service manager.
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
    """Return the facts from EC2's metadata service."""
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
        document = json.loads(notice)
        facts["notice"] = document.get("action")
        facts["notice-has-time"] = "time" in document
        facts["notice-seconds"] = seconds_until(document.get("time"))
    return once(facts, "notice-seconds")


def read_gcp() -> dict[str, Any]:
    """Return the facts from Compute Engine's metadata service."""
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
    get = reader(f"http://{host}/computeMetadata/v1/instance/", {"Metadata-Flavor": "Google"})
    return {"notice": get("preempted") == "TRUE"}


def read_aliyun() -> dict[str, Any]:
    """Return the facts from ECS's metadata service."""
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
    """Return the facts with this one's first value, because the value changes by itself."""
    if name in facts:
        facts[name] = _first.setdefault(name, facts[name])
    return facts


def reader(base: str, headers: dict[str, str]) -> Callable[[str], str | None]:
    """Return a function that reads a path relative to ``base``."""
    return lambda path: ask(base + path, headers)


def ask(url: str, headers: dict[str, str], *, method: str = "GET") -> str | None:
    """Return the service's answer, or None if it has no such path."""
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return str(answer.read(4096).decode("utf-8", "replace"))
    except urllib.error.HTTPError:
        return None


def number(text: str | None) -> int | None:
    """Return the text as a whole number, or None if it is not one."""
    return int(text) if text is not None and text.strip().isdecimal() else None


def seconds_until(text: object) -> int | None:
    """Return the number of seconds until a time, or None if the text is not a time."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return round((at - datetime.now(timezone.utc)).total_seconds())
