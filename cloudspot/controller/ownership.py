"""Whose a machine is: two stores in one account may hold jobs of the same id; pure."""

from __future__ import annotations

import hashlib

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.history import History
from cloudspot.model import Instance, InstanceState

MAX_LABEL = 128
"""Characters. Clouds take at least so many as a tag's value; one that takes fewer keeps it elsewhere."""


def store_label(store: ObjectStore) -> str:
    """Return what machines carry of the store: its URL in the one form that all its spellings share."""
    url = store.canonical_url
    if len(url) <= MAX_LABEL:
        return url
    digest = hashlib.sha256(url.encode()).hexdigest()[:20]
    return f"{url[: MAX_LABEL - len(digest) - 1]}~{digest}"


def is_of_another_store(instance: Instance, label: str) -> bool:
    """Say whether the machine carries another store's label; one that carries none does not."""
    return bool(instance.store_url) and instance.store_url != label


def is_ours(instance: Instance, label: str, history: History | None) -> bool:
    """Say whether a machine of the job's id is one of this job, of this very store.

    One that carries no label may be, and is judged by its launch. One that has claimed a rank in our records
    is, whatever it carries: the store may have a second name that nobody can tell to be one, and a machine
    that we took for another's would be dead to us while it trains. None is that had ended before the job was
    submitted: that was one of an earlier job of this id.
    """
    if history is not None and _ended_before(instance, history):
        return False
    if not is_of_another_store(instance, label):
        return True
    launches = () if history is None else history.launches
    return any(slot.instance_id == instance.id for launch in launches for slot in launch.slots.values())


def _ended_before(instance: Instance, history: History) -> bool:
    """Say whether the machine had ended when the job was submitted, so that it is one of a job of its name.

    A job that was removed leaves its id to another, and clouds tell for hours or weeks of machines that are
    gone. Where two clocks differ, no harm is done: what is left out too soon is missing, which proves nothing
    at once.
    """
    return (
        instance.state is InstanceState.ENDED
        and instance.ended_at is not None
        and instance.ended_at < history.submission.at
    )
