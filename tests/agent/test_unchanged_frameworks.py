"""Trainings with Lightning and Accelerate that know nothing of cloudspot, told of notices by SIGTERM.

The agent is in this process; tests/e2e/test_framework_examples.py runs them as whole jobs. Not among what needs
no torch.
"""

import random
import re
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.jobs import forked_script

from cloudspot.agent.reclaim import understand
from cloudspot.model import PreemptionNotice

pytestmark = pytest.mark.full


JOBS = Path(__file__).parents[1] / "e2e" / "jobs" / "unchanged"
EPOCHS = 8
NUM_STEPS = EPOCHS * 40
MODULES = ("torch._dynamo", "lightning.pytorch.callbacks", "accelerate")
"""Not first what the agent takes for a launcher: `accelerate`."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The socket of a process that has imported the frameworks."""
    path = tmp_path_factory.mktemp("server") / "socket"
    process = subprocess.Popen(
        [sys.executable, forked_script.__file__, str(path), *MODULES], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    yield path
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def train(bench, server, wait_until):
    """``train(script, directory, reclaim_at)``: the output of a training that is told to leave at these steps."""

    def run(script, directory, reclaim_at=()):
        command = [sys.executable, "train.py", str(server), str(JOBS / script), str(EPOCHS)]
        output, outcomes = [], []
        for launch, step in enumerate((*reclaim_at, None), 1):
            life = bench.life(
                forked_script.CLIENT,
                launch=launch,
                machine=f"machine-{launch}",
                run={"command": command, "env": {"STEP_SECONDS": "0.02", "OMP_NUM_THREADS": "1"}},
                checkpoint={"directory": directory, "on_notice": "SIGTERM"},
            )
            thread = threading.Thread(target=life.run, daemon=True)
            thread.start()
            if step is not None:
                log = life.context.node.train_log(launch)
                wait_until(lambda log=log, step=step: log.exists() and f"step {step}\n" in log.read_text())
                now, wall = time.monotonic(), datetime.now(timezone.utc)
                notice = PreemptionNotice(deadline=wall + timedelta(seconds=60))
                life.notices.take(understand(notice, notice_seconds=60.0, now=now, wall=wall))
            thread.join(120.0)
            assert not thread.is_alive()
            output += bench.log(life)
            outcomes.append(bench.exit_record(launch=launch).outcome)
        assert outcomes == [*("drained" for _ in reclaim_at), "succeeded"], "\n".join(output)
        # What the handler of a signal prints may follow on the same line.
        steps = [int(found[1]) for line in output if (found := re.match(r"step (\d+)", line))]
        assert steps == list(range(1, NUM_STEPS + 1))
        (loss,) = re.findall(rf"trained {NUM_STEPS} steps, loss ([\d.]+)", "\n".join(output))
        return float(loss)

    return run


@pytest.mark.parametrize(
    ("script", "directory", "tolerance"),
    [
        ("lightning_alone.py", "checkpoints", 0.02),
        pytest.param("accelerate_alone.py", "output/checkpoint-*", 0.0, marks=pytest.mark.full),
    ],
)
def test_reclaims_at_random_moments_lose_no_step(train, server, tmp_path, script, directory, tolerance):
    reclaim_at = sorted(random.Random(1).sample(range(1, NUM_STEPS * 3 // 4), 3))
    hit = train(script, directory, reclaim_at)
    words = f"import sys; exec({forked_script.CLIENT!r})"
    calm = tmp_path / "calm"
    calm.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", words, str(server), str(JOBS / script), str(EPOCHS)],
        cwd=calm,
        capture_output=True,
        text=True,
        check=True,
    )
    (loss,) = re.findall(rf"trained {NUM_STEPS} steps, loss ([\d.]+)", done.stdout)
    assert hit == pytest.approx(float(loss), rel=tolerance, abs=0.0)
