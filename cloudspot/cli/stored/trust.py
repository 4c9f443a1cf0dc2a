"""Compare a stored job with this computer's note of it, and ask before acting on a differing record.

Anyone who can write to the store could have changed the record. The question is tied to the hash of the
submission, which covers the job file and the code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
import msgspec

from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.controller.ownership import adopt, store_label
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.image import image_parts
from cloudspot.jobfile.spec import JobSpec, spec_from_json, spec_to_json
from cloudspot.jobstore.jobs import own_jobs
from cloudspot.jobstore.jobs.resumption import CHANGED
from cloudspot.jobstore.jobs.submission import content_of
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout import codec
from cloudspot.jobstore.layout.records import Submission
from cloudspot.model import Capability
from cloudspot.story.comparison import field_differences

trust_option = click.option(
    "--trust",
    metavar="SHA256[:NAME,...]",
    help="Do not ask if the job's record has this hash and only these variables would be sent.",
)


def check_trusted(
    job: Job, history: History, *, trust: str | None, action: str, sends: JobSpec | None
) -> None:
    """Return at once if the job's record matches a submission from this computer, or if the user trusts it.

    Otherwise show how the record differs from the newest submission noted here, and ask. ``action`` is the
    command, for messages. ``sends`` is the job file whose secrets the command would take from the
    environment; None if it takes none.

    Raises:
        SpecError: there is no terminal for the question, and ``trust`` does not name the record and the
            variables; or other users can access the notes.
        Abort: the answer is no.
        CloudspotError: the job was resumed after it was first read.
    """
    note = own_jobs.find_note(job.id, store_url=store_label(job.store))
    sha256, names = history.submission_sha256, () if sends is None else sends.secret_names
    if job.submission_sha256 != sha256:  # the provider was opened for another submission
        raise CloudspotError(CHANGED.format(job.id))
    if note is not None and sha256 in note.submissions:
        return
    wanted = f"{sha256}:{','.join(names)}" if names else sha256
    if trust is not None:
        found, _, listed = trust.partition(":")
        if found == sha256 and {*filter(None, listed.split(","))} == {*names}:
            return
    how = "was not submitted from this computer"
    if note is not None:
        how = "differs from its submission from this computer"
    output.echo(f"job {job.id} in {job.store.url} {how}; its record says:", error=True)
    for line in _differences(history.submission, None if note is None else note.newest):
        output.echo(f"  {line}", error=True)
    if sends is not None:
        for line in _sent(sends, job.store):
            output.echo(f"  {line}", error=True)
    if trust is not None or not output.can_ask():
        given = "--trust does not match" if trust is not None else "there is no terminal on which to ask"
        output.echo(f"--trust {wanted}", error=True)  # complete, unlike a long error message
        raise SpecError(f"job {job.id} {how}, and {given}; to {action} it as shown, give the option above")
    click.confirm(f"{action} it, as shown", abort=True, err=True)


def noting(store: ObjectStore, provider: Provider) -> Callable[[Submission, str], None]:
    """Return a function that notes a submission on this computer just before the submission is stored.

    Failing to make the note is an error only if the job's machines would run on this computer. A resumed job
    is noted twice.
    """
    warned = set[str]()

    def try_to_note(submission: Submission, sha256: str) -> None:
        try:
            adopt(store, submission, sha256)
        except SpecError as error:
            if Capability.THIS_COMPUTER in provider.capabilities:
                raise
            if sha256 not in warned:
                output.warn(f"the job cannot be noted here, so `fork`, `resume` and `move` will ask: {error}")
            warned.add(sha256)

    return try_to_note


def _differences(submission: Submission, noted: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a line for each field that differs from the note or, without a note, from its default."""
    if noted is None:
        noted = {"spec": spec_to_json(spec_from_json({"name": "none", "run": {"command": ["none"]}}))}
    for one in field_differences(noted, content_of(codec.encode(submission))):
        old = "" if one["a"] is None else f"{_text(one['a'])} -> "
        yield f"{one['field'].removeprefix('spec.')}: {old}{_text(one['b'])}"


def _text(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _sent(spec: JobSpec, store: ObjectStore) -> Iterator[str]:
    """Yield a line for each variable that would leave this computer, with its destinations."""
    for name in spec.secret_names:
        where = [f"the store {store.url}"]
        login = spec.run.image_login
        if name in spec.run.secrets:
            where.append("the training")
        if login is not None and login.secret == name and spec.run.image is not None:
            where.append(f"the registry {image_parts(spec.run.image)[0]}, as the password of {login.user}")
        named = [i for i, url in enumerate(spec.notify.urls) if f"${{{name}}}" in url]
        where += [f"the server of notify.urls[{i}]" for i in named]
        yield f"the variable {name} would be sent to {'; '.join(where)}"
