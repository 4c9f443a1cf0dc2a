"""Which store a machine belongs to, and which jobs of a store are this computer's own.

Two stores in one account may hold jobs of the same id. A job that was not submitted from this computer, or
not as its record says now, is driven all the same, but with nothing of this computer that the record names.
Where machines are this very computer, it is not driven.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from cloudspot.errors import NotAdopted, SpecError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.notify import NotifySpec, secrets_in
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.jobs import own_jobs
from cloudspot.jobstore.jobs.state_home import state_home
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Submission
from cloudspot.model import Capability, Instance, InstanceState
from cloudspot.registry import open_provider, provider_class, with_driver_options

MAX_LABEL = 128
"""Characters. A plugin whose cloud allows fewer in a tag's value keeps the label elsewhere."""


_OWN_HOST = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]*@)?[^/?#@$]+([/?#]|$)")
"""How a notify URL begins whose host is no secret."""
_HARMLESS = re.compile(r"[\w.~%-]*", re.ASCII)
"""A secret that ends no part of a URL."""


def store_label(store: ObjectStore) -> str:
    """Return the label that machines carry: the store's URL in the one form that all its spellings share."""
    url = store.canonical_url
    if len(url) <= MAX_LABEL:
        return url
    digest = hashlib.sha256(url.encode()).hexdigest()[:20]
    return f"{url[: MAX_LABEL - len(digest) - 1]}~{digest}"


def adopt(store: ObjectStore, submission: Submission, sha256: str) -> None:
    """Note on this computer that its user wants the job, with this very submission; see ``own_jobs``."""
    own_jobs.note_job(submission, store_url=store_label(store), sha256=sha256)


def check_adopted(store: ObjectStore, provider: Provider, history: History) -> None:
    """Refuse to drive a job that has not ended and whose machines would be this computer, unless it is own.

    One that the provider has released runs here again only if it is resumed from here.

    Raises:
        NotAdopted: nobody submitted or adopted it here, or only with another submission.
        SpecError: the notes are open to others, or cannot be read.
    """
    if Capability.THIS_COMPUTER not in provider.capabilities or history.finished is not None:
        return
    job_id, label = history.submission.job_id, store_label(store)
    note = own_jobs.find_note(job_id, store_url=label)
    if note is None:
        fault = "was not submitted from here"
    elif history.submission_sha256 not in note.submissions:
        fault = "is not as it was submitted from here"
    elif note.has_ended:
        fault = "has ended here, and was not resumed from here"
    else:
        return
    raise NotAdopted(
        f"job {job_id!r} in {label} {fault} (state home {state_home()}), and machines of provider "
        f"{provider.name!r} are processes of the computer that drives them; if you trust its code, run it "
        f"here with: cloudspot attach --adopt {job_id} --store {label}"
    )


def open_to_drive(
    store: ObjectStore, submission: Submission, spec: JobSpec, configured: Callable[[str], Mapping[str, Any]]
) -> Provider:
    """Open the provider of a stored job with the ``driver_options`` of this computer.

    They name something of the computer that drives, such as a kubeconfig, so a record does not choose them. A
    value in the record is used if this computer has noted it for the job. Otherwise it is replaced by that of
    ``configured``, which returns the user's own table ``[providers.NAME]``.

    Raises:
        SpecError: the record names such an option, and it is neither noted nor configured here.
        PluginError: the provider cannot be used.
    """
    return open_provider(submission.provider, _with_own_options(store, submission, spec, configured))


def _with_own_options(
    store: ObjectStore, submission: Submission, spec: JobSpec, configured: Callable[[str], Mapping[str, Any]]
) -> JobSpec:
    name = submission.provider
    named = provider_class(name).driver_options
    if not named:
        return spec
    table, own = spec.providers.get(name, {}), configured(name)
    noted = [
        content["spec"].get("providers", {}).get(name, {})
        for content in _noted(store, submission.job_id).values()
        if content["provider"] == name
    ]
    options = {**own}
    for option in sorted(named & table.keys()):
        if not table[option]:
            continue
        if any(one.get(option) == table[option] for one in noted):
            options[option] = table[option]
        elif option not in own:
            raise SpecError(
                f"job {submission.job_id}: its record names providers.{name}.{option}, which only you choose "
                "for a job that was not submitted from this computer; set it in the table "
                f"[providers.{name}] of your config file"
            )
    return with_driver_options(spec, name, options)


def own_notify_urls(
    store: ObjectStore, job_id: str, notify: NotifySpec, secrets: Mapping[str, str]
) -> frozenset[str]:
    """Return the names, as in ``resolved``, of the URLs that this computer has noted for the job.

    The secrets are the store's word. So what they fill in may be a name, a password or a token, but no part
    of where the URL leads.
    """
    noted = {
        url
        for content in _noted(store, job_id).values()
        for url in content["spec"].get("notify", {}).get("urls", ())
    }
    return frozenset(
        name
        for name, url in zip(notify.resolved(secrets), notify.urls, strict=True)
        if url in noted
        and _OWN_HOST.match(url)
        and all(_HARMLESS.fullmatch(secrets[one]) for one in secrets_in(url))
    )


def _noted(store: ObjectStore, job_id: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        note = own_jobs.find_note(job_id, store_url=store_label(store))
    except SpecError:
        return {}
    return {} if note is None else note.submissions


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
