"""What passes of a deployed driver promise on every emulated cloud, as tests: its real process, killed or doubled.

The machines boot nothing: ``Account`` writes what their nodes would.
"""

import contextlib
import hashlib
import os
import re
import statistics
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from types import MappingProxyType

import pytest
from msgspec import structs
from support.clouds.reaptests import end_job
from support.jobs.acting_user import COMMAND
from support.records.made_records import Records
from support.stores.request_counts import MOST_A_LIVE_JOB
from support.worlds.listed_host import ListedHost

from cloudspot.boot.agentarchive import AgentArchive
from cloudspot.cli.preparing.preparedjob import prepare_job
from cloudspot.controller.ownership import adopt
from cloudspot.jobstore.access.stored_records import create_record
from cloudspot.jobstore.jobs.job_lists import list_live
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.submission import submit
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Generation, new_nonce
from cloudspot.jobstore.nodes.heartbeat_size import fill_up
from cloudspot.jobstore.nodes.launches import claim_slot
from cloudspot.model import REAP_EVENT, EndReason, InstanceState, NodeIdentity
from cloudspot.plugin.functionchecks import passes_a_month
from cloudspot.registry import open_store

AGENT = AgentArchive(b"", hashlib.sha256().hexdigest(), digest="0" * 64, requirements=("cloudspot",))
"""What no machine installs."""
NUM_ENDED = 1_000
MOST_OF_IDLE_PASS = 4
"""The requests of a pass over a store without live jobs."""
MOST_SECONDS = 240.0
"""A job whose node has succeeded is over then: on some clouds, only time proves that a machine is gone."""


class Account:
    """An emulated account, the driver of its store, and the nodes of its jobs."""

    def __init__(self, tests, cloud, host, directory):
        self.cloud, self.host = cloud, host
        self._tests, self._directory, self._records = tests, directory, Records()
        (directory / "train.py").write_text("")
        (directory / "job.toml").write_text('name = "x"\n[run]\nentrypoint = "train.py"\n')
        # By a process of its own: what these tests put on the path is no part of a driver.
        command = [
            *COMMAND,
            "driver",
            "deploy",
            "--provider",
            cloud.name,
            "--every",
            "60m",
            "--reap",
            "--yes",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        self.name = done.stdout.splitlines()[-1].split()[1]
        self.store = open_store(os.environ["CLOUDSPOT_STORE"])

    def submit(self, job_id):
        """Submit a job of one node, and launch nothing."""
        prepared = self._prepared(name=job_id)  # A pass also reads earlier jobs of the same name.
        submit(
            self.store, spec=prepared.spec, provider=self.cloud.name, workdir=prepared.workdir, environ={},
            job_id=job_id, agent=AGENT, adopt=partial(adopt, self.store),
        )  # fmt: skip

    def _prepared(self, *, name="x"):
        settings = (*self._tests.job_settings, f'name="{name}"')
        url = os.environ["CLOUDSPOT_STORE"]
        return prepare_job(self._directory / "job.toml", self.cloud.name, settings, url)

    def run_pass(self):
        """Run the function once; return whether it has ended well."""
        return self._tests.invoke(self.cloud, self.name, {})[0]

    def machines(self, job_id):
        """Return all machines that the job has ever had."""
        return [one for one in self.host.machines.values() if one.job.job_id == job_id]

    def let_node_train(self, job_id):
        """Let the job's only machine have a node that trains."""
        (machine,) = self.machines(job_id)
        self._start(machine)

    def let_nodes_succeed(self, job_id):
        """Let the nodes that run and own their seat train, succeed, and end their machines."""
        for machine in self.machines(job_id):
            if self.host.status[machine.id].state is InstanceState.RUNNING:
                launch, rank = machine.job.launch, machine.job.rank
                if self._start(machine):
                    left = self._records.exit(
                        "succeeded", instance_id=self._tests.id_of(machine), launch=launch, rank=rank
                    )
                    create_record(
                        self.store,
                        keys.exit_record(job_id, launch, rank),
                        structs.replace(left, **_written()),
                    )
                self.host.end(machine.id, EndReason.SELF)

    def _start(self, machine):
        """Claim the machine's seat, and train; return whether the seat is its own."""
        job_id, launch, rank = machine.job.job_id, machine.job.launch, machine.job.rank
        instance_id = self._tests.id_of(machine)
        identity = NodeIdentity(instance_id=instance_id, rank=rank, address=machine.address)
        if claim_slot(self.store, job_id, launch, rank, identity).instance_id != instance_id:
            return False
        journal = Journal(self.store, job_id)
        if not any(isinstance(one, Generation) for one in journal.read()):
            start = structs.replace(self._records.generation(1, launch=launch, ranks=(rank,)), **_written())
            assert journal.append(start, len(journal.known) + 1)
        beat = self._records.heartbeat(instance_id=instance_id, address=machine.address)
        beat = structs.replace(beat, at=datetime.now(timezone.utc))
        beat = fill_up(codec.encode(beat), num_beats=1, num_changes=1)
        self.store.put(keys.heartbeat(job_id, launch, rank), beat)
        return True

    def add_ended(self, num_jobs):
        """Add jobs that have ended."""
        prepared = self._prepared()

        def add(number):
            submission = submit(
                self.store, spec=prepared.spec, provider=self.cloud.name, workdir=prepared.workdir, environ={},
                job_id=f"ended-{number}", agent=AGENT,
            )  # fmt: skip
            end_job(self.store, submission)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(num_jobs)))

    def cost(self):
        """Return what a pass of a warm process costs: seconds, and the requests of its last run by kind."""
        assert self.run_pass()
        seconds = []
        for _ in range(5):
            first = len(self.cloud.faults.calls)
            self.cloud.front.count()
            begun = time.monotonic()
            assert self.run_pass()
            seconds.append(time.monotonic() - begun)
        calls = [one for one in self.cloud.faults.calls[first:] if one.action != self._tests.invoke_call]
        assert len(calls) == self.cloud.front.num_requests
        return statistics.median(seconds), Counter(map(_kind, calls))

    def check_over(self, job_id):
        """The job has succeeded on one machine, which is gone, and nothing is left to do for it."""
        history = HistoryReader(self.store, job_id).read()
        assert history.finished is not None
        assert history.finished.outcome == "succeeded"
        assert len(history.launches) == 1
        assert job_id not in list_live(self.store)
        assert len(self.machines(job_id)) == 1
        assert self.host.alive == []

    def finish(self, job_id):
        """Let whole passes and the nodes bring the job to its end; it has had one machine."""
        self.cloud.front.count()
        end = time.monotonic() + MOST_SECONDS
        self.let_nodes_succeed(job_id)
        while job_id in list_live(self.store) and time.monotonic() < end:
            assert self.run_pass()
            self.let_nodes_succeed(job_id)
            time.sleep(0.2)
        self.check_over(job_id)

    def find_launch(self, job_id):
        """Drive a job; return how many requests its first pass makes until it has launched a machine."""
        self.submit(job_id)
        first = len(self.cloud.faults.calls)
        assert self.run_pass()
        actions = [call.action for call in self.cloud.faults.calls[first:]]
        self.finish(job_id)
        return actions.index(self._tests.launch_call) + 1


def _written():
    return {"at": datetime.now(timezone.utc), "writer": new_nonce()}


def _kind(call):
    """Return what a request is: to the cloud's API, or how the store charges it."""
    if call.service not in {"s3", "oss", "storage"}:
        return "cloud"
    action = call.action.lower()
    if "delete" in action:
        return "delete"
    return "read" if re.search("get|head", action) and "list" not in action else "write"


class FunctionPassTests:
    """Tests of a driver that runs in the cloud's own runtime."""

    job_settings = ()
    launch_call = ""
    invoke_call = ""
    """The call by which ``invoke`` runs the function, if it is recorded."""
    currency = "USD"
    request_prices = MappingProxyType({})
    """What the store charges for one request, by kind."""
    function_prices = (0.0, 0.0, 0.0)
    """What the function costs a second, a call and a month."""

    def cloud(self):
        """Return the emulated cloud, not yet started."""
        raise NotImplementedError

    def functions(self, cloud):
        """Return the cloud's functions."""
        raise NotImplementedError

    def invoke(self, cloud, name, event):
        """Run the function of this name; return whether it has ended well, and what it has printed."""
        raise NotImplementedError

    def id_of(self, machine):
        """Return the machine's id as the plugin has it."""
        return machine.id

    @contextlib.contextmanager
    def account(self, directory):
        cloud, host = self.cloud(), ListedHost()
        state, job = directory / "state", directory / "job"
        state.mkdir()
        job.mkdir()
        cloud.start(host, address="127.0.0.1", directory=state)
        try:
            os.environ.update(cloud.environment())  # This process is the test's alone.
            yield Account(self, cloud, host, job)
        finally:
            cloud.stop()

    @pytest.mark.soak
    @pytest.mark.timeout(900)
    def test_its_daily_run_lacks_no_right(self, tmp_path):
        with self.account(tmp_path) as account:
            has_ended_well, said = self.invoke(account.cloud, account.name, REAP_EVENT)
            assert has_ended_well
            assert "cannot look at" not in said
            assert "nothing" in said

    # --- what passes cost -------------------------------------------------------------------------

    @pytest.mark.soak
    @pytest.mark.timeout(3000)
    def test_what_a_pass_costs_does_not_grow_with_jobs_that_have_ended(self, tmp_path):
        """Prints the rows of the table in docs/unattended.md; ``pytest -s`` shows them."""
        with self.account(tmp_path) as account:
            rows = {"no live job": account.cost()}
            account.add_ended(NUM_ENDED)
            rows[f"no live job, {NUM_ENDED:,} ended"] = account.cost()
            account.submit("live")
            assert account.run_pass()
            account.let_node_train("live")
            rows[f"one live job, {NUM_ENDED:,} ended"] = account.cost()
        for what, (seconds, counts) in rows.items():
            shown = ", ".join(f"{counts[kind]} {kind}" for kind in ("read", "write", "delete", "cloud"))
            money = f"{self.month(seconds, counts):.2f} {self.currency}"
            print(f"\n{account.cloud.name} | {what} | {shown} | {seconds:.2f} s | {money}")
        none, none_of_many, one = (counts for _, counts in rows.values())
        assert none == none_of_many
        assert none.total() <= MOST_OF_IDLE_PASS
        assert none["cloud"] == 0
        assert one.total() - none.total() <= MOST_A_LIVE_JOB

    def month(self, seconds, counts):
        """Return what passes like that cost a month, one every two minutes."""
        a_second, a_call, a_month = self.function_prices
        requests = sum(counts[kind] * price for kind, price in self.request_prices.items())
        return a_month + passes_a_month(2) * (requests + a_call + seconds * a_second)


class InterruptedPassTests(FunctionPassTests):
    """Tests of passes that are killed or overlap, where a job is over soon after its machine is gone."""

    @pytest.mark.full
    @pytest.mark.timeout(900)
    def test_a_pass_that_is_killed_or_doubled_at_its_launch_launches_once(self, tmp_path):
        with self.account(tmp_path) as account:
            launch = account.find_launch("whole")
            assert self.kill(account, launch) > 0
            assert self.overlap(account, launch) > 0

    @pytest.mark.soak
    @pytest.mark.timeout(3000)
    def test_a_process_killed_at_each_of_its_requests_launches_once(self, tmp_path):
        with self.account(tmp_path) as account:
            launch, number = account.find_launch("whole"), 1
            while self.kill(account, number):
                number += 1
            assert number > launch

    @pytest.mark.soak
    @pytest.mark.timeout(3000)
    def test_a_pass_within_another_at_any_request_launches_no_second_machine(self, tmp_path):
        with self.account(tmp_path) as account:
            launch, number = account.find_launch("whole"), 1
            while self.overlap(account, number):
                number += 1
            assert number > launch

    def kill(self, account, number):
        """Drive a job by passes that are killed at this request, and whole ones; return how many were."""
        front, job_id, num_kills = account.cloud.front, f"killed-{number}", 0
        account.submit(job_id)

        def kill():
            self.functions(account.cloud).kill_running()
            return False

        # Over a job that waits for its machine, and over one whose node has succeeded.
        for _ in range(2):
            for when in ("before", "after"):
                front.interrupt(number, when, kill)
                is_whole = account.run_pass()
                assert is_whole == (front.num_requests < number)
                num_kills += not is_whole
            front.count()
            assert account.run_pass()
            account.let_nodes_succeed(job_id)
        account.finish(job_id)
        return num_kills

    def overlap(self, account, number):
        """Drive a job by passes within which, at this request, another is made; return how many were."""
        front, job_id, within = account.cloud.front, f"twice-{number}", []
        account.submit(job_id)

        def overlap():
            within.append(account.run_pass())
            return True

        for _ in range(2):
            for when in ("before", "after"):
                front.interrupt(number, when, overlap)
                assert account.run_pass()
            account.let_nodes_succeed(job_id)
        assert all(within)
        account.finish(job_id)
        return len(within)
