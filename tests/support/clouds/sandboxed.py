"""A whole job in a sandbox, and what its account looks like when it is over, as its owner sees it.

Run as a script it is what runs inside: ``sandboxed.py CLOUD JOB [ARGUMENT...]`` prints it as JSON. What only
one cloud's own tools can see, ``account_CLOUD`` looks at.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from support.jobs.acting_user import COMMAND, User

NAME = "tiny"
DOCS = Path(__file__).parents[3] / "docs"


@dataclass(frozen=True)
class Seen:
    """What there was to see."""

    show: dict[str, Any]
    log: list[str]
    """Of ``cloudspot logs``."""
    account: dict[str, Any]
    """As the cloud's own tools show it."""
    trail: list[dict[str, Any]]
    """The job's requests."""
    consoles: dict[str, str]
    """By the machine's name in the sandbox."""
    state: Path
    """What the sandbox has kept."""

    @property
    def machines(self) -> list[str]:
        """``LAUNCH-RANK`` of each machine that the job had, sorted."""
        return sorted(f"{node['launch']}-{node['rank']}" for node in self.show["nodes"])


def run_sandboxed(
    user: User,
    cloud: str,
    job: Path,
    *,
    arguments: Sequence[str] = (),
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Seen:
    """Run the job attached, in the cloud's sandbox with its ``options``, and look at all that is left."""
    inside = [sys.executable, str(Path(__file__)), cloud, str(job), *arguments]
    command = [*COMMAND, "sandbox", cloud, *options, "--keep", "--", *inside]
    done = subprocess.run(
        command, env={**user.environ, **(environ or {})}, capture_output=True, text=True, check=False
    )
    kept = Path(re.findall(r"kept in (\S+)", done.stderr)[-1]) / "state"
    found = kept.glob("machines/*/console.log")
    consoles = {path.parent.name: path.read_text(errors="replace") for path in found}
    ends = "\n".join(one[-2000:] for one in consoles.values())
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}\n{ends}"
    seen = json.loads(done.stdout)
    requests = [json.loads(line) for line in (kept / "cloud" / "requests.jsonl").read_text().splitlines()]
    trail = [one for one in requests if one["at"] < seen["looked_at"]]
    return Seen(seen["show"], seen["log"], seen["account"], trail, consoles, kept)


def weights_of(show: Mapping[str, Any]) -> str:
    """Return the hash of the weights that the job ended with."""
    found: str = show["final"]["weights_sha256"]
    return found


def look(cloud: str, job: str, *arguments: str) -> dict[str, Any]:
    """Run the job, and return what there is to see; inside."""
    _cloudspot("run", job, "--name", NAME, "--provider", cloud, *arguments)
    show, log = json.loads(_cloudspot("show", NAME, "--json")), _cloudspot("logs", NAME).splitlines()
    looked_at = datetime.now(timezone.utc).isoformat()
    account = importlib.import_module(f"support.clouds.account_{cloud}").look()
    return {"show": show, "log": log, "looked_at": looked_at, "account": account}


def check_streams(streams: Mapping[str, Sequence[Mapping[str, Any]]], show: Mapping[str, Any]) -> None:
    """Each stream has its lines in the order in which they were written, and all steps are in the log.

    A line is a mapping with ``seq`` and ``text``.
    """
    for name, lines in streams.items():
        assert all("part" not in line for line in lines), name
        # A batch that was sent again shows its lines twice; never in another order.
        numbers = list(dict.fromkeys(line["seq"] for line in lines))
        assert numbers == list(range(len(numbers))), name
    # The first rank prints; it is another node's once its own was taken.
    printed = [line["text"] for lines in streams.values() for line in lines]
    steps = {int(found[1]) for text in printed if (found := re.match(r"step (\d+) loss", text))}
    assert sorted(steps) == list(range(show["steps_total"]))


def rights_taken(trail: Iterable[Mapping[str, Any]], by: str) -> set[tuple[str, str]]:
    """Return what ``user`` or ``machine`` took: rights, each with what it was taken on."""
    return {(right, one["resource"]) for one in trail if one["by"] == by for right in one["rights"]}


def not_granted(
    taken: Iterable[tuple[str, str]], is_granted: Callable[[str, str], bool]
) -> list[tuple[str, str]]:
    """Return what was taken and not granted."""
    return sorted(one for one in taken if not is_granted(*one))


def granted_by(statements: Iterable[Mapping[str, Any]]) -> Callable[[str, str], bool]:
    """Return what says whether a policy's statements grant a right on a resource; ``*``: the trail has none."""

    def is_granted(right: str, resource: str) -> bool:
        for one in statements:
            actions, resources = one["Action"], one["Resource"]
            for name in [resources] if isinstance(resources, str) else resources:
                is_there = resource == "*" or fnmatch.fnmatchcase(resource, name)
                if is_there and right in ([actions] if isinstance(actions, str) else actions):
                    return True
        return False

    return is_granted


def _cloudspot(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stdout[-8000:], done.stderr[-4000:])
    return done.stdout


if __name__ == "__main__":
    print(json.dumps(look(*sys.argv[1:])))
