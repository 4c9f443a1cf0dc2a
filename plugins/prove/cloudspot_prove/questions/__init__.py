"""The open questions about each cloud, which only a real account answers, and their consequences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import as_file, files
from typing import Final

import msgspec

from cloudspot.decoding import convert
from cloudspot.jobfile.toml import read_toml

STEPS: Final[Mapping[str, str]] = {
    "check": "providers check: permissions, bucket, image, quotas",
    "price": "plan: what is sold, where, and for how much",
    "launch": "run: a machine boots, trains, delivers its log and ends itself",
    "resume": "stop and resume: a checkpoint is committed, and another machine takes it up",
    "notice": "a reclaim: the notice reaches the training, and a replacement takes over",
    "two-nodes": "two machines find each other and take their seats",
    "repeat": "the driver is killed while it launches; the repeated request returns the same machines",
    "alone": "a machine ends without any driver",
    "gpu": "the training runs on a GPU",
    "driver": "a function hears of a notice and buys the replacement",
    "other-region": "a machine in another region fetches its agent and writes its log",
    "setup": "cloudspot setup",
}
"""The steps of a run in their order, each with a description."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """An open question about a cloud."""

    id: str
    text: str
    """In Markdown."""
    steps: tuple[str, ...]
    """The names of the STEPS that answer it."""
    otherwise: str
    """What happens if the answer differs from cloudspot's expectation, in Markdown."""


@cache
def questions_of(provider: str) -> tuple[Question, ...]:
    """Return the questions about a cloud, in the order of the documentation."""
    with as_file(files(__name__) / f"{provider}.toml") as path:
        rows = read_toml(path)["question"]
    return tuple(convert(one, Question) for one in rows)
