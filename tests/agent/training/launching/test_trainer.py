"""Starting torchrun, going on with one that outlived its agent, and ending all that it started."""

import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.jobs.process_portrait import left_open, portrait_of

from cloudspot.agent.training.launching.trainer import (
    Trainer,
    TrainerPlan,
    check_program,
    check_torch,
    launch_variables,
    log_tail,
    omp_threads,
    processes_of,
)
from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.errors import CloudspotError
from cloudspot.host.process_marks import marked_processes
from cloudspot.train import handoff as files


def plan(work, *, python="python3", args=(), command=None):
    return TrainerPlan(
        python=python, program=command or (python, "-u", "train.py", *args), has_torchrun=command is None, num_nodes=1, node_rank=0, procs_per_node=1,
        endpoint="127.0.0.1:1", rendezvous_id="x", work=work, log=work / "train.log",
        environment=dict(os.environ),
    )  # fmt: skip


def here(work, python="python3"):
    return Runtime(SimpleNamespace(work=work), python)


@pytest.fixture
def start(bench, tmp_path):
    handoff = tmp_path / "handoff"
    handoff.mkdir()
    trainers = []

    def start_script(text):
        (tmp_path / "train.py").write_text(text)
        trainers.append(Trainer.start(plan(tmp_path, python=str(bench.stand_in())), handoff, here(tmp_path)))
        return trainers[-1]

    yield start_script
    for trainer in trainers:
        trainer.kill()


def test_the_exit_status_is_told_and_the_output_kept(start, tmp_path, wait_until):
    trainer = start("print('hello')\nraise SystemExit(3)")
    wait_until(lambda: trainer.poll() is not None)
    assert trainer.poll() == 1
    assert trainer.failed_status((0,)) == 3
    assert (tmp_path / "train.log").read_text() == "hello\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows how a process was started")
def test_a_training_is_started_away_from_the_agents_terminal_and_files(start, tmp_path, wait_until):
    """It outlives the agent; nothing that it reads or prints passes through it."""
    with left_open(tmp_path / "of-the-agent"):
        trainer = start("import time; time.sleep(3600)")
    # In the middle of an exec a process has no environment.
    wait_until(lambda: trainer.pid in marked_processes(files.HANDOFF, str(tmp_path / "handoff")))
    log = str(tmp_path / "train.log")
    # A shell sends the output of its own first commands elsewhere.
    wait_until(lambda: portrait_of(trainer.pid).streams == ("/dev/null", log, log))
    seen = portrait_of(trainer.pid)
    assert seen.leads_its_session
    assert seen.directory == tmp_path
    assert str(tmp_path / "of-the-agent") not in seen.files


def test_a_command_is_started_once_and_its_own_status_told(tmp_path, wait_until):
    handoff = tmp_path / "handoff"
    handoff.mkdir()
    made = plan(tmp_path, command=["sh", "-c", 'echo "$0" "$1"; exit 3', "$HOME", "${local_rank}"])
    assert made.command() == tuple(made.program)
    trainer = Trainer.start(made, handoff, here(tmp_path))
    wait_until(lambda: trainer.poll() is not None)
    trainer.kill()  # its shell may not have ended yet
    assert (trainer.poll(), trainer.failed_status((0,))) == (3, None)
    assert trainer.has_started((0,))  # it has no peers to find
    assert (tmp_path / "train.log").read_text() == "$HOME ${local_rank}\n"


def test_a_command_that_starts_several_processes_is_given_no_number_of_threads(
    tmp_path, wait_until, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "handoff").mkdir()
    made = plan(tmp_path, command=["sh", "-c", "echo threads $OMP_NUM_THREADS"])
    trainer = Trainer.start(made, tmp_path / "handoff", here(tmp_path))
    wait_until(lambda: trainer.poll() is not None)
    trainer.kill()
    assert (tmp_path / "train.log").read_text() == "threads\n"


def test_a_command_finds_the_variables_that_its_launcher_reads():
    given = {"num_nodes": 2, "node_rank": 1, "procs_per_node": 4, "endpoint": "10.0.0.1:4711"}
    of_two = {
        "NODES": "2", "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4711",
        "WORLD_SIZE": "8",
    }  # fmt: skip
    assert launch_variables(**given, max_nodes=2) == of_two
    alone = launch_variables(**{**given, "num_nodes": 1, "node_rank": 0}, max_nodes=1)
    assert alone.keys() == of_two.keys() - {"NNODES"}  # with it, `swift sft` would start torchrun
    assert (alone["NODES"], alone["WORLD_SIZE"]) == ("1", "4")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("no-such-swift", "'no-such-swift' is not on PATH"),
        ("./run.sh", "'./run.sh' is not an executable file in"),
    ],
)
def test_a_command_whose_program_is_missing_is_said(tmp_path, program, message):
    with pytest.raises(CloudspotError, match=f"run.command: {re.escape(message)}"):
        check_program(program, os.environ, here(tmp_path))
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    check_program("./run.sh", os.environ, here(tmp_path))
    check_program("sh", os.environ, here(tmp_path))


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
MACROS = st.sampled_from(
    ["$", "$$", "${local_rank}", "$local_rank", "{local_rank}", "local_rank", "$$$", "--"]
)


@pytest.mark.full
@settings(max_examples=50)
@given(st.lists(st.lists(WORDS | MACROS, max_size=4).map("".join), max_size=5))
@example(["a$$b", "${local_rank}", "$local_rank", "$HOME", ""])
@example(["--n=3", "--log", "5", "--rdzv", "-h", "--", "x", "--"])
def test_the_script_gets_its_arguments_as_they_are(args):
    """By torchrun's own parser and its own replacement of macros."""
    run = pytest.importorskip("torch.distributed.run")
    macros = pytest.importorskip("torch.distributed.elastic.utils").macros
    python, dash, module, *words = plan(Path(), args=args).command()
    assert (python, dash, module) == ("python3", "-m", run.__name__)
    _, program, passed_on = run.config_from_args(run.parse_args(words))
    shell = [program, *macros.substitute(passed_on, "0")]
    assert shell[:2] == ["/bin/sh", "-c"]
    assert "$$" not in shell[2]
    assert shell[3:] == ["rank", "python3", "-u", "train.py", *args]


@pytest.mark.parametrize(
    ("last_line", "status"),
    [
        ("raise ValueError('no such layer')", 1),
        ("try:\n    1 / 0\nfinally:\n    sys.exit(5)", 5),
        ("atexit.register(os._exit, 6)", 6),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os._exit(0)", None),
        ("", None),
    ],
)
def test_a_rank_is_known_to_have_failed_however_it_ended(start, wait_until, last_line, status):
    """And before torchrun has ended, which takes its time."""
    trainer = start(f"import atexit, os, signal, sys\n{last_line}\n")
    wait_until(files.exited_path(trainer.handoff, 0).exists)
    assert trainer.failed_status((0,)) == status


def test_the_status_of_the_first_rank_that_failed_counts(start, wait_until):
    trainer = start("raise SystemExit(3)")
    wait_until(files.exited_path(trainer.handoff, 0).exists)
    files.exited_path(trainer.handoff, 1).write_text("0\n")
    files.exited_path(trainer.handoff, 2).write_text("1\n")
    os.utime(files.exited_path(trainer.handoff, 2), (0, 0))
    assert trainer.failed_status((0, 1, 2)) == 1


def test_a_rank_that_a_command_has_started_is_known_to_be_gone(tmp_path, wait_until):
    """No launcher of ours tells its exit status."""
    handoff = tmp_path / "handoff"
    handoff.mkdir()
    script = 'sleep 60 & echo $! > "$0/worker-0.pid"; echo $$ > "$0/worker-1.pid"; wait; sleep 60'
    command = ("sh", "-c", script, str(handoff))
    trainer = Trainer.start(plan(tmp_path, command=command), handoff, here(tmp_path))
    try:
        wait_until(lambda: files.worker_pid_path(handoff, 1).exists())
        assert trainer.vanished((0, 1, 2)) == set()
        os.kill(int(files.worker_pid_path(handoff, 0).read_text()), signal.SIGKILL)
        wait_until(lambda: trainer.vanished((0, 1, 2)) == {0})
        files.exited_path(handoff, 0).write_text("137")
        assert trainer.vanished((0, 1, 2)) == set()
    finally:
        trainer.kill()


def test_a_rank_that_handles_the_signal_of_its_group_is_waited_for(start, tmp_path, wait_until):
    """torchrun ends the others of a node with SIGTERM when one has failed, and waits for them."""
    trainer = start(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "try:\n    pathlib.Path('ready').touch()\n    time.sleep(60)\nfinally:\n    time.sleep(0.2)\n    print('saved', flush=True)\n"
    )
    wait_until((tmp_path / "ready").exists)
    (group,) = {os.getpgid(pid) for pid in processes_of(trainer.handoff).pids()}
    os.killpg(group, signal.SIGTERM)
    wait_until(files.exited_path(trainer.handoff, 0).exists)
    assert trainer.failed_status((0,)) == 7
    assert (tmp_path / "train.log").read_text() == "saved\n"


def test_a_later_agent_goes_on_with_a_running_trainer_and_learns_its_status(start, tmp_path, wait_until):
    trainer = start(
        "import pathlib, time\n"
        "open('ready', 'w').close()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
    )
    wait_until((tmp_path / "ready").exists)
    adopted = Trainer(trainer.handoff, trainer.pid)
    assert adopted.poll() is None
    (tmp_path / "go").touch()
    wait_until(lambda: adopted.poll() is not None)
    assert adopted.poll() == 0


def test_a_trainer_that_vanished_without_a_status_was_killed(start):
    trainer = start("import time; time.sleep(60)")
    trainer.kill()
    assert Trainer(trainer.handoff, trainer.pid).poll() == 137


def test_a_process_id_that_belongs_to_someone_else_is_no_trainer(tmp_path):
    assert Trainer(tmp_path, os.getpid()).poll() == 137


def test_kill_ends_children_that_left_the_session(start, wait_until, tmp_path):
    trainer = start(
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(60)\n"
    )
    wait_until((tmp_path / "ready").exists)
    assert len(processes_of(trainer.handoff).pids()) >= 2
    trainer.kill()
    assert processes_of(trainer.handoff).pids() == set()


def test_stacks_are_asked_of_sessions_only(start, tmp_path, wait_until):
    trainer = start(
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('dumped', flush=True))\n"
        f"open({str(files.worker_pid_path(tmp_path / 'handoff', 0))!r}, 'w').write(str(os.getpid()))\n"
        "open('ready', 'w').close()\n"
        "while True: time.sleep(0.01)\n"
    )
    wait_until((tmp_path / "ready").exists)
    files.worker_pid_path(trainer.handoff, 1).write_text("")  # a rank that is just opening its session
    trainer.dump_stacks((0, 1, 2))
    wait_until(lambda: "dumped" in (tmp_path / "train.log").read_text())


def test_torchruns_own_report_is_left_out_below_the_scripts_traceback(tmp_path):
    report = (
        "E1120 07:00:58.371000 15430 torch/distributed/elastic/multiprocessing/api.py:1002] "
        "failed (exitcode: 1) local_rank: 0 (pid: 15511) of binary: /bin/sh"
    )
    log = tmp_path / "train.log"
    log.write_text(f"ValueError: no data\n{report}\nTraceback\n...")
    assert log_tail(log) == ("ValueError: no data",)
    log.write_text(f"{report}\nTraceback")
    assert log_tail(log) == (report, "Traceback")
    assert log_tail(tmp_path / "none") == ()


def test_an_interpreter_without_torch_or_none_at_all_is_said(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(CloudspotError, match=r"has no torch; install torch in run\.setup"):
        check_torch(os.environ, here(tmp_path, str(python)))
    with pytest.raises(CloudspotError, match="cannot be run"):
        check_torch(os.environ, here(tmp_path, str(tmp_path / "none")))


def test_the_processes_of_a_node_share_the_cores_that_it_is_said_to_have():
    assert omp_threads(2, {"CLOUDSPOT_CORES": "8"}) == 4
    assert omp_threads(4, {"CLOUDSPOT_CORES": "2"}) == 1


def test_the_job_file_may_say_another_number_of_threads(start, tmp_path, wait_until, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    trainer = start("import os; print(os.environ['OMP_NUM_THREADS'])")
    wait_until(lambda: trainer.poll() is not None)
    assert (tmp_path / "train.log").read_text() == "3\n"


def test_the_last_lines_are_the_scripts_and_not_torchruns(tmp_path):
    """Of the forty, thirty were its own insides."""
    report = (
        "E1120 07:00:58.371000 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
    )
    lines = [f"line {number}" for number in range(100)]
    log = tmp_path / "train.log"
    log.write_text("\n".join([*lines, report, *["of torchrun"] * 40]))
    assert log_tail(log) == tuple(lines[-40:])
