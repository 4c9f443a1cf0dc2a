"""Who gets the signal by which a script without a session hears of its notice."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudspot.agent.training.launching.trainer import OWN_SHELLS, processes_of
from cloudspot.agent.training.watching.script_notice import (
    Process,
    ScriptNotice,
    described,
    receivers,
    withdraw,
)
from cloudspot.train.fork_server import fork_client

TERM = signal.SIGTERM
RANK_SHELL = f"/bin/sh -c\0{OWN_SHELLS[1]}\0rank\0python -u train.py"
TORCHRUN = "python -m torch.distributed.run --nnodes=1 train.py"


def tree(*lines):
    """Make processes of lines such as ``2<1 +python train.py``: the parent, then whether it handles SIGTERM."""
    found = {}
    for line in lines:
        ids, words = line.split(" ", 1)
        pid, parent = ids.split("<")
        handles = frozenset({TERM} if words.startswith("+") else ())
        found[int(pid)] = Process(int(parent), tuple(words.lstrip("+").split("\0")), handles)
    return {
        pid: Process(one.parent, tuple(w for word in one.command_line for w in ([word] if word in OWN_SHELLS else word.split())), one.handles)
        for pid, one in found.items()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["10<1 +python train.py"], [10]),
        (["10<1 python train.py"], []),  # it would die of it
        # Below our own shells and torchrun, which handle it too.
        ([f"10<1 +{TORCHRUN}", f"11<10 +{RANK_SHELL}", "12<11 +python -u train.py"], [12]),
        (["10<1 +python /venv/bin/accelerate launch train.py", "11<10 +python train.py"], [11]),
        # `swift sft` handles nothing, and would leave the training behind; with two processes it runs torchrun.
        (["10<1 python /venv/bin/swift sft", "11<10 +python /swift/cli/sft.py"], [11]),
        (
            ["10<1 python swift sft", f"11<10 +{TORCHRUN}", "12<11 +python sft.py", "13<11 +python sft.py"],
            [12, 13],
        ),
        # The workers of a data loader handle it, and die of it: forked ones and spawned ones.
        (["10<1 python train.py", "11<10 +python train.py"], []),
        (["10<1 python train.py", "11<10 +python -c spawn_main --multiprocessing-fork"], []),
        (["10<1 +python train.py", "11<10 +python train.py", "12<10 +wandb-core"], [10]),
        (["10<1 bash -c x", "11<10 +python a.py", "12<10 python b.py"], [11]),
    ],
)
def test_the_uppermost_process_that_handles_it_is_told(lines, told):
    assert receivers(tree(*lines), TERM) == tuple(told)


THROUGH_A_LINK = """
import sys
sys.path.insert(0, sys.argv[1])
from cloudspot.agent.training.watching.script_notice import Process, receivers
from cloudspot.train.fork_server import fork_client
assert fork_client.__file__.startswith(sys.argv[1])
client, rank = (sys.executable, "-IS", sys.argv[2]), ("python", "train.py")
handles = frozenset({15})
assert receivers({10: Process(1, client, handles), 11: Process(10, rank, handles)}, 15) == (11,)
"""


@pytest.mark.full
def test_who_stands_in_for_a_forked_program_is_not_told_where_the_agent_lies_behind_a_link(tmp_path):
    """Such as the ``lib64`` of a virtual environment. It passes the signal on, so the script had it twice."""
    here = Path(fork_client.__file__).resolve()
    (tmp_path / "lib64").symlink_to(here.parents[3])
    subprocess.run([sys.executable, "-c", THROUGH_A_LINK, tmp_path / "lib64", here], check=True)


HANDLES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\\n"))  # print is not reentrant
os.write(1, b"ready\\n")
time.sleep(60)
"""


@pytest.fixture
def started(tmp_path):
    """Start programs of a generation; returns what they are known by."""
    processes = []

    def start(*words):
        command = processes_of(tmp_path).command(sys.executable, words, ended=tmp_path / "ended")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    processes_of(tmp_path).kill()
    for process in processes:
        process.wait()
        process.stdout.close()


def test_a_real_process_is_told_once_below_a_real_launcher(bench, started, tmp_path):
    code = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {HANDLES!r}])"
    launcher = started(sys.executable, "-c", code)
    assert launcher.stdout.readline() == "ready\n"
    notice = ScriptNotice("SIGTERM", tmp_path, bench.node())
    assert not notice.reached_script
    for now in (0.0, 0.1, 10.0):
        notice.notify(now)
    assert notice.reached_script
    assert launcher.stdout.readline() == "told\n"
    again = ScriptNotice("SIGTERM", tmp_path, bench.node())  # of the next agent
    again.notify(20.0)
    assert (again.reached_script, launcher.poll()) == (True, None)
    processes_of(tmp_path).kill()
    assert launcher.stdout.read() == ""


def test_a_script_that_comes_to_its_handler_late_is_told_then_and_not_killed(bench, started, tmp_path):
    go = tmp_path / "go"
    script = started(
        sys.executable,
        "-c",
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n{HANDLES}",
    )
    notice = ScriptNotice("SIGTERM", tmp_path, bench.node())
    notice.notify(0.0)
    assert (notice.reached_script, script.poll()) == (False, None)
    go.touch()
    assert script.stdout.readline() == "ready\n"
    notice.notify(1.0)
    assert notice.reached_script
    assert script.stdout.readline() == "told\n"


def test_the_signals_that_a_process_handles_are_the_kernels_word(started, tmp_path):
    script = started(sys.executable, "-c", HANDLES.replace("SIGTERM", "SIGUSR1"))
    script.stdout.readline()
    (found,) = described(processes_of(tmp_path).pids()).values()
    assert found.command_line[0] == sys.executable
    assert (signal.SIGUSR1 in found.handles, TERM in found.handles) == (True, False)


def test_a_file_is_there_until_the_next_start(bench, tmp_path):
    node = bench.node()
    notice = ScriptNotice("run/stop", tmp_path, node)
    notice.notify(0.0)
    assert notice.reached_script
    assert (node.work / "run" / "stop").read_text() == "save and leave\n"
    withdraw("run/stop", node)
    assert list(Path(node.work, "run").iterdir()) == []
    withdraw("run/stop", node)
    withdraw("SIGTERM", node)
    withdraw(None, node)
