"""What somebody who can write to a bucket makes a driver of its jobs do; docs/security.md tells of it."""

from datetime import datetime, timezone
from pathlib import Path

import msgspec
from made_records import Records
from memorystore import InMemoryStore

from cloudspot.controller.launchrequest import render_launch
from cloudspot.controller.reconcile import Reconciler
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.jobstore.records import StagedAgent, Submission
from cloudspot.local.options import LocalOptions
from cloudspot.local.provider import LocalProvider
from cloudspot.model import BootProfile, InstanceGroup, Resources
from cloudspot.registry import open_provider

JOB = "digits-1"
FORGED = StagedAgent(sha256="f" * 64, digest="of-a-stranger", requirements=("cloudspot",))


def submitted(records: Records, store: InMemoryStore, **changes: object) -> Submission:
    """Put a job into the store as whoever may write there can."""
    submission = records.change(records.history().submission, job_id=JOB, **changes)
    store.put(keys.index(JOB), b"")
    store.put(keys.live(JOB, submission.writer), b"")
    store.put(keys.spec(JOB), codec.encode(submission))
    return submission


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
    offer = provider.provisioner().offers(Resources())[0]
    request = render_launch(
        spec, provider, read, store.url, launch=2, offer=offer, label="", decided_at=read.at
    )
    assert f"agent_key=agents/{FORGED.sha256}\nagent_sha256={FORGED.sha256}\n" in request.body["user_data"]


def test_a_job_that_somebody_put_under_the_local_provider_runs_as_whoever_drives_the_store(
    records, tmp_path: Path, local_home: Path, wait_until
):
    store, mark = InMemoryStore(), tmp_path / "mark"
    submission = submitted(records, store, provider="local")
    provisioner = LocalProvider().provisioner()
    offer = provisioner.offers(Resources())[0]
    group = InstanceGroup(
        job_id=JOB,
        launch=1,
        num_nodes=1,
        min_nodes=1,
        offer=offer,
        resources=spec_from_json(submission.spec).resources.to_model(),
        user_data=f"id -u > {mark}.tmp && mv {mark}.tmp {mark}; sleep 1000",
        max_seconds=600.0,
    )
    intent = msgspec.structs.replace(
        records.intent(offer=offer), request=provisioner.render(group), at=datetime.now(timezone.utc)
    )
    store.put(keys.journal(JOB, 1), codec.encode(intent))
    (done,) = Reconciler(store, open_provider).run_pass()
    assert done.error is None
    wait_until(mark.exists)
    assert int(mark.read_text()) == mark.stat().st_uid
