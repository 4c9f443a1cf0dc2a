"""What somebody who can write to a bucket makes a driver of its jobs do; docs/security.md tells of it."""

from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import msgspec
import pytest
from support.records.made_records import Records
from support.records.many_jobs import ManyJobs
from support.stores.memorystore import InMemoryStore
from support.worlds.groups import group_of

from cloudspot.controller.actions import OpenLaunch
from cloudspot.controller.launchrequest import render_launch
from cloudspot.controller.ownership import adopt
from cloudspot.controller.reconcile import Reconciled, Reconciler
from cloudspot.errors import NotAdopted
from cloudspot.interfaces import Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.submission import hash_of
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Intent, Slot, StagedAgent, Submission
from cloudspot.local.options import LocalOptions
from cloudspot.local.provider import LocalProvider
from cloudspot.model import BootProfile, Resources
from cloudspot.registry import open_provider
from cloudspot.testing import plaincalls

JOB, URL = "digits-1", "memory://test"
SPEC = {"name": "digits", "run": {"entrypoint": "train.py"}}
FORGED = StagedAgent(sha256="f" * 64, digest="of-a-stranger", requirements=("cloudspot",))


def submitted(records: Records, store: InMemoryStore, **changes: object) -> Submission:
    """Put a job into the store as whoever may write there can."""
    submission = records.change(records.history().submission, job_id=JOB, **changes)
    store.put(keys.index(JOB), b"")
    store.put(keys.live(JOB, submission.writer), b"")
    store.put(keys.spec(JOB), codec.encode(submission))
    return submission


def open_own(submission: Submission, spec: JobSpec) -> Provider:
    return open_provider(submission.provider, spec)


class StockImages(LocalProvider):
    """Machines whose image has no cloudspot."""

    def boot_profile(self) -> BootProfile:
        return BootProfile(fetch_code="def fetch(store_url, key, path): ...\n")


def test_whoever_replaces_the_submission_chooses_archive_and_hash_of_later_launches(records):
    store = InMemoryStore()
    submission = submitted(records, store)
    assert submission.agent != FORGED
    store.put(keys.spec(JOB), codec.encode(msgspec.structs.replace(submission, agent=FORGED)))
    read, spec = HistoryReader(store, JOB).read_job()
    provider = StockImages(LocalOptions())
    offer = plaincalls.offers(provider.provisioner(), Resources())[0]
    request = render_launch(
        OpenLaunch(number=2, launch=2, offer=offer, num_nodes=1, min_nodes=1, why="lost"),
        spec,
        provider,
        read,
        store.url,
        submission_sha256="5" * 64,
        label="",
        decided_at=read.at,
    )
    assert f"agent_key=agents/{FORGED.sha256}\nagent_sha256={FORGED.sha256}\n" in request.body["user_data"]


def forged_launch(records: Records, mark: Path, *, signature: str = "") -> Intent:
    """A launch whose machine would leave a mark on the computer that drives the store."""
    provisioner = LocalProvider().provisioner()
    offer = plaincalls.offers(provisioner, Resources())[0]
    group = group_of(
        offer, job_id=JOB, user_data=f"touch {mark}; sleep 1000", max_seconds=600.0, store_url=URL
    )
    request = msgspec.structs.replace(provisioner.render(group), signature=signature)
    return msgspec.structs.replace(
        records.intent(offer=offer), request=request, at=datetime.now(timezone.utc)
    )


def test_a_job_that_somebody_put_under_the_local_provider_is_driven_by_nobody_and_holds_up_no_other(
    records, tmp_path: Path, local_home: Path
):
    store, mark = InMemoryStore(), tmp_path / "mark"
    submitted(records, store, provider="local", spec={**SPEC, "name": "forged"})
    store.put(keys.journal(JOB, 1), codec.encode(forged_launch(records, mark)))
    town = ManyJobs(store, tmp_path / "work")
    town.add_live()

    def open_any(submission: Submission, spec: JobSpec) -> Provider:
        return open_own(submission, spec) if spec.name == "forged" else cast("Provider", town.provider)

    for forged, other in (Reconciler(store, open_any).run_pass() for _ in range(2)):
        assert isinstance(forged, Reconciled)
        assert isinstance(other, Reconciled)
        assert (forged.job_id, other.job_id, other.error) == (JOB, "live-00001", None)
        assert isinstance(forged.error, NotAdopted)
        assert f"job '{JOB}' in {URL} was not submitted from here (state home {local_home})" in str(
            forged.error
        )
        assert f"run it here with: cloudspot attach --adopt {JOB} --store {URL}" in str(forged.error)
    assert plaincalls.instances(LocalProvider().provisioner()) == ()
    assert not mark.exists()


@pytest.mark.parametrize("signature", ["", "5" * 64, "\u00e9"])
def test_a_launch_that_somebody_wrote_into_the_journal_of_ones_own_job_is_refused(
    records, tmp_path: Path, local_home: Path, signature
):
    store, mark = InMemoryStore(), tmp_path / "mark"
    spec = {
        **SPEC,
        "spot": {"policy": "spot"},
        "providers": {"local": {"capacity": {"local-a": 0, "local-b": 0}}},
    }
    submission = submitted(records, store, provider="local", spec=spec, agent=None)
    adopt(store, submission, hash_of(codec.encode(submission)))
    intent = forged_launch(records, mark, signature=signature)
    store.put(keys.journal(JOB, 1), codec.encode(intent))
    (done,) = Reconciler(store, open_own).run_pass()
    assert done.error is None
    void = codec.decode(store.get(keys.slot(JOB, 1, 0)), Slot)
    assert void.instance_id is None
    assert void.detail.startswith("refused: the launch was not requested from this computer (state home ")
    # The job goes on with launches of its own.
    own = codec.decode_journal(store.get(keys.journal(JOB, 2)))
    assert "touch" not in own.request.body["user_data"]
    assert plaincalls.instances(LocalProvider().provisioner()) == ()
    assert not mark.exists()


@pytest.mark.parametrize(
    "change",
    [{"code_sha256": "e" * 64}, {"spec": {**SPEC, "run": {"entrypoint": "train.py", "setup": "evil"}}}],
)
def test_ones_own_job_is_not_driven_here_with_another_submission(records, local_home: Path, change):
    store = InMemoryStore()
    submission = submitted(records, store, provider="local", spec=SPEC)
    adopt(store, submission, hash_of(codec.encode(submission)))
    store.put(keys.spec(JOB), codec.encode(msgspec.structs.replace(submission, **change)))
    (done,) = Reconciler(store, open_own).run_pass()
    assert isinstance(done.error, NotAdopted)
    assert "is not as it was submitted from here" in str(done.error)
    assert [meta.key for meta in store.list_objects(keys.journal_prefix(JOB))] == []


def test_ones_own_job_in_another_store_is_another_job(records, local_home: Path):
    store, copy = InMemoryStore(), InMemoryStore("memory://copy")
    submission = submitted(records, store, provider="local", spec=SPEC)
    adopt(store, submission, hash_of(codec.encode(submission)))
    submitted(records, copy, provider="local", spec=SPEC)
    (done,) = Reconciler(copy, open_own).run_pass()
    assert isinstance(done.error, NotAdopted)


def test_a_job_that_has_ended_is_forgotten_and_settled_without_a_note(records, local_home: Path):
    store = InMemoryStore()
    submission = submitted(records, store, provider="local", spec=SPEC)
    adopt(store, submission, hash_of(codec.encode(submission)))
    store.put(keys.journal(JOB, 1), codec.encode(records.finished()))
    for _ in range(2):
        (done,) = Reconciler(store, open_own).run_pass()
        assert done.error is None
        assert done.tick.is_settled
        store.put(keys.live(JOB, submission.writer), b"")
    store.delete(keys.journal(JOB, 1))
    (done,) = Reconciler(store, open_own).run_pass()
    assert isinstance(done.error, NotAdopted)
