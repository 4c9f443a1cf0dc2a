"""Print the summary of a job: the end of the output of ``run``, and the beginning of that of ``show``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from cloudspot.calls.retrying import retry
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.hookspecs import SANDBOX_VARIABLE
from cloudspot.host.size_text import size_text
from cloudspot.jobfile.amounts import cost_text
from cloudspot.jobstore.checkpoints.fetching import verify
from cloudspot.jobstore.checkpoints.manifests import read_manifest, while_it_exists
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.journal.lineage import head
from cloudspot.jobstore.layout.records import CheckpointId
from cloudspot.jobstore.logs.stored_artifacts import list_artifacts
from cloudspot.story.report import show_json
from cloudspot.story.states import TERMINAL_STATES

_MISSING = re.compile(r"\bModuleNotFoundError: No module named '([\w-]+)")
MAX_STAGED = 3
"""The maximum number of nodes whose inputs are shown."""
MAX_ARTIFACTS = 10
"""The maximum number of artifacts that are named."""
MAX_TAILS = 4
"""The maximum number of failed nodes whose last lines are shown. If one node fails, all nodes usually do."""


def job_json(job: Job, history: History, *, verify_chunks: bool = False) -> dict[str, Any]:
    """Return the report that ``show --json`` prints.

    If ``verify_chunks``, the whole newest checkpoint is read and verified. Otherwise ``verified`` is null.
    """
    verified = None if history.head is None else _is_whole(job, history.head, verify_chunks=verify_chunks)
    return show_json(history, datetime.now(timezone.utc), verified=verified)


def _is_whole(job: Job, checkpoint: CheckpointId, *, verify_chunks: bool) -> bool | None:
    """Return whether the checkpoint is complete, or None if it was not checked or has since been deleted."""
    try:
        with while_it_exists(job.store, job.id, checkpoint):
            manifest = read_manifest(job.store, job.id, checkpoint)
            if not verify_chunks:
                return None
            with transfer("verifying", manifest.size) as advance:
                verify(job.store, job.id, manifest, progress=advance)
    except ObjectMissing:
        # A newer checkpoint may have replaced it in the meantime. The newest checkpoint is never deleted.
        return None if head(job.reader.journal.read()) != checkpoint else False
    except CorruptData:
        return False
    return True


def echo_summary(job: Job, history: History) -> None:
    """Print the summary of a job that was followed, unless its report cannot be read.

    Raises:
        TransientError: the store does not answer, even after retries.
    """
    report = retry(lambda: job_json(job, history), sleep=time.sleep)
    fields = retry(lambda: summary_fields(job, report), sleep=time.sleep)
    output.echo()
    echo_title(report)
    output.echo_fields([*headline_fields(job, report), *fields])
    echo_last_lines(job, report)
    if sandbox := os.environ.get(SANDBOX_VARIABLE):
        output.echo()
        output.echo(f"the store is in sandbox {sandbox}: these commands find the job until the sandbox ends")


def echo_title(value: Mapping[str, Any]) -> None:
    """Print the job's id and state, with the reason."""
    state = output.Styled(value["state"], output.STATE_STYLES.get(value["state"]))
    detail = f": {value['detail']}" if value["detail"] else ""
    output.echo("job ", output.Styled(value["id"], "bold"), " ", state, detail)


def steps_lost_text(value: Mapping[str, Any]) -> str:
    """Return the number of repeated steps, as far as it is known."""
    num_steps, is_exact = value["steps_lost"], value["steps_lost_is_exact"]
    if num_steps is None or (num_steps == 0 and not is_exact):
        return "unknown"
    return f"{'' if is_exact else 'at least '}{num_steps}"


def weights_text(final: Mapping[str, Any]) -> str:
    """Return the hash of the last weights, or why there is none."""
    if final["weights_sha256"] is not None:
        return f"sha256 {final['weights_sha256']}"
    return "no hash, because they are sharded over the ranks" if final["are_weights_sharded"] else ""


def headline_fields(job: Job, value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the most important lines; ``value`` is the value that ``show --json`` prints."""
    steps_lost = lost = steps_lost_text(value)
    lost = "lost unknown" if lost == "unknown" else f"{lost} lost"
    steps = ("steps", f"{output.steps_text(value['step'], value['steps_total'])}, {lost}")
    return [
        steps if value["counts_steps"] else ("last save", f"{value['step']}; steps lost: {steps_lost}"),
        ("cost", _cost_text(value["cost"])),
        ("duration", output.duration_text(value["time"]["total"])),
        ("kept", _kept_text(job, value["kept"])),
        ("next", _next_text(job, value)),
    ]


def _kept_text(job: Job, kept: Mapping[str, Any] | None) -> str:
    """Return which machine is kept for inspection, and how to use and end it; empty if no machine is kept."""
    if kept is None or not kept["is_kept"]:
        return ""
    until = output.moment_text(kept["until"])
    return f"node {kept['node']} until {until}: {job.command('shell')}; end it: {job.command('stop')}"


def _next_text(job: Job, value: Mapping[str, Any]) -> str:
    """Return the command that people most often want next."""
    state = value["state"]
    if state == "succeeded":
        target = "weights.safetensors" if job.spec.checkpoint.directory is None else "weights/"
        export = f"get its weights: {job.command('checkpoints export')} --to {target}"
        return export if value["last_commit"] is not None else f"see its log: {job.command('logs')}"
    if state == "failed":
        new = f"{job.command('fork')} --code ." if value["last_commit"] is not None else "cloudspot run"
        again = job.command("resume")
        return f"see why: {job.command('logs')}; continue with changed code: {new}; or unchanged: {again}"
    if state in {"stopped", "suspended"}:
        return f"continue it: {job.command('resume')}"
    return f"follow and drive it: {job.command('attach')}"


def summary_fields(
    job: Job, value: Mapping[str, Any], *, max_artifacts: int = MAX_ARTIFACTS
) -> list[tuple[str, str]]:
    """Return the other lines about the whole job, with the names of up to ``max_artifacts`` artifacts."""
    final, commit = value["final"], value["last_commit"]
    weights = "" if final is None else weights_text(final)
    return [
        ("starts", _starts_text(value["generations"])),
        ("nodes", _nodes_text(value)),
        ("data", "\n".join(_inputs_texts(value["nodes"]))),
        ("notices", str(len(value["notices"]))),
        ("last commit", _commit_text(commit, "step" if value["counts_steps"] else "save")),
        ("saves", "" if value["saves"] is None else value["saves"]["text"]),
        ("goodput", _goodput_text(value)),
        ("limited by", "" if value["limited_by"] is None else value["limited_by"]["text"]),
        ("weights", weights),
        ("metrics", output.metrics_text(value["metrics"])),
        ("logs", job.command("logs")),
        ("artifacts", _artifacts_text(job, max_artifacts)),
    ]


def _artifacts_text(job: Job, most: int) -> str:
    """Return the names and sizes of the largest artifacts, and the command that downloads all."""
    artifacts = sorted(list_artifacts(job.store, job.id), key=lambda one: (-one.size, one.name))
    if not artifacts:
        return ""
    total = size_text(sum(one.size for one in artifacts))
    if len(artifacts) == most + 1:  # the line that counts the rest would take its place
        most += 1
    lines = [f"{one.name}, {size_text(one.size)}" for one in artifacts[:most]]
    if len(artifacts) > most:
        lines.append(f"and {len(artifacts) - most} more; {total} in all")
    return "\n".join([*lines, f"get them: {job.command('artifacts download')}"])


def _starts_text(generations: Sequence[Mapping[str, Any]]) -> str:
    held = sum(one["is_holding"] for one in generations)
    return f"{len(generations)}" + (f", of which {held} only waited for nodes" if held else "")


def _nodes_text(value: Mapping[str, Any]) -> str:
    """Return how many nodes the job has, may have and has had, or "" if it never had more than one."""
    total, generations = len(value["nodes"]), value["generations"]
    if max(total, value["nodes_max"]) < 2 or not total:
        return ""
    live = {node["name"] for node in value["nodes"] if node["ended"] is None}
    if not live or value["state"] in TERMINAL_STATES:  # the end of a machine may not be proven yet
        return f"{total} in all"
    members = live.intersection(generations[-1]["nodes"] if generations else ())
    ever = {name for one in generations for name in one["nodes"]}
    coming = f", {len(live - ever)} on the way" if live - ever else ""
    return f"{len(members)} of {value['nodes_max']}{coming}, {total} so far"


def _inputs_texts(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each input that the newest nodes have staged."""
    with_inputs = [node for node in nodes if node["data"]]
    for node in with_inputs[-MAX_STAGED:]:
        for staged in node["data"]:
            size = size_text(staged["bytes"])
            if staged["name"] is None:
                yield f"node {node['name']} stages: {size_text(staged['here_bytes'])} of {size} here"
                continue
            fetched = size_text(staged["fetched_bytes"]) if staged["fetched_bytes"] else "nothing"
            took = output.duration_text(staged["seconds"])
            files = f"{staged['files']} file" + ("" if staged["files"] == 1 else "s")
            yield f"node {node['name']}: {staged['name']}, {files}, {size}; fetched {fetched} in {took}"
    if len(with_inputs) > MAX_STAGED:
        yield f"and {len(with_inputs) - MAX_STAGED} more nodes; --json has them all"


def _commit_text(commit: Mapping[str, Any] | None, label: str) -> str:
    if commit is None:
        return "none"
    size = output.shared_size_text(commit["bytes"], commit["shared_bytes"])
    verified = {None: "", True: ", verified", False: ", CORRUPT"}[commit["verified"]]
    evidence = f", {commit['evidence']}" if commit["evidence"] else ""
    return f"{label} {commit['step']}, {size}{verified}{evidence}{_inexact(commit['rescue'])}"


def _inexact(rescue: Mapping[str, Any] | None) -> str:
    if rescue is None or rescue["is_exact"]:
        return ""
    lost = ", ".join(str(rank) for rank in rescue["lost"] if rank not in rescue["kept"])
    return f", without the state that only rank {lost} had, such as its random generators"


def _cost_text(cost: Mapping[str, Any]) -> str:
    return cost_text(cost["spent"], cost["on_demand_equivalent"], cost["currency"], cost["others"])


def _goodput_text(value: Mapping[str, Any]) -> str:
    goodput, time = value["goodput"], value["time"]
    if goodput is None or (time["training"] == 0 and time["unknown"] == 0 and value["finished"] is None):
        return ""  # nothing has been trained yet
    if time["unknown"] and not time["training"]:
        return "unknown"
    least = "at least " if time["unknown"] else ""
    return f"{output.bar(goodput)} {least}{100 * goodput:.0f}%"


def echo_last_lines(job: Job, value: Mapping[str, Any], *, max_lines: int | None = None) -> None:
    """Print the last log lines of the nodes that failed last, or a note that the job has kept none.

    With ``max_lines``, print only that many lines of the first of these nodes.
    """
    if value["state"] == "succeeded" and value["last_commit"] is None:
        if not list_artifacts(job.store, job.id):
            output.echo()
            output.echo(_nothing_kept_text(job.spec.run.outputs), style="bold")
        return
    if value["state"] != "failed":
        return
    failed = list(_failed_nodes(value))
    num_shown = MAX_TAILS if max_lines is None else 1
    for node in failed[:num_shown]:
        output.echo()
        output.echo(f"last lines of node {node['name']} (exit code {node['exit_code']}):", style="bold")
        for line in node["log_tail"][-(max_lines or 0) :]:
            output.echo(f"  {line}")
    if len(failed) > num_shown:
        output.echo()
        command = f"{job.command('logs')} --node NODE"
        output.echo(f"{len(failed) - num_shown} more nodes failed; see their last lines with: {command}")
    missing = [_MISSING.search(line) for node in failed for line in node["log_tail"]]
    if found := next(filter(None, missing), None):
        output.echo()
        output.echo(
            f'the machines lack {found[1]}: install its package in run.setup, such as setup = "pip install '
            f'{found[1]}"; if it is a file of your own, see which files are sent: cloudspot plan'
        )


def _nothing_kept_text(outputs: Sequence[str] | None) -> str:
    if outputs is None:
        why = "the training wrote no file to keep below its working directory"
    elif outputs:
        why = "the training wrote no file that matches run.outputs"
    else:
        why = "run.outputs is empty"
    return f"this job has kept nothing: it has no checkpoint, and {why}"


def _failed_nodes(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    nodes = {node["name"]: node for node in value["nodes"]}
    groups = [one["nodes"] for one in reversed(value["generations"])]
    groups += [
        [name for name, node in nodes.items() if node["launch"] == launch["launch"]]
        for launch in reversed(value["launches"])
    ]
    for names in groups:
        of_group = (nodes[name] for name in names if name in nodes)
        failed = [node for node in of_group if node["outcome"] == "failed" and node["log_tail"]]
        if failed:
            yield from failed
            return
