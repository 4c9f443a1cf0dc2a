"""The agent's process: what ends it, and what it says where it cannot even read the job."""

import os
import subprocess
import sys

import pytest

from cloudspot.agent import main
from cloudspot.errors import SpecError
from cloudspot.jobstore import keys, launches

JOB = "digits-1"


def test_a_thread_that_fails_ends_the_process_with_its_traceback_in_the_log(bench):
    script = (
        "import sys, threading, time\n"
        "from cloudspot.agent import main\n"
        "from cloudspot.agent.node import Node\n"
        "import os\n"
        "main._log_to(Node.from_environment(os.environ))\n"
        "threading.excepthook = main.end_process\n"
        "threading.Thread(target=lambda: [][0], name='courier').start()\n"
        "time.sleep(60)\n"
    )
    node = bench.node()
    environment = {
        **os.environ, "CLOUDSPOT_JOB": JOB, "CLOUDSPOT_LAUNCH": "1", "CLOUDSPOT_STORE": bench.store.url,
        "CLOUDSPOT_PROVIDER": "local", "CLOUDSPOT_NODE_DIR": str(node.directory), "CLOUDSPOT_TRAIN_PYTHON": "x",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], env=environment, timeout=60)
    assert done.returncode == 1
    log = (node.logs / "agent.log").read_text()
    assert "thread 'courier' failed: this agent ends" in log
    assert "IndexError: list index out of range" in log


@pytest.fixture
def given(bench, monkeypatch):
    monkeypatch.setattr(main, "open_provider", lambda name, spec: bench.provider)
    return bench


def test_a_job_that_this_version_cannot_read_ends_with_the_reason(given):
    main.refuse(given.node(), given.store, SpecError("stored job: run.gpu is unknown"))
    record = given.exit_record()
    assert (record.outcome, record.permanent, record.instance_id) == ("failed", True, "m-1")
    assert record.detail == "the node's cloudspot cannot read the job: stored job: run.gpu is unknown"
    assert launches.read_slots(given.store, JOB, 1)[0].instance_id == "m-1"


def test_a_machine_without_the_slot_says_nothing(given):
    launches.void_slot(given.store, JOB, 1, 0, "voided: too late")
    main.refuse(given.node(), given.store, SpecError("unknown"))
    assert [meta.key for meta in given.store.list_objects(keys.nodes_prefix(JOB))] == []
