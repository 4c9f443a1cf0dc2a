"""Which store a machine belongs to, and which jobs of a store are driven from this computer.

Two stores in one account may hold jobs of the same id. A provider whose machines are this very computer
drives only what was submitted from here, or adopted.
"""

from __future__ import annotations

import hashlib

from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobstore.history import History
from cloudspot.model import Instance, InstanceState

MAX_LABEL = 128
"""Characters. A plugin whose cloud allows fewer in a tag's value keeps the label elsewhere."""


def store_label(store: ObjectStore) -> str:
    """Return the label that machines carry: the store's URL in the one form that all its spellings share."""
    url = store.canonical_url
    if len(url) <= MAX_LABEL:
        return url
    digest = hashlib.sha256(url.encode()).hexdigest()[:20]
    return f"{url[: MAX_LABEL - len(digest) - 1]}~{digest}"


def adopt(store: ObjectStore, provider: Provider, job_id: str, sha256: str) -> None:
    """Have the provider note that the job, with this submission, is driven from this computer."""
    provider.adopt(job_id, store_url=store_label(store), sha256=sha256)


def check_adopted(store: ObjectStore, provider: Provider, history: History) -> None:
    """Refuse to drive a job that has not ended and that this computer should not run.

    Raises:
        NotAdopted: its machines would be this computer, and nobody submitted or adopted it here.
    """
    if history.finished is None:
        job_id = history.submission.job_id
        provider.check_adopted(job_id, store_url=store_label(store), sha256=history.submission_sha256)


def is_of_another_store(instance: Instance, label: str) -> bool:
    """Return whether the machine carries another store's label; one without a label does not."""
    return bool(instance.store_url) and instance.store_url != label


def is_ours(instance: Instance, label: str, history: History | None) -> bool:
    """Return whether a machine of the job's id belongs to this job, in this very store.

    One without a label may, and is judged by its launch. One that has claimed a rank in our records does,
    whatever its label: the store may have a second name that we cannot recognize, and a machine that we took
    for another store's would be dead to us while it trains. One that had ended before the job was submitted
    does not: it belonged to an earlier job of this id.
    """
    if history is not None and _ended_before(instance, history):
        return False
    if not is_of_another_store(instance, label):
        return True
    launches = () if history is None else history.launches
    return any(slot.instance_id == instance.id for launch in launches for slot in launch.claimed.values())


def _ended_before(instance: Instance, history: History) -> bool:
    """Return whether the machine had ended when the job was submitted: it was an earlier job's.

    A job that was removed leaves its id to the next, and clouds list machines for hours or weeks after their
    end. Clocks that differ do no harm: a machine that is left out too soon is missing, and an absence proves
    nothing at once.
    """
    return (
        instance.state is InstanceState.ENDED
        and instance.ended_at is not None
        and instance.ended_at < history.first_submission.at
    )
