"""Takes the steps of a run, from the point at which it was interrupted, and then cleans up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from cloudspot.calls import InstancesRequest, TerminateRequest
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.hookspecs import SANDBOX_VARIABLE
from cloudspot.model import InstanceState
from cloudspot.registry import open_store
from cloudspot_prove.bench import END_SECONDS, LOOK_SECONDS, Bench, StepFailed, StepSkipped, is_job_over
from cloudspot_prove.questions import STEPS as TITLES
from cloudspot_prove.questions import questions_of
from cloudspot_prove.recorded import Assignment, begin
from cloudspot_prove.recording import Head, Recorder, read_all, write_whole
from cloudspot_prove.run_record import CleanedUp, Compared, RunRecord, StepBegan, StepEnded
from cloudspot_prove.steps import STEPS

NEEDED: Final = ("check", "price")
"""The steps that must pass before anything is bought."""
WITNESS: Final = "cloudspot-witness "
"""The beginning of the lines that ``training/witness.py`` prints."""


def record_this_process(record: RunRecord) -> Recorder:
    """Record the requests that this process itself makes."""
    began = record.began
    return begin(
        Assignment(
            provider=began.provider,
            directory=str(record.recordings),
            key=began.key,
            step="check",
            began=began.at,
        )
    )


def num_machines_of(step: str) -> int:
    """Return how many machines a step's job has, or 0 if the step buys nothing."""
    return {"check": 0, "price": 0, "two-nodes": 2}.get(step, 1)


def may_buy(record: RunRecord) -> bool:
    """Return whether the steps that must precede any purchase have passed."""
    return all(one in record.ended and record.ended[one].status == "passed" for one in NEEDED)


def work_through(record: RunRecord, recorder: Recorder, steps: Sequence[str]) -> None:
    """Take those of the steps that are not over yet."""
    bench = Bench(record)
    for step in steps:
        if step in record.ended:
            continue
        recorder.step = step
        _take(bench, step)


def clean_up(record: RunRecord, recorder: Recorder) -> None:
    """End all that the run may have left in the account, and delete its part of the store."""
    if record.cleaned is not None:
        return
    recorder.step = "cleanup"
    bench = Bench(record)
    bench.step = "cleanup"
    output.echo("cleaning up")
    if record.has_driver:
        bench.call("driver", "remove", "--provider", record.began.provider, seconds=1200.0)
    left = ["machine" for job in record.jobs() if _settle(bench, job.job_id)]
    left += _sweep(bench)
    store = open_store(record.began.store_url)
    for meta in list(store.list_objects("")):
        store.delete(meta.key)
    record.write(CleanedUp(leftovers=tuple(left)))


def compare(record: RunRecord) -> None:
    """Make the recorded requests again in the emulation, and note how the answers differ."""
    if record.compared is not None:
        return
    provider = record.began.provider
    output.echo("comparing the cloud's answers with the emulation's")
    path = record.directory / "whole.jsonl"
    write_whole(path, Head(provider=provider, versions={}), read_all(record.recordings))
    program = [sys.executable, "-m", "cloudspot"]
    replay = [*program, "replay", str(path), "--json"]
    if os.environ.get(SANDBOX_VARIABLE) != provider:
        replay = [*program, "sandbox", provider, "--reclaim", "none", "--", *replay]
    done = subprocess.run(replay, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["differences"]
    except ValueError:
        for line in done.stderr.splitlines()[-5:]:
            output.echo(f"    {line}")
        why = f"`replay` ended with status {done.returncode}: is cloudspot-{provider}-sandbox installed?"
        record.write(Compared(why_not=why))
        return
    record.write(Compared(differences=tuple(found)))


def _take(bench: Bench, step: str) -> None:
    record = bench.record
    bench.step, bench.facts = step, {}
    output.echo(f"step {step}: {TITLES[step]}", style="bold")
    for question in questions_of(record.began.provider):
        if step in question.steps:
            output.echo(f"  ? {question.id}: {question.text}")
    for job in record.jobs(step):
        # An earlier attempt was interrupted, and its machines must not cost more.
        _settle(bench, job.job_id)
    record.write(StepBegan(step=step, at=time.time()))
    began = time.monotonic()
    status, why = "passed", ""
    needed = NEEDED[: NEEDED.index(step)] if step in NEEDED else NEEDED
    lacking = [one for one in needed if record.ended[one].status != "passed"]
    try:
        if lacking:
            raise StepSkipped(f"the step {lacking[0]} has not passed")
        STEPS[step](bench)
    except StepSkipped as error:
        status, why = "skipped", str(error)
    except StepFailed as error:
        status, why = "failed", str(error)
    except CloudspotError as error:
        output.echo_error(str(error))
        # The message may contain names that belong to the account.
        status, why = "failed", type(error).__name__
    finally:
        for job in record.jobs(step):
            bench.facts.setdefault("jobs", []).append(_summary(bench, job.job_id))
    if status != "passed":
        for job in record.jobs(step):
            _settle(bench, job.job_id)
    seconds = round(time.monotonic() - began, 1)
    record.write(StepEnded(step=step, status=status, why=why, seconds=seconds, facts=bench.facts))
    output.echo(f"  {step}: {status}{f', {why}' if why else ''} ({output.duration_text(seconds)})")


def _settle(bench: Bench, job_id: str) -> bool:
    """End a job and its machines, if it was ever submitted; return whether a machine was still running."""
    history = bench.history(job_id)
    if history is not None and not is_job_over(history):
        bench.call("stop", job_id, "--wait", seconds=END_SECONDS)
    provisioner = bench.provider.provisioner()
    running = []
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        listed = provisioner.instances(InstancesRequest(job_id=job_id)).instances
        now = [one.id for one in listed if one.state is not InstanceState.ENDED]
        if not now:
            break
        running += now
        provisioner.terminate(TerminateRequest(instance_ids=tuple(now)))
        time.sleep(LOOK_SECONDS)
    with suppress(TransientError):  # Resources that are still in use are found at the end.
        provisioner.release(job_id, store_url=bench.began.store_url)
    return bool(running)


def _sweep(bench: Bench) -> list[str]:
    """End the resources of the run's jobs that the account's inventories show; return their kinds."""
    left = []
    ours = {one.job_id for one in bench.record.jobs()}
    for inventory in bench.provider.inventories(all_regions=False):
        try:
            for asset in inventory.assets([bench.began.store_url]):
                if asset.job_id in ours:
                    left.append(asset.kind)
                    inventory.end(asset)
        except CloudspotError as error:  # The other inventories are searched anyway.
            output.echo_error(str(error))
            left.append("perhaps something that could not be listed")
    return left


def _summary(bench: Bench, job_id: str) -> dict[str, Any]:
    """Return a summary of a job's records, without the names that belong to the account."""
    shown = bench.shown(job_id)
    if not shown:
        return {"id": job_id, "state": "never submitted"}
    return {
        "id": job_id,
        "state": shown["state"],
        "launches": [
            {name: one[name] for name in ("why", "instance_type", "zone", "market", "outcome", "spent")}
            for one in shown["launches"]
        ],
        "nodes": [{name: one[name] for name in ("name", "state", "outcome")} for one in shown["nodes"]],
        "generations": [
            {name: one[name] for name in ("nodes", "why", "steps_lost")} for one in shown["generations"]
        ],
        "notices": [
            {
                "source": one["source"],
                "action": one["action"],
                "seconds_ahead": round(_seconds_between(one["at"], one["deadline"]), 1),
                "commit_seconds": one["commit_seconds"],
            }
            for one in shown["notices"]
        ],
        "steps_lost": shown["steps_lost"],
        "phases": shown["time"],
        "cost": {name: shown["cost"][name] for name in ("spent", "currency", "machine_seconds")},
        "witness": _witnessed(bench, job_id),
    }


def _witnessed(bench: Bench, job_id: str) -> list[Mapping[str, Any]]:
    """Return the facts that the job's machines have printed to its log."""
    child = bench.start("logs", job_id, is_quiet=True)
    try:
        printed, _ = child.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        child.kill()
        return []
    found = []
    for line in printed.splitlines():
        _, mark, text = line.partition(WITNESS)
        if mark:
            try:
                found.append(json.loads(text))
            except ValueError:
                continue
    return found


def _seconds_between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()
