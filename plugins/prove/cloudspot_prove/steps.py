"""The steps of a first run. Each returns when it has shown its result."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cloudspot.calls import CreateRequest, InstancesRequest, TerminateRequest
from cloudspot.cli.commands.providers import check_all, echo_results
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError, ObjectExists
from cloudspot.jobfile.spec import load_job
from cloudspot.model import Capability, Instance, InstanceState
from cloudspot.registry import open_store
from cloudspot_prove.bench import (
    BOOT_SECONDS,
    END_SECONDS,
    LOOK_SECONDS,
    Bench,
    StepFailed,
    StepSkipped,
    end,
    final_of,
    is_job_over,
    types_of,
)
from cloudspot_prove.run_record import DriverIntended


def check(bench: Bench) -> None:
    """Try permissions, bucket, image and quotas; this buys nothing."""
    with bench.job_file() as path:
        resources = load_job(path).resources.to_model()
    results = check_all(bench.provider, bench.began.store_url, resources)
    echo_results(results)
    # If two names differ only by the region, the first result stands for both.
    bench.facts["checks"] = {one.name: one.ok for one in results}
    bench.facts["unknown"] = [one.name for one in results if not one.is_known]
    failed = [one.name for one in results if not one.ok]
    if failed:
        raise StepFailed(f"not ready: {', '.join(failed)}")
    bench.facts["creates_once"] = _creates_once(bench)
    if not bench.facts["creates_once"]:
        raise StepFailed("the store created one object twice")


def price(bench: Bench) -> None:
    """Ask which machines are sold, and at what price."""
    with bench.job_file() as path:
        status, plan = bench.ask("plan", str(path), *bench.job_arguments(""), "--anyway", "--json")
    if plan is None:
        raise StepFailed(f"`plan` ended with status {status}")
    offers = plan["launches"]
    spot = [one for one in offers if one["market"] == "spot"] or offers
    first = spot[0]
    on_demand = [one["price_per_hour"] for one in offers if one["market"] == "on-demand"]
    most = max([*(one["price_per_hour"] for one in offers[:4]), *([min(on_demand)] if on_demand else [])])
    bench.facts |= {
        "num_offers": len(offers),
        "markets": sorted({one["market"] for one in offers}),
        "types": sorted({one["instance_type"] for one in offers})[:10],
        "first_per_hour": first["price_per_hour"],
        "most_per_hour": most,
        "currency": first["currency"],
        "price_parts": first["price_parts"] or "",
    }
    if bench.began.currency not in {None, first["currency"]}:
        raise StepFailed(f"--max-cost is in {bench.began.currency}, and prices are in {first['currency']}")


def launch(bench: Bench) -> None:
    """Train once, undisturbed."""
    job_id = bench.new_job()
    _run(bench, job_id)
    _expect_success(bench, job_id)
    _wait_for_end(bench, job_id)


def resume(bench: Bench) -> None:
    """Stop in the middle, and continue on another machine."""
    job_id = bench.new_job()
    child = _begin(bench, job_id)
    bench.wait_for_commit(job_id)
    bench.call("stop", job_id, "--wait", seconds=END_SECONDS)
    child.wait(timeout=60)
    _wait_for_end(bench, job_id)
    status = bench.call("resume", job_id, "--plain", "--anyway", seconds=_most_seconds(bench))
    if status != 0:
        raise StepFailed(f"`resume` ended with status {status}")
    shown = _expect_success(bench, job_id)
    if len(shown["generations"]) < 2 or shown["generations"][-1]["restored"] is None:
        raise StepFailed("the job did not continue from its checkpoint")
    _expect_same_weights(bench, shown)


def notice(bench: Bench) -> None:
    """Let the cloud reclaim the machine, with its own notice."""
    job_id = bench.new_job()
    child = _begin(bench, job_id)
    bench.wait_for_commit(job_id)
    try:
        _take_machine(bench, job_id)
        status = child.wait(timeout=_most_seconds(bench))
    finally:
        if child.poll() is None:
            end(child)
    if status != 0:
        raise StepFailed(f"`run` ended with status {status}")
    shown = _expect_success(bench, job_id)
    if len(shown["nodes"]) < 2:
        raise StepFailed("the job ended before a replacement took over: give a longer --train-seconds")
    bench.facts["steps_lost"] = shown["steps_lost"]
    if not shown["notices"]:
        raise StepFailed("no notice reached the training")
    _expect_same_weights(bench, shown)


def two_nodes(bench: Bench) -> None:
    """Train on two machines at once."""
    job_id = bench.new_job(num_machines=2)
    _run(bench, job_id, "nodes=2")
    shown = _expect_success(bench, job_id)
    bench.facts["generations"] = [one["nodes"] for one in shown["generations"]]
    _wait_for_end(bench, job_id)


def repeat(bench: Bench) -> None:
    """Kill the driver during a launch; let other drivers continue, and repeat the request with its token."""
    job_id = bench.new_job()
    child = _begin(bench, job_id)
    bench.wait(
        job_id, "the launch was intended", lambda history: bool(history.launches), seconds=BOOT_SECONDS
    )
    child.send_signal(signal.SIGKILL)
    child.wait()
    began, asked = time.monotonic(), 0.0
    answers: list[dict[str, Any]] = []
    until = began + _most_seconds(bench)
    while True:
        bench.call("reconcile", "--job", job_id)
        history = bench.history(job_id)
        assert history is not None, "its launch was intended"
        if history.finished is not None:
            break
        if time.monotonic() > until:
            raise StepFailed("the job had not ended under `reconcile`")
        # The request is repeated at the start, and then once a minute, while the machines run.
        if (
            history.head is not None
            and not is_job_over(history)
            and (not answers or time.monotonic() - asked > 60)
        ):
            asked = time.monotonic()
            answers.append(_repeat_launch(bench, job_id, since=began))
        time.sleep(LOOK_SECONDS)
    bench.facts["repeats"] = answers
    shown = _expect_success(bench, job_id)
    bench.facts["launches"] = len(shown["launches"])
    bench.facts["nodes"] = len(shown["nodes"])
    _wait_for_end(bench, job_id)


def alone(bench: Bench) -> None:
    """Let a machine train and end without any driver."""
    job_id = bench.new_job()
    with bench.job_file() as path:
        arguments = bench.job_arguments(job_id)
        if bench.call("run", str(path), *arguments, "--name", job_id, "--detach", "--anyway") != 0:
            raise StepFailed("`run --detach` failed")
    _wait_for_exit(bench, job_id)
    _wait_for_end(bench, job_id)
    bench.call("reconcile", "--job", job_id)
    _expect_success(bench, job_id)


def gpu(bench: Bench) -> None:
    """Train on an accelerator."""
    if bench.began.gpu is None:
        raise StepSkipped("no accelerator was named: give --gpu")
    job_id = bench.new_job()
    _run(bench, job_id, f'resources.accelerator="{bench.began.gpu}"', 'run.env.PROVE_GPU="1"')
    _expect_success(bench, job_id)
    _wait_for_end(bench, job_id)


def driver(bench: Bench) -> None:
    """Let a function drive a job, and buy the replacement of a machine that is reclaimed."""
    if not bench.cloud.has_functions:
        raise StepSkipped("functions do not exist here: run `cloudspot reconcile` as a CronJob")
    job_id = bench.new_job()
    bench.record.write(DriverIntended())
    began = time.monotonic()
    status = bench.call("driver", "deploy", "--provider", bench.began.provider, "--yes", seconds=1800.0)
    bench.facts["deploy_seconds"] = round(time.monotonic() - began, 1)
    if status != 0:
        raise StepFailed(f"`driver deploy` ended with status {status}")
    try:
        with bench.job_file() as path:
            arguments = bench.job_arguments(job_id)
            if bench.call("run", str(path), *arguments, "--name", job_id, "--detach", "--anyway") != 0:
                raise StepFailed("`run --detach` failed")
        bench.wait_for_commit(job_id)
        taken = time.time()
        try:
            _take_machine(bench, job_id)
        except StepSkipped:
            bench.facts["taken"] = False
        history = bench.wait(job_id, "the function ended the job", is_job_over, seconds=_most_seconds(bench))
        if len(history.launches) > 1:
            bench.facts["bought_after_seconds"] = round(history.launches[1].intent.at.timestamp() - taken, 1)
        shown = _expect_success(bench, job_id)
        bench.facts["nodes"] = len(shown["nodes"])
    finally:
        status = bench.call("driver", "remove", "--provider", bench.began.provider, seconds=1200.0)
    bench.facts["remove_status"] = status
    _wait_for_end(bench, job_id)


def other_region(bench: Bench) -> None:
    """Train in a region other than the bucket's."""
    region = bench.began.other_region
    if region is None:
        raise StepSkipped("no other region was named: give --other-region")
    job_id = bench.new_job()
    _run(bench, job_id, f'providers.{bench.began.provider}.regions=["{region}"]')
    _expect_success(bench, job_id)
    _wait_for_end(bench, job_id)


SELF_END_SECONDS: Final = 300.0
"""How long a machine may take to end by itself, in seconds."""
RECONCILE_SECONDS: Final = 30.0
"""The time between two passes of a driver, in seconds, if a machine does not end by itself."""


STEPS: Final[Mapping[str, Callable[[Bench], None]]] = {
    "check": check,
    "price": price,
    "launch": launch,
    "resume": resume,
    "notice": notice,
    "two-nodes": two_nodes,
    "repeat": repeat,
    "alone": alone,
    "gpu": gpu,
    "driver": driver,
    "other-region": other_region,
}


def _creates_once(bench: Bench) -> bool:
    """Return whether the store refuses to create an object that already exists."""
    store, key = open_store(bench.began.store_url), "prove/once"
    store.establish()
    try:
        store.put(key, b"first", if_absent=True)
        try:
            store.put(key, b"second", if_absent=True)
        except ObjectExists:
            return store.get(key) == b"first"
        return False
    finally:
        store.delete(key)


# --- what several steps do --------------------------------------------------------------------------


def _most_seconds(bench: Bench) -> float:
    return 2 * BOOT_SECONDS + 2 * bench.began.train_seconds + END_SECONDS


def _run(bench: Bench, job_id: str, *more: str) -> None:
    with bench.job_file() as path:
        arguments = bench.job_arguments(job_id, *more)
        status = bench.call(
            *("run", str(path), *arguments, "--name", job_id, "--plain", "--anyway"),
            seconds=_most_seconds(bench),
        )
    if status != 0:
        raise StepFailed(f"`run` ended with status {status}")


def _begin(bench: Bench, job_id: str, *more: str) -> Any:
    with bench.job_file() as path:
        arguments = bench.job_arguments(job_id, *more)
        output.echo(f"    $ cloudspot run {path.name} --name {job_id}")
        child = bench.start("run", str(path), *arguments, "--name", job_id, "--plain", "--anyway")
        # The job file must exist until its contents are in the store.
        until = time.monotonic() + BOOT_SECONDS
        while bench.history(job_id) is None and child.poll() is None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
    if child.poll() not in {None, 0}:
        raise StepFailed(f"`run` ended with status {child.returncode}")
    return child


def _expect_success(bench: Bench, job_id: str) -> dict[str, Any]:
    shown = bench.shown(job_id)
    if shown.get("state") != "succeeded":
        raise StepFailed(f"the job's state is {shown.get('state', 'unknown')}")
    return shown


def _expect_same_weights(bench: Bench, shown: Mapping[str, Any]) -> None:
    """Compare the weights with those of the undisturbed job, if both had machines of the same type."""
    calm = next((bench.shown(one.job_id) for one in reversed(bench.record.jobs("launch"))), {})
    if final_of(calm) is None:
        bench.facts["weights"] = "not compared: there is no undisturbed job"
    elif len({*types_of(calm), *types_of(shown)}) != 1:
        bench.facts["weights"] = "not compared: the machines were of different types"
    elif final_of(calm) != final_of(shown):
        bench.facts["weights"] = "different"
        raise StepFailed("the weights differ from those of the undisturbed job")
    else:
        bench.facts["weights"] = "the same"


def _take_machine(bench: Bench, job_id: str) -> None:
    """Let the cloud reclaim the job's machine, or guide the user through that."""
    how = bench.cloud.release
    if how is None:
        bench.provider.require(Capability.PREEMPT)
        status = bench.call("preempt", job_id)
        if status != 0:
            raise StepFailed(f"`preempt` ended with status {status}")
        return
    if not sys.stdin.isatty():
        _wait_for_reclaim(bench, job_id)
        return
    (machine, *_) = _machines(bench, job_id)
    output.echo(f"    a reclaim cannot be requested here. Release the machine {machine.id} yourself now:")
    output.echo(f"    {how.format(id=machine.id)}")
    output.echo("    this waits until it is gone")
    until = time.monotonic() + BOOT_SECONDS
    while any(one.id == machine.id and _runs(one) for one in _machines(bench, job_id)):
        if time.monotonic() > until:
            raise StepSkipped("nobody has released the machine")
        time.sleep(LOOK_SECONDS)
    bench.facts["released_by_hand"] = True


def _wait_for_reclaim(bench: Bench, job_id: str) -> None:
    """Wait for a notice that nobody has requested, for as long as the job lasts."""
    while True:
        history = bench.history(job_id)
        assert history is not None, "it has a checkpoint"
        if any(launch.notices for launch in history.launches):
            return
        if is_job_over(history):
            raise StepSkipped(
                "a reclaim cannot be requested here, and nobody was there to release the machine"
            )
        time.sleep(LOOK_SECONDS)


def _machines(bench: Bench, job_id: str) -> list[Instance]:
    request = InstancesRequest(job_id=job_id)
    return list(bench.provider.provisioner().instances(request).instances)


def _runs(machine: Instance) -> bool:
    return machine.state is not InstanceState.ENDED


def _wait_for_exit(bench: Bench, job_id: str) -> None:
    """Wait until one of the job's nodes has reported its end, whoever drives the job."""
    bench.wait(
        job_id,
        "the node told its end",
        lambda history: any(launch.exits for launch in history.launches),
        seconds=BOOT_SECONDS + 2 * bench.began.train_seconds,
    )


def _wait_for_end(bench: Bench, job_id: str) -> None:
    """Wait until the cloud lists no running machine of the job, and measure how long that takes.

    A machine that does not end by itself is ended by a driver, as it would be in any job.
    """
    began, asked = time.monotonic(), 0.0
    while True:
        machines = _machines(bench, job_id)
        running = [one for one in machines if _runs(one)]
        if not running:
            break
        waited = time.monotonic() - began
        if waited > END_SECONDS:
            provisioner = bench.provider.provisioner()
            provisioner.terminate(TerminateRequest(instance_ids=tuple(one.id for one in running)))
            raise StepFailed(
                f"the driver had not ended the job's machines after {END_SECONDS:.0f} s, so this step ended "
                "them"
            )
        if waited > SELF_END_SECONDS and waited - asked > RECONCILE_SECONDS:
            states = {str(getattr(one.state, "value", one.state)) for one in running}
            bench.facts["left_in_state"] = sorted(states)
            asked = waited
            bench.call("reconcile", "--job", job_id)
        time.sleep(LOOK_SECONDS)
    bench.facts["end_seconds"] = round(time.monotonic() - began, 1)
    bench.facts["reasons"] = sorted(
        {str(getattr(one.end_reason, "value", one.end_reason)) for one in machines if one.end_reason}
    )


def _repeat_launch(bench: Bench, job_id: str, *, since: float) -> dict[str, Any]:
    """Send the job's first launch again, with its token; end any machine that was not there before."""
    history = bench.history(job_id)
    assert history is not None, "it was launched"
    intent = history.launches[0].intent
    provisioner = bench.provider.provisioner()
    before = {one.id for one in _machines(bench, job_id)}
    seconds = round(time.monotonic() - since, 1)
    try:
        made = provisioner.create(CreateRequest(request=intent.request, token=intent.token)).instances
    except CloudspotError as error:
        return {"after_seconds": seconds, "refused": type(error).__name__, "extra": 0, "same": False}
    extra = [one.id for one in made if one.id not in before]
    if extra:
        provisioner.terminate(TerminateRequest(instance_ids=tuple(extra)))
    same = {one.id for one in made} <= before
    return {"after_seconds": seconds, "refused": "", "extra": len(extra), "same": same}
