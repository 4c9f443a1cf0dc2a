"""The command around which an emulated cloud stands, as a user runs it: the toy cloud of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot.emulation.cloud import EmulatedMachine, JobHint
from cloudspot.emulation.sandbox_run import parse_reclaims
from cloudspot.errors import SpecError
from cloudspot.local.machine_records import PlannedReclaim
from cloudspot.model import Market

pytestmark = pytest.mark.full


TOY = Path(__file__).parents[2] / "plugins" / "toy"

FORMS = [
    pytest.param(
        (),
        id="isolated",
        marks=needs_isolated_machines,
    ),
    pytest.param(("--loopback",), id="loopback"),
]

BOOT = """
set -e
boot() { curl -sf --data-binary @- "$TOY_ENDPOINT/machines/$1" >/dev/null; }
wait_for() { until curl -sf $TOY_ENDPOINT/machines | grep -q "\\"$1\\": \\"$2\\""; do sleep 0.05; done; }
"""


@pytest.fixture
def start(tmp_path):
    """``start(*args)``: run ``cloudspot sandbox`` with a state home of its own."""
    started = []

    def start(*args: str, **environ: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "CLOUDSPOT_LOCAL_HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(TOY),
            **environ,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "cloudspot", "sandbox", *args],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def sandbox(start):
    """``sandbox(*args)``: run it to its end."""

    def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        process = start(*args, **environ)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    return run


@pytest.mark.parametrize("form", FORMS)
def test_a_command_has_a_cloud_around_it_and_machines_that_boot(sandbox, tmp_path, form):
    script = f"{BOOT} echo '#!/bin/sh\nshutdown -h now' | boot i-1; wait_for i-1 ended; echo done; exit 7"
    done = sandbox("toy", *form, "--", "bash", "-c", script)
    assert (done.stdout, done.returncode) == ("done\n", 7), done.stderr
    assert ("not isolated" in done.stderr) == bool(form)
    assert list((tmp_path / "home" / "sandboxes").iterdir()) == []


@pytest.mark.parametrize("form", FORMS)
def test_by_default_the_first_machine_is_reclaimed_midway(sandbox, form):
    # A training of 100 steps that begins its 50th.
    machine = (
        "#!/bin/bash\nd=${CLOUDSPOT_NODE_DIR:-/var/lib/cloudspot}/generations/000001; mkdir -p $d\n"
        "python3 -c \"import struct, sys; sys.stdout.buffer.write(struct.pack('<qqq', 50, 100, 51))\" > $d/progress-0\n"
        "until curl -sf ${TOY_METADATA-http://169.254.169.254}/notice; do sleep 0.05; done; shutdown -h now"
    )
    script = f"{BOOT} boot i-1 <<'END'\n{machine}\nEND\nwait_for i-1 ended; echo done"
    done = sandbox("toy", *form, "--", "bash", "-c", script)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_left_of_a_sandbox_whose_command_ends_before_its_machines(sandbox, form, wait_until):
    script = f"{BOOT} printf '#!/bin/sh\nsleep 918273645' | boot i-1; wait_for i-1 running"
    assert sandbox("toy", *form, "--", "bash", "-c", script).returncode == 0
    wait_until(lambda: sleepers() == [])


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_left_of_a_sandbox_that_is_killed(start, sandbox, form, wait_until, tmp_path):
    script = f"{BOOT} printf '#!/bin/sh\nsleep 918273645' | boot i-1; wait_for i-1 running; echo up; exec sleep 918273645"
    process = start("toy", *form, "--", "bash", "-c", script)
    assert process.stdout.readline() == "up\n"
    wait_until(lambda: len(sleepers()) >= 2)
    process.kill()
    process.wait()
    if form:  # a command that is not enclosed is its own master
        wait_until(lambda: len(sleepers()) == 1)
        for pid in sleepers():
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: sleepers() == [])
    # What it left on the disk goes with the next one.
    home = tmp_path / "home" / "sandboxes"
    assert len(list(home.iterdir())) == 1
    wait_until(lambda: sandbox("toy", *form, "--", "true").returncode == 0 and list(home.iterdir()) == [])


def test_signals_reach_the_command_and_its_end_by_one_is_told(start):
    process = start("toy", "--", "bash", "-c", "trap 'echo got it; exit 3' TERM; echo up; sleep 1000 & wait")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == "got it\n"
    assert process.wait() == 3
    process = start("toy", "--", "bash", "-c", "echo up; exec sleep 1000")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert process.wait() == 128 + signal.SIGINT


def test_the_users_own_account_stays_out(sandbox):
    done = sandbox("toy", "--", "env", TOY_SECRET="hunter2", OTHER="kept")
    assert "hunter2" not in done.stdout
    assert "OTHER=kept\n" in done.stdout
    assert "CLOUDSPOT_SANDBOX=toy\n" in done.stdout
    assert "TOY_ENDPOINT=http://" in done.stdout


NESTED = (sys.executable, "-m", "cloudspot", "sandbox")


@pytest.mark.parametrize("form", FORMS)
def test_a_command_in_two_sandboxes_has_both_clouds_around_it(sandbox, tmp_path, form):
    machine = "#!/bin/sh\ncurl -sf $TOY_ENDPOINT/machines | grep -q i-1 && shutdown -h now"
    script = (
        f"{BOOT} echo '{machine}' | boot i-1; wait_for i-1 ended; echo outer; "
        f"TOY_ENDPOINT=$PLAY_ENDPOINT; echo '{machine}' | boot i-1; wait_for i-1 ended; echo inner"
    )
    done = sandbox("toy", *form, "--", *NESTED, "play", "--", "bash", "-c", script)
    assert (done.stdout, done.returncode) == ("outer\ninner\n", 0), done.stderr
    # The inner one is as the outer one is, unasked.
    assert done.stderr.count("are not isolated (") == (2 if form else 0)
    assert list((tmp_path / "home" / "sandboxes").iterdir()) == []


@needs_isolated_machines
def test_two_clouds_with_the_same_network_do_not_go_together(sandbox):
    done = sandbox("toy", "--", *NESTED, "toy", "--", "true")
    assert "another emulated cloud on this host already uses the network 10.77.0.0/16" in done.stderr
    assert done.returncode == 1


def test_what_it_was_like_can_be_kept(sandbox, tmp_path):
    script = f"{BOOT} printf '#!/bin/sh\necho hello; shutdown -h now' | boot i-1; wait_for i-1 ended"
    done = sandbox("toy", "--keep", "--", "bash", "-c", script)
    (kept,) = (tmp_path / "home" / "sandboxes").iterdir()
    assert str(kept) in done.stderr
    assert "nothing is kept" not in done.stderr
    assert "hello\n" in (kept / "state" / "machines" / "i-1" / "console.log").read_text()
    done = sandbox("toy", "--", "true")
    assert kept.exists()
    assert "sandbox toy: ended, and its store is gone." in done.stderr


def test_cloudspot_itself_is_found(sandbox):
    done = sandbox("toy", "--", "cloudspot", "--version", PATH="/usr/bin:/bin:/usr/sbin:/sbin")
    assert done.stdout.startswith("cloudspot ")


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (
            ("cloud9", "--", "true"),
            3,
            'no sandbox "cloud9" is installed; the known ones are ',
        ),
        (("toi", "--", "true"), 3, 'no sandbox "toi" is installed; did you mean "toy"?'),
        (("local", "--", "true"), 3, 'provider "local" needs no sandbox: run the command as it is'),
        (("toy", "--", "no-such-program"), 2, "COMMAND: there is no program 'no-such-program'"),
        (
            ("toy", "--reclaim", "step=3", "--", "true"),
            2,
            "step: unknown field; the fields here are launch, rank, after_steps",
        ),
        (
            ("toy", "--reclaim", "rank=0", "--", "true"),
            2,
            "needs one of after_steps, after_seconds and after_share",
        ),
        (("toy", "--reclaim", "now", "--", "true"), 2, '--reclaim now: "now" is not FIELD=VALUE'),
        (
            ("toy", "--reclaim", "none", "--reclaim", "none", "--", "true"),
            2,
            "--reclaim: none cannot be combined with other values",
        ),
        (("toy",), 2, "Missing argument '-- COMMAND...'"),
    ],
)
def test_a_mistake_is_a_line_before_anything_is_brought_up(sandbox, tmp_path, args, status, message):
    done = sandbox(*args)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == status
    assert not (tmp_path / "home").exists()


def test_reclaims_are_told_in_the_words_of_the_local_provider():
    def planned(*texts, launch=1, rank=0, market=Market.SPOT, asked=None):
        job = JobHint(job_id="j", launch=launch, rank=rank)
        machine = EmulatedMachine(id="i", market=market, job=job, notice_seconds=asked)
        return parse_reclaims(texts, notice_seconds=120.0)(machine)

    assert planned() == (PlannedReclaim(after_share=0.5, notice_seconds=120.0),)
    assert planned(asked=30.0) == (PlannedReclaim(after_share=0.5, notice_seconds=30.0),)
    assert planned("rank=0,after_steps=9,notice=10s", asked=30.0)[0].notice_seconds == 10.0
    assert planned(rank=1) == planned(launch=2) == planned("none") == ()
    assert planned(market=Market.ON_DEMAND) == ()
    two = ("launch=1,rank=0,after_steps=300,notice=2m", "launch=2,rank=1,after_seconds=30s")
    assert planned(*two) == (PlannedReclaim(after_steps=300, notice_seconds=120.0),)
    assert planned(*two, launch=2, rank=1) == (PlannedReclaim(after_seconds=30.0, notice_seconds=120.0),)
    (random,) = planned("mean=5m,max=2,seed=1,notice=0")
    assert random.notice_seconds == 0.0
    assert planned("mean=5m,max=2", launch=3) == ()
    with pytest.raises(SpecError, match="--reclaim after_share=2"):
        planned("after_share=2")


def sleepers() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == b"sleep\x00918273645\x00":
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
