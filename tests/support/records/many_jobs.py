"""A store of many jobs, written by the functions that write real ones: thousands that ended, some that live."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
from support.records.made_records import Records
from support.records.uploads import upload_files

from cloudspot.calls import InstancesResult, OffersResult
from cloudspot.controller.reconcile import Reconciled, Reconciler
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.access.stored_records import create_record
from cloudspot.jobstore.checkpoints.manifests import try_commit
from cloudspot.jobstore.jobs.job_lists import list_live
from cloudspot.jobstore.jobs.submission import submit
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import File, SaveId, Submission, new_nonce
from cloudspot.jobstore.nodes.heartbeat_size import fill_up
from cloudspot.jobstore.nodes.launches import claim_slot
from cloudspot.model import Instance, InstanceState, NodeIdentity

SPEC = {"name": "digits", "run": {"entrypoint": "train.py"}, "nodes": 1}
STEPS_A_LAUNCH = 10


class ListedMachines:
    """A provider, and its provisioner, of which all machines are known and none is ever made."""

    name = "sim"
    capabilities = frozenset()
    token_seconds = 600.0
    absence_proves_after_seconds = 60.0

    def __init__(self):
        self.machines: list[Instance] = []

    def provisioner(self):
        return self

    def instances(self, request):
        return InstancesResult(instances=tuple(filter(request.wants, self.machines)))

    def offers(self, _request):
        return OffersResult(offers=())

    def announce(self, instances, facts):
        pass

    def terminate(self, request):
        raise AssertionError(f"{request.instance_ids} have every right to run")

    def release(self, job_id, *, store_url):
        pass


class ManyJobs:
    """Writes jobs into a store; passes over them read and write through another face of it, perhaps."""

    def __init__(self, store: ObjectStore, workdir: Path):
        self.store, self.workdir = store, workdir
        workdir.mkdir(exist_ok=True)
        (workdir / "train.py").write_text("")
        self.records = Records()
        self.provider = ListedMachines()
        self._numbers = itertools.count(1)

    def add_ended(self) -> str:
        """Write a job that was reclaimed once, and succeeded; no driver has seen its end settled."""
        job = _Job(self, self._submit("ended"))
        job.launch("drained", "reclaimed")
        job.launch("succeeded", "self")
        job.append(job.change(self.records.finished()))
        return job.id

    def add_live(self, num_launches=3, *, num_nodes=1) -> str:
        """Write a job that was reclaimed some times, and trains."""
        job = _Job(self, self._submit("live", num_nodes), num_nodes)
        for _ in range(num_launches - 1):
            job.launch("drained", "reclaimed")
        job.launch()
        return job.id

    def add_long(self, num_launches: int, num_commits: int) -> str:
        """Write a job with a long past that trains, all of whose checkpoints are kept."""
        job = _Job(self, self._submit("long"))
        each = num_commits // num_launches
        for _ in range(num_launches - 1):
            job.launch("drained", "reclaimed", num_commits=each)
        job.launch(num_commits=num_commits - each * (num_launches - 1))
        return job.id

    def run_pass(self, store: ObjectStore | None = None) -> list[Reconciled]:
        """Make one pass, by a new process; return what it did for each job."""
        reconciler = Reconciler(store or self.store, lambda _submission, _spec: self.provider)
        return [one for one in reconciler.run_pass() if isinstance(one, Reconciled)]

    def settle(self) -> None:
        """Let passes go over the jobs until only those are marked live that are."""
        while any(job_id.startswith("ended") for job_id in list_live(self.store)):
            for done in self.run_pass():
                if done.error is not None:
                    raise done.error

    def _submit(self, kind: str, num_nodes: int = 1) -> Submission:
        return submit(
            self.store,
            spec=spec_from_json({**SPEC, "nodes": num_nodes}),
            provider="local",
            workdir=self.workdir,
            environ={},
            job_id=f"{kind}-{next(self._numbers):05}",
        )


class _Job:
    """Writes the records of one job, as its nodes and drivers would."""

    def __init__(self, town: ManyJobs, submission: Submission, num_nodes: int = 1):
        self._town, self._store, self.id = town, town.store, submission.job_id
        self._ranks = range(num_nodes)
        self._journal = Journal(self._store, self.id)
        self._launch = self._step = 0

    @staticmethod
    def change(record, **fields):
        return msgspec.structs.replace(record, at=datetime.now(timezone.utc), writer=new_nonce(), **fields)

    def append(self, record) -> None:
        assert self._journal.append(record, len(self._journal.known) + 1)
        self._journal.copy()

    def launch(self, node_outcome: str | None = None, end_reason: str = "", *, num_commits=1) -> None:
        """Write a launch; without an outcome its nodes train, else its machines have provably ended."""
        records, store = self._town.records, self._store
        self._launch += 1
        number = self._launch
        request = msgspec.structs.replace(records.intent().request, body={"user_data": "x" * 8000})
        intent = records.intent(number, num_nodes=len(self._ranks))
        self.append(self.change(intent, token=new_nonce(), request=request))
        machines = [f"i-{self.id}-{number}-{rank}" for rank in self._ranks]
        for rank, machine in enumerate(machines):
            identity = NodeIdentity(instance_id=machine, rank=rank, address="10.0.0.1")
            claim_slot(store, self.id, number, rank, identity)
        restored = (number - 1, self._step) if number > 1 else None
        self.append(
            self.change(records.generation(number, launch=number, ranks=self._ranks, restored=restored))
        )
        for _ in range(num_commits - 1):
            self._step += STEPS_A_LAUNCH
            self.append(self.change(records.commit(number, self._step)))
        self._step += STEPS_A_LAUNCH
        self._add_checkpoint(SaveId(number, self._step, 0))
        for rank, machine in enumerate(machines):
            beat = fill_up(codec.encode(self.change_beat(machine)), num_beats=1, num_changes=1)
            store.put(keys.heartbeat(self.id, number, rank), beat)
            if node_outcome is None:
                self._town.provider.machines.append(
                    Instance(
                        id=machine, rank=rank, job_id=self.id, launch=number, state=InstanceState.RUNNING,
                        zone="a", address="10.0.0.1", instance_type="big",
                        launched_at=datetime.now(timezone.utc),
                    )
                )  # fmt: skip
                continue
            left = records.exit(node_outcome, instance_id=machine, launch=number, rank=rank)
            left = self.change(left, generation=number, step=self._step)
            create_record(store, keys.exit_record(self.id, number, rank), left)
            proof = records.certificate(machine, launch=number, rank=rank, end_reason=end_reason)
            create_record(store, keys.certificate(self.id, number, machine), self.change(proof))

    def _add_checkpoint(self, save: SaveId) -> None:
        files = [File(path="train.py", size=0, mode=0o644)]
        sealed_at = self._town.records.at(0)
        upload_files(self._store, self.id, save, self._town.workdir, files, "output", sealed_at=sealed_at)
        assert try_commit(self._store, self._journal, self.id, save) is not None

    def change_beat(self, machine: str):
        now = datetime.now(timezone.utc) - timedelta(seconds=1)
        beat = self._town.records.heartbeat(instance_id=machine)
        return msgspec.structs.replace(
            beat, generation=self._launch, step=self._step, at=now, metrics={"loss": 0.5}
        )
