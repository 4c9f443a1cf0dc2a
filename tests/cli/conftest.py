"""A store with a small job in it, written by the functions that write real ones."""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from click.testing import CliRunner
from support.records import sessions
from support.records.jobclock import at
from support.records.made_journal import append
from support.records.record_kinds import HEALTHY, ODD
from support.records.uploads import upload_files

from cloudspot.cli.following.interrupts import Detached
from cloudspot.cli.main import program
from cloudspot.controller.ownership import adopt
from cloudspot.errors import CapacityError
from cloudspot.jobfile.spec import load_job
from cloudspot.jobstore.checkpoints.manifests import write_manifest
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.submission import _Secrets, hash_of, request_stop, submit
from cloudspot.jobstore.jobs.suspicions import write_suspicions
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    Certificate,
    CheckpointId,
    Commit,
    Ending,
    Exit,
    File,
    Final,
    Finished,
    Generation,
    Heartbeat,
    Intent,
    Kept,
    KnownEnding,
    Member,
    Notice,
    ObservedDuration,
    Phase,
    SaveId,
    Seat,
    Suspect,
    Suspicions,
    new_nonce,
)
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.nodes.launches import claim_slot
from cloudspot.local.filestore import FileStore
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.model import EndReason, LaunchRequest, LogRecord, Market, NodeIdentity, Offer
from cloudspot.story.report import summarise

OFFER = Offer(
    instance_type="local",
    zone="local-a",
    market=Market.SPOT,
    price_per_hour=0.3,
    on_demand_price_per_hour=1.0,
)
JOB_FILE = """
name = "digits"
[run]
entrypoint = "train.py"
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A job file with its script."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print('hello')\n")
    path = directory / "job.toml"
    path.write_text(JOB_FILE)
    return path


class Jobs:
    """Writes jobs into a store, and runs commands on it."""

    def __init__(self, store: FileStore, job_file: Path, scratch: Path) -> None:
        self.store = store
        self.job_file = job_file
        self.scratch = scratch

    def run(self, *arguments: str, status: int = 0, typed: str | None = None):
        """Run a command on the store, with what someone types, and check its exit status."""
        environ = {"CLOUDSPOT_STORE": self.store.url}
        result = CliRunner().invoke(program, [*arguments], env=environ, input=typed)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    def run_json(self, *arguments: str, status: int = 0):
        """Run a command with ``--json`` and return what it prints."""
        return json.loads(self.run(*arguments, "--json", status=status).stdout)

    def submit(self, job_id: str, *, minutes: float | None = None) -> None:
        """Submit a job, now or at a minute of its life; nothing of it runs."""
        submission = submit(
            self.store,
            spec=load_job(self.job_file),
            provider="local",
            workdir=self.job_file.parent,
            environ={"TOKEN": "old", "WORD": "old"},
            job_id=job_id,
        )
        if minutes is not None:
            submission = msgspec.structs.replace(submission, at=at(minutes))
            self.put(keys.spec(job_id), submission)
        adopt(self.store, submission, hash_of(codec.encode(submission)))

    def put(self, key: str, record) -> None:
        """Put a record of a node."""
        self.store.put(key, codec.encode(record))

    def add_intent(self, job_id: str, launch: int, *, minutes: float, num_nodes: int = 1) -> None:
        """Begin a launch."""
        intent = Intent(
            launch=launch,
            offer=OFFER,
            token=f"token-{launch}",
            request=LaunchRequest(provider="local", body={}),
            num_nodes=num_nodes,
            why="first" if launch == 1 else "reclaimed",
            at=at(minutes),
            writer=new_nonce(),
        )
        append(self.store, job_id, intent)

    def add_certificate(
        self, job_id: str, launch: int, *, started: float, ended: float, end_reason=EndReason.SELF
    ) -> None:
        """Prove that the launch's machine has ended."""
        certificate = Certificate(
            launch=launch,
            rank=0,
            instance_id=f"m-{launch}",
            started_at=at(started),
            ended_at=at(ended),
            end_reason=end_reason,
            at=at(ended),
            writer=new_nonce(),
        )
        self.put(keys.certificate(job_id, launch, f"m-{launch}"), certificate)

    def add_finished(self, job_id: str, outcome: str, *, minutes: float, detail: str = "") -> None:
        """End the job."""
        finished = Finished(
            outcome=outcome,
            detail=detail,
            exit_code=0 if outcome == "succeeded" else 3,
            at=at(minutes),
            writer=new_nonce(),
        )
        append(self.store, job_id, finished)

    def delete_end(self, job_id: str) -> None:
        """Delete the job's last record: no driver has written down how it ended."""
        journal = Journal(self.store, job_id).read()
        assert isinstance(journal[-1], Finished)
        self.store.delete(keys.journal(job_id, len(journal)))

    def claim(self, job_id: str, launch: int, *, minutes: float) -> None:
        """Let the launch's machine come up."""
        identity = NodeIdentity(instance_id=f"m-{launch}", rank=0, address="127.0.0.1")
        slot = claim_slot(self.store, job_id, launch, 0, identity)
        assert slot.instance_id == f"m-{launch}"
        self.put(keys.slot(job_id, launch, 0), msgspec.structs.replace(slot, at=at(minutes)))

    def add_generation(
        self, job_id: str, number: int, *, minutes: float, restore_from=None, **fields
    ) -> None:
        """Start the training on the launch of the same number."""
        generation = Generation(
            number=number,
            members=(Member(launch=number, rank=0, instance_id=f"m-{number}", address="127.0.0.1"),),
            endpoint="127.0.0.1:2000",
            restore_from=restore_from,
            why="first" if number == 1 else "relaunched",
            at=at(minutes),
            writer=new_nonce(),
            **fields,
        )
        append(self.store, job_id, generation)

    def add_heartbeat(
        self, job_id: str, launch: int, *, step: int, minutes: float, rank: int = 0, **fields
    ) -> None:
        """Let the launch's node speak."""
        values = {
            "counter": 1,
            "instance_id": f"m-{launch}",
            "address": "127.0.0.1",
            "port": 2001,
            "state": "running",
            "generation": launch,
            "restored_step": 0,
            "step": step,
            "steps_total": 100,
            "metrics": {"loss": 0.5},
            "committed": None,
            "stall_seconds": None,
            "upload_seconds": None,
            "at": at(minutes),
        }
        self.put(keys.heartbeat(job_id, launch, rank), Heartbeat(**{**values, **fields}))

    @staticmethod
    def phases(generation: int, **minutes: float) -> tuple[Phase, ...]:
        """What a node did: restoring, running, training, uploading, and from which minute on."""
        return tuple(
            Phase(state=state, generation=0 if state == "restoring" else generation, at=at(minute))
            for state, minute in minutes.items()
        )

    def add_exit(
        self, job_id: str, launch: int, outcome: str, *, step: int, minutes: float, rank: int = 0, **fields
    ) -> None:
        """Let the launch's node say its last word."""
        values = {
            "launch": launch,
            "rank": rank,
            "instance_id": f"m-{launch}",
            "outcome": outcome,
            "detail": "",
            "exit_code": 0,
            "generation": launch,
            "restored_step": 0,
            "step": step,
            "reached_step": step,
            "committed": None,
            "at": at(minutes),
            "writer": new_nonce(),
        }
        self.put(keys.exit_record(job_id, launch, rank), Exit(**{**values, **fields}))

    def add_checkpoint(
        self, job_id: str, generation: int, step: int, *, sealed: float = 0.0, committed: float | None = None
    ) -> CheckpointId:
        """Upload and commit a checkpoint of a script's own directory; now, or at a minute of the job's life."""
        directory = self.scratch / f"{job_id}-checkpoint-{step}"
        directory.mkdir()
        (directory / "weights").write_bytes(bytes([step % 256]) * 1000)
        save = SaveId(generation, step, 0)
        files = [File(path="weights", size=1000, mode=0o644)]
        upload_files(self.store, job_id, save, directory, files, f"output/checkpoint-{step}", sealed_at=at(0))
        manifest = write_manifest(self.store, job_id, save)
        assert manifest is not None
        record = Commit(
            generation=generation,
            step=step,
            kind=manifest.kind,
            size=manifest.size,
            sealed_at=at(sealed),
            at=datetime.now(timezone.utc) if committed is None else at(committed),
            writer=new_nonce(),
        )
        append(self.store, job_id, record)
        return save.checkpoint

    def delete_checkpoint(self, job_id: str, checkpoint: CheckpointId) -> None:
        """Delete it as a job does that has newer ones: the manifest first."""
        self.store.delete(keys.manifest(job_id, checkpoint.generation, checkpoint.step))
        prefix = keys.save_prefix(job_id, SaveId(checkpoint.generation, checkpoint.step, 0))
        for meta in list(self.store.list_objects(prefix)):
            self.store.delete(meta.key)

    def add_log(self, job_id: str, stream: str, lines, *, minutes: float, source: str = "train") -> None:
        """Write log lines, a second apart."""
        sink = ObjectStoreLogSink(self.store, job_id)
        sink.write(
            [
                LogRecord(
                    stream=stream,
                    seq=seq,
                    time=at(minutes) + timedelta(seconds=seq),
                    text=text,
                    source=source,
                )
                for seq, text in enumerate(lines)
            ]
        )

    def reclaimed_and_finished(self, job_id: str = "digits-7k3f") -> str:
        """Write a whole life: reclaimed at step 40 with a notice, resumed, succeeded at step 100."""
        self.submit(job_id, minutes=0)
        self.add_intent(job_id, 1, minutes=0)
        self.claim(job_id, 1, minutes=0.5)
        self.add_generation(job_id, 1, minutes=1)
        phases = self.phases(1, restoring=0.8, running=1.0, training=1.2, uploading=5.15)
        self.add_heartbeat(job_id, 1, step=40, minutes=5, state="ending", phases=phases)
        notice = Notice(
            launch=1,
            rank=0,
            deadline=at(5.5),
            action="terminate",
            source="metadata",
            step=39,
            at=at(5),
            writer=new_nonce(),
        )
        self.put(keys.notice(job_id, 1, 0), notice)
        checkpoint = self.add_checkpoint(job_id, 1, 40, sealed=5.1, committed=5.15)
        self.add_log(job_id, "1-0", ["step 1", "step 40"], minutes=2)
        self.add_exit(job_id, 1, "drained", step=40, minutes=5.2, committed=checkpoint)
        self.add_certificate(job_id, 1, started=0, ended=6, end_reason=EndReason.RECLAIMED)
        self.add_intent(job_id, 2, minutes=6)
        self.claim(job_id, 2, minutes=6.5)
        self.add_generation(job_id, 2, minutes=7, restore_from=checkpoint)
        phases = self.phases(2, restoring=6.7, running=7.0, training=7.2, uploading=11.5)
        self.add_heartbeat(job_id, 2, step=100, minutes=11.5, state="ending", phases=phases)
        self.add_checkpoint(job_id, 2, 100, sealed=11.5, committed=11.6)
        self.add_log(job_id, "2-0", ["step 41", "step 100"], minutes=8)
        final = Final(step=100, weights_sha256="ab" * 32, metrics={"accuracy": 0.975})
        self.add_exit(job_id, 2, "succeeded", step=100, minutes=12, restored_step=40, final=final)
        self.add_certificate(job_id, 2, started=6, ended=12)
        self.add_finished(job_id, "succeeded", minutes=12.5)
        return job_id

    def failed(self, job_id: str = "broken-abcd") -> str:
        """Write a job whose script fails at once."""
        self.submit(job_id, minutes=20)
        self.add_intent(job_id, 1, minutes=20)
        self.claim(job_id, 1, minutes=20.5)
        self.add_generation(job_id, 1, minutes=21)
        self.add_exit(
            job_id,
            1,
            "failed",
            step=0,
            minutes=22,
            detail="train.py ended with 3",
            exit_code=3,
            permanent=True,
            log_tail=("Traceback (most recent call last):", "ValueError: no data"),
        )
        self.add_certificate(job_id, 1, started=20, ended=22)
        self.add_finished(job_id, "failed", minutes=22, detail="train.py ended with 3")
        return job_id

    def kept(self, job_id: str = "broken-abcd") -> str:
        """Write a job that has just failed, and whose machine is kept for half an hour from now."""
        self.submit(job_id, minutes=20)
        self.add_intent(job_id, 1, minutes=20)
        self.claim(job_id, 1, minutes=20.5)
        self.add_generation(job_id, 1, minutes=21)
        now = datetime.now(timezone.utc)
        kept = Kept(
            launch=1, rank=0, instance_id="m-1", until=now + timedelta(minutes=30), detail="it ended with 3",
            exit_code=3, at=now, writer=new_nonce(),
        )  # fmt: skip
        append(self.store, job_id, kept)
        self.add_heartbeat(job_id, 1, step=0, minutes=22, state="kept", agent="5" * 16)
        self.add_exit(
            job_id, 1, "failed", step=0, minutes=22, exit_code=3, permanent=True, detail="it ended with 3"
        )
        self.add_finished(job_id, "failed", minutes=22, detail="it ended with 3")
        return job_id

    def stopped(self, job_id: str = "digits-1") -> str:
        """Write a job that was stopped after an hour, with a checkpoint at step 40."""
        self.submit(job_id, minutes=0)
        self.add_intent(job_id, 1, minutes=0)
        self.claim(job_id, 1, minutes=1)
        self.add_generation(job_id, 1, minutes=1)
        self.add_checkpoint(job_id, 1, 40)
        self.add_exit(job_id, 1, "stopped", step=40, minutes=60)
        self.add_certificate(job_id, 1, started=0, ended=60)
        self.add_finished(job_id, "stopped", minutes=60)
        return job_id

    def running(self, job_id: str = "going-abcd") -> str:
        """Write a job in the middle of its first generation."""
        self.submit(job_id, minutes=100)
        self.add_intent(job_id, 1, minutes=100)
        self.claim(job_id, 1, minutes=100.5)
        self.add_generation(job_id, 1, minutes=101)
        self.add_heartbeat(job_id, 1, step=17, minutes=102)
        return job_id


@pytest.fixture
def jobs(tmp_path: Path, job_file: Path, local_home: Path) -> Jobs:
    """A store of its own, and a local provider without machines."""
    store = FileStore(f"file://{tmp_path}/bucket")
    store.establish()
    return Jobs(store, job_file, tmp_path)


@pytest.fixture
def four_jobs(jobs, tmp_path, monkeypatch):
    """A store with two ended jobs and two live ones; nothing is ever launched."""

    def refuse(*_args, **_options):
        raise CapacityError("no capacity today")

    def detach(_seconds):
        raise Detached

    monkeypatch.setattr(os, "fsync", lambda _file: None)
    monkeypatch.setattr(LocalProvisioner, "create", refuse)
    monkeypatch.setattr(
        "cloudspot.cli.following.follow.time", SimpleNamespace(sleep=detach, monotonic=time.monotonic)
    )
    for job_id in (ODD[0], HEALTHY[0]):
        jobs.reclaimed_and_finished(job_id)
        jobs.put(keys.summary(job_id), summarise(HistoryReader(jobs.store, job_id).read(), at(13)))
    for job_id in (ODD[1], HEALTHY[1]):
        jobs.running(job_id)
        jobs.add_log(job_id, "1-0", ["step 1", "step 17"], minutes=101)
        jobs.add_checkpoint(job_id, 1, 10)
    for job_id in (*ODD, *HEALTHY):
        journal = Journal(jobs.store, job_id)
        journal.read()
        journal.copy()
    request_stop(jobs.store, ODD[1], "user", resumption=0)
    jobs.put(keys.secrets(ODD[1], 0), _Secrets(values={"TOKEN": "secret"}))
    absent = Suspect(
        seat=Seat(1, 0),
        instance_id="m-1",
        counter=1,
        silent=None,
        absent=ObservedDuration(seconds=5.0, until=at(102)),
    )
    ending = KnownEnding(ending=Ending("stop"), known=ObservedDuration(seconds=5.0, until=None))
    left = Suspicions(suspects=(absent,), endings=(ending,), at=at(103), writer="w")
    write_suspicions(jobs.store, ODD[1], left)
    return jobs.store


@pytest.fixture
def before_reading(monkeypatch):
    """``before_reading(keys, act)``: ``act`` once, before the first such object is read."""

    def arrange(pattern, act):
        pending = [act]

        def acting(method):
            def call(self, key, *arguments):
                if pending and fnmatch.fnmatchcase(key, pattern):
                    pending.pop()()
                return method(self, key, *arguments)

            return call

        for name in ("get", "get_range", "get_range_into"):
            monkeypatch.setattr(FileStore, name, acting(getattr(FileStore, name)))

    return arrange


@pytest.fixture
def put_session_checkpoint(tmp_path):
    """``put_session_checkpoint(store, job_id, checkpoint, objects)``, as in a job."""
    return functools.partial(sessions.put_session_checkpoint, scratch=tmp_path / "ranks")
