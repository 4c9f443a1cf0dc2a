"""A store whose records never change, for the screens: a job on its second machine, and some that ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.spec import spec_from_json, spec_to_json
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    Certificate,
    CheckpointId,
    Chunk,
    Commit,
    Exit,
    File,
    Generation,
    Heartbeat,
    Intent,
    Manifest,
    Member,
    Notice,
    Part,
    Phase,
    Slot,
    Submission,
    Summary,
    Transfer,
)
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import EndReason, LaunchRequest, LogRecord, Market, Offer

JOB = "digits-7k3f"
START = datetime(2026, 11, 20, 9, 0, tzinfo=timezone.utc)
NOW = START + timedelta(minutes=31, seconds=20)
"""When the screens are looked at."""
CODE = "5f3a9c1e" * 8
MACHINES = {1: "m-5c1d0e-0", 2: "m-e88a21-0"}
"""By launch."""
ADDRESSES = {1: "10.0.0.4", 2: "10.0.0.7"}
SIZE = 960 << 20
"""Of a checkpoint."""
OFFER = Offer(
    instance_type="local",
    zone="local-a",
    market=Market.SPOT,
    price_per_hour=0.3,
    on_demand_price_per_hour=1.0,
)


def at(minutes: float) -> datetime:
    """Return a moment of the job's life."""
    return START + timedelta(minutes=minutes)


def write_jobs(store: ObjectStore) -> None:
    """Put all records into an empty store."""
    for key, record in _records().items():
        store.put(key, record if isinstance(record, bytes) else codec.encode(record))
    sink = ObjectStoreLogSink(store, JOB)
    for stream, first, last, minutes in (("1-0", 0, 1800, 2.0), ("2-0", 1820, 3600, 19.5)):
        sink.write(_log(stream, first, last, at(minutes)))


def loss(step: int) -> float:
    """Return the loss of a step: a curve as trainings have it."""
    return 2.3 * math.exp(-step / 900) + 0.12 + 0.05 * math.sin(step / 37) * math.exp(-step / 2500)


def _log(stream: str, first: int, last: int, start: datetime) -> list[LogRecord]:
    records = []
    for step in range(first, last, 20):
        time = start + timedelta(seconds=0.4 * (step - first))
        values = {"loss": loss(step), "accuracy": 1 - loss(step) / 4}
        line = {"step": step, "time": time.timestamp(), "values": values}
        for text, source in (
            (f"step {step}  loss {values['loss']:.4f}", "train"),
            (json.dumps(line), "metrics"),
        ):
            record = LogRecord(stream=stream, seq=len(records), time=time, text=text, source=source)
            records.append(record)
    return records


def _records() -> Mapping[str, object]:
    drained, newest = CheckpointId(1, 1801), CheckpointId(2, 3580)
    return {
        keys.index(JOB): b"w",
        keys.live(JOB, "w"): b"",
        keys.spec(JOB): _submission(),
        keys.journal(JOB, 1): _intent(1, "first", 0.1),
        keys.journal(JOB, 2): _generation(1, None, 1.4),
        keys.journal(JOB, 3): _commit(drained, 14.0),
        keys.journal(JOB, 4): _intent(2, "reclaimed", 14.5),
        keys.journal(JOB, 5): _generation(2, drained, 15.4),
        keys.journal(JOB, 6): _commit(newest, 31.1),
        keys.certificate(JOB, 1, MACHINES[1]): Certificate(
            launch=1,
            rank=0,
            instance_id=MACHINES[1],
            started_at=at(0.2),
            ended_at=at(14.4),
            end_reason=EndReason.RECLAIMED,
            at=at(14.5),
            writer="w",
        ),
        keys.slot(JOB, 1, 0): _slot(1, 0.9),
        keys.slot(JOB, 2, 0): _slot(2, 15.0),
        keys.notice(JOB, 1, 0): Notice(
            launch=1,
            rank=0,
            deadline=at(14.4),
            action="terminate",
            source="metadata",
            step=1801,
            at=at(13.9),
            writer="w",
        ),
        keys.heartbeat(JOB, 1, 0): _heartbeat(1, 1801, "ending", 14.1),
        keys.exit_record(JOB, 1, 0): Exit(
            launch=1,
            rank=0,
            instance_id=MACHINES[1],
            outcome="drained",
            detail="",
            exit_code=0,
            generation=1,
            restored_step=0,
            step=1801,
            reached_step=1801,
            committed=drained,
            at=at(14.2),
            writer="w",
        ),
        keys.heartbeat(JOB, 2, 0): _heartbeat(
            2,
            3601,
            "running",
            31.25,
            transfer=Transfer(what="uploading", done=300 << 20, total=960 << 20),
            upload_seconds=84.0,
            notice_seconds=120.0,
            warnings=("an upload takes 84 s of the 120 s that a notice leaves",),
        ),
        keys.manifest(JOB, 1, 1801): _manifest(drained, 14.0),
        keys.manifest(JOB, 2, 3580): _manifest(newest, 31.1),
        **_ended("tinygpt-a9xw", "succeeded", 4000, 4000, 3.2, {"loss": 1.734}, 26.0, 190.0),
        **_ended("digits-m2qt", "failed", 120, 600, 0.021, {}, 5.0, 4.2, "train.py ended with 1"),
        **_ended(
            "digits-8hde",
            "stopped",
            410,
            600,
            0.043,
            {"loss": 0.31},
            2.5,
            8.7,
            "asked for with cloudspot stop",
        ),
    }


def _submission() -> Submission:
    spec = spec_from_json({"name": "digits", "run": {"entrypoint": "train.py"}})
    return Submission(
        job_id=JOB,
        provider="local",
        spec=spec_to_json(spec),
        code_sha256=CODE,
        code_bytes=14_200,
        secret_names=(),
        version="0.1.0",
        at=at(0),
        writer="w",
    )


def _intent(launch: int, why: str, minutes: float) -> Intent:
    return Intent(
        launch=launch,
        offer=OFFER,
        token=f"token-{launch}",
        request=LaunchRequest(provider="local", body={}),
        num_nodes=1,
        why=why,
        at=at(minutes),
        writer="w",
    )


def _slot(launch: int, minutes: float) -> Slot:
    return Slot(instance_id=MACHINES[launch], address=ADDRESSES[launch], at=at(minutes), writer="w")


def _generation(number: int, restored: CheckpointId | None, minutes: float) -> Generation:
    return Generation(
        number=number,
        members=(Member(launch=number, rank=0, instance_id=MACHINES[number], address=ADDRESSES[number]),),
        endpoint=f"{ADDRESSES[number]}:29500",
        restore_from=restored,
        why="first" if restored is None else "relaunched",
        at=at(minutes),
        writer="w",
    )


def _heartbeat(launch: int, step: int, state: str, minutes: float, **fields: object) -> Heartbeat:
    first = 0.9 if launch == 1 else 15.0
    states = (("setup", 0.0), ("restoring", 0.2), ("running", 0.5), ("training", 1.0))
    values: dict[str, object] = {
        "counter": 1,
        "instance_id": MACHINES[launch],
        "address": ADDRESSES[launch],
        "port": 29500,
        "state": state,
        "generation": launch,
        "restored_step": 0 if launch == 1 else 1801,
        "step": step,
        "steps_total": 6000,
        "metrics": {"loss": loss(step), "accuracy": 1 - loss(step) / 4},
        "committed": None,
        "stall_seconds": 0.21,
        "upload_seconds": None,
        "phases": tuple(Phase(state=name, generation=launch, at=at(first + late)) for name, late in states),
        "at": at(minutes),
    }
    return Heartbeat(**{**values, **fields})  # type: ignore[arg-type]


def _commit(checkpoint: CheckpointId, minutes: float) -> Commit:
    return Commit(
        generation=checkpoint.generation,
        step=checkpoint.step,
        kind="directory",
        size=SIZE,
        sealed_at=at(minutes - 0.05),
        at=at(minutes),
        writer="w",
    )


def _manifest(checkpoint: CheckpointId, minutes: float) -> Manifest:
    chunks = tuple(Chunk(size=64 << 20, xxh3_128="0" * 32) for _ in range(15))
    part = Part(
        generation=checkpoint.generation,
        step=checkpoint.step,
        round=0,
        rank=0,
        num_parts=1,
        kind="directory",
        size=SIZE,
        chunks=chunks,
        files=(File(path="model", size=SIZE, mode=0o644),),
        directory="output",
        sealed_at=at(minutes - 0.05),
        writer="w",
    )
    return Manifest(
        generation=checkpoint.generation,
        step=checkpoint.step,
        round=0,
        kind="directory",
        size=SIZE,
        parts=(part,),
        at=at(minutes),
        writer="w",
    )


def _ended(
    job_id: str,
    state: str,
    step: int,
    steps_total: int,
    spent: float,
    metrics: dict[str, float],
    hours_ago: float,
    minutes: float,
    detail: str = "",
) -> dict[str, object]:
    """Return the records of a job that has ended: its summary is all that is read of it."""
    submitted = START - timedelta(hours=hours_ago)
    summary = Summary(
        job_id=job_id,
        provider="local",
        state=state,
        step=step,
        steps_total=steps_total,
        starts=2 if state == "succeeded" else 1,
        num_nodes=1,
        max_nodes=1,
        spent=spent,
        currency="USD",
        submitted_at=submitted,
        metrics=metrics,
        detail=detail,
        at=submitted + timedelta(minutes=minutes),
        name=job_id.rpartition("-")[0],
        code_sha256=CODE,
        started_at=submitted + timedelta(seconds=10),
        finished_at=submitted + timedelta(minutes=minutes),
    )
    recent = keys.recent(int(submitted.timestamp() * 1000), job_id)
    return {keys.index(job_id): b"w", recent: b"", keys.summary(job_id): summary}
