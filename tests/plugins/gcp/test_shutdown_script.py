"""The shutdown script of the machines; that agent and long poll agree with it: tests/e2e/test_sandbox_gcp."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cloudspot.boot.script import BootPlan, render_boot_script
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Exit
from cloudspot.jobstore.nodes import launches
from cloudspot.model import BootProfile, NodeIdentity
from cloudspot.registry import open_store
from cloudspot_gcp.attributes import machine_name
from cloudspot_gcp.shutdownscript import SCRIPT, SECONDS
from cloudspot_gcp_sandbox.cloud import BUCKET
from cloudspot_gcp_sandbox.strict_compute import PROJECT

STORE = f"gs://{BUCKET}"
SPOT = {
    "provisioningModel": "SPOT",
    "instanceTerminationAction": "DELETE",
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": False,
}
# An interpreter whose agent dies as soon as it runs; what sees the machine off is real.
DEAD_AGENT = f"""\
#!/bin/bash
[ "$2" = cloudspot.agent ] || exec {sys.executable} "$@"
echo the agent dies; exit 1
"""


def run(tmp_path, program: str | None) -> subprocess.CompletedProcess:
    if program is not None:
        (tmp_path / "on-shutdown").write_text(program)
        (tmp_path / "on-shutdown").chmod(0o700)
    script = tmp_path / "script"
    script.write_text(SCRIPT)
    script.chmod(0o700)
    return subprocess.run(
        [script], env={"CLOUDSPOT_NODE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )


def test_it_runs_what_the_boot_script_has_left_and_ends_with_its_status(tmp_path):
    done = run(tmp_path, '#!/bin/sh\necho "told $*"\nexit 3\n')
    assert (done.stdout, done.returncode) == ("told --source shutdown-script --seconds 25\n", 3)


def test_before_the_boot_script_has_come_so_far_there_is_nothing_to_do(tmp_path):
    done = run(tmp_path, None)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_it_counts_on_less_than_the_cloud_promises():
    assert SECONDS == 25.0
    assert "--seconds 25" in SCRIPT


@pytest.mark.full
@pytest.mark.enclosed
def test_a_machine_whose_agent_is_dead_writes_the_exit_record_by_its_shutdown_script(project):
    name = machine_name("digits", STORE, 1, 0)
    plan = BootPlan(
        job_id="digits",
        submission_sha256="5" * 64,
        launch=1,
        store_url=STORE,
        provider="gcp",
        profile=BootProfile(
            agent_python="/run/agent-python",
            environment={"GOOGLE_CLOUD_PROJECT": PROJECT},
            has_cloudspot=True,
        ),
        max_seconds=3600.0,
        version="1",
    )
    agent = f"cat >/run/agent-python <<'END'\n{DEAD_AGENT}END\nchmod 700 /run/agent-python\n"
    with project() as it:
        it.run(
            agent + render_boot_script(plan),
            name=name,
            attributes={"shutdown-script": SCRIPT},
            scheduling=SPOT,
        )
        (shown,) = it.instances()
        store = open_store(STORE)
        identity = NodeIdentity(
            instance_id=f"{shown['zone'].rpartition('/')[2]}/{name}/{shown['id']}", rank=0, address=""
        )
        launches.claim_slot(store, "digits", 1, 0, identity)
        it.wait_for_console(name, "starting it again in 4 s")
        it.host.reclaim(name, notice_seconds=30.0)
        it.wait_for_console(name, "the shutdown script ended")
        assert "writing its exit record" in it.host.console(name), it.host.console(name)
        found = codec.decode(store.get(keys.exit_record("digits", 1, 0)), Exit)
        assert (found.outcome, found.instance_id) == ("drained", identity.instance_id)
        assert found.detail == "shut down (shutdown-script) while its agent was dead"
