"""Determine which store a machine belongs to, and which jobs of a store are this computer's own.

Two stores in one account may hold jobs with the same id. A job that was not submitted from this computer, or
whose record has changed since, is still driven, but without those options of this computer that the record
names. A job whose machines would be this computer's processes is not driven in that case.
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
"""Characters. A plugin whose cloud allows fewer in a tag's value stores the label elsewhere."""


_OWN_HOST = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]*@)?[^/?#@$]+([/?#]|$)")
"""The beginning of a notify URL whose host contains no secret."""
_HARMLESS = re.compile(r"[\w.~%-]*", re.ASCII)
"""A secret without characters that could end a part of a URL."""


def store_label(store: ObjectStore) -> str:
    """Return the store's label on machines: its canonical URL, shortened with a digest if it is too long."""
    url = store.canonical_url
    if len(url) <= MAX_LABEL:
        return url
    digest = hashlib.sha256(url.encode()).hexdigest()[:20]
    return f"{url[: MAX_LABEL - len(digest) - 1]}~{digest}"


def adopt(store: ObjectStore, submission: Submission, sha256: str) -> None:
    """Note on this computer that its user accepts the job with this submission; see ``own_jobs``."""
    own_jobs.note_job(submission, store_url=store_label(store), sha256=sha256)


def check_adopted(store: ObjectStore, provider: Provider, history: History) -> None:
    """Refuse a live job that would run on this computer, unless it was submitted or adopted here.

    A job that the provider has released runs here again only if it is resumed from here.

    Raises:
        NotAdopted: nobody submitted or adopted the job here, or only with another submission.
        SpecError: other users can write the notes, or the notes cannot be read.
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

    Such options name resources of the driving computer, for example a kubeconfig, so a record must not choose
    them. A value in the record is used if this computer has noted it for the job. Any other value is replaced
    by the value from ``configured``, which returns the user's own table ``[providers.NAME]``.

    Raises:
        SpecError: the record names an option of this computer that is neither noted nor configured here.
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
                f"job {submission.job_id}: its record sets providers.{name}.{option}, but the job was not "
                "submitted from this computer, so only you may choose that option; set it in the table "
                f"[providers.{name}] of your config file"
            )
    return with_driver_options(spec, name, options)


def own_notify_urls(
    store: ObjectStore, job_id: str, notify: NotifySpec, secrets: Mapping[str, str]
) -> frozenset[str]:
    """Return the names, as in ``resolved``, of the URLs that this computer has noted for the job.

    The secrets come from the store, whose writers are not trusted. So a secret may fill in a name, a password
    or a token, but must not change the host of the URL.
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
    """Return whether the machine has another store's label; False for a machine without a label."""
    return bool(instance.store_url) and instance.store_url != label


def is_ours(instance: Instance, label: str, history: History | None) -> bool:
    """Return whether a machine with the job's id belongs to this job, in this very store.

    A machine without a label counts as ours, and its launch decides about it. A machine that has claimed a
    rank in our records is ours whatever its label: the store may have a second name, and a machine attributed
    to another store would look dead while it trains. A machine that ended before the job was submitted is not
    ours, because it belonged to an earlier job with the same id.
    """
    if history is not None and _ended_before(instance, history):
        return False
    if not is_of_another_store(instance, label):
        return True
    launches = () if history is None else history.launches
    return any(slot.instance_id == instance.id for launch in launches for slot in launch.claimed.values())


def _ended_before(instance: Instance, history: History) -> bool:
    """Return whether the machine ended before the job was submitted, so that it was an earlier job's.

    The id of a removed job may be used again, and clouds list machines for hours or weeks after their end.
    Differing clocks do no harm, because a machine that is wrongly left out counts as absent, and absence
    proves nothing at once.
    """
    return (
        instance.state is InstanceState.ENDED
        and instance.ended_at is not None
        and instance.ended_at < history.first_submission.at
    )
