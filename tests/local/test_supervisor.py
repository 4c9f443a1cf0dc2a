"""A machine's life: boot, notice, and every way to end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from support.jobs.process_portrait import left_open, portrait_of, portraits_of_session

from cloudspot.host.locks import try_lock
from cloudspot.host.process_marks import marked_processes
from cloudspot.local import forms
from cloudspot.local.machine_records import MachineState
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.options import LocalOptions, RandomReclaims, Reclaim
from cloudspot.local.processes import MARK, machine_processes
from cloudspot.local.provider import LocalProvider
from cloudspot.local.supervisor import Supervisor
from cloudspot.local.supervisor_start import start_supervisor
from cloudspot.model import EndReason, InstanceState, Market
from cloudspot.testing import plaincalls
from cloudspot.train import handoff

pytestmark = pytest.mark.full


SLEEP = shutil.which("sleep")


def hiding_script(seconds: int) -> str:
    """Return a boot script whose six sleepers hide, each in its own way, beside what respawns them.

    In a session of its own, forked twice, with an empty environment, with both, deaf to what can be
    ignored, and born again whenever it is killed.
    """
    return f"""\
setsid sleep {seconds} &
(setsid sleep {seconds} &) &
env -i setsid {SLEEP} {seconds} &
env -i bash -c '(setsid {SLEEP} {seconds} &)'
(trap '' HUP TERM INT; sleep {seconds}) &
(while :; do sleep {seconds}; done) &
(while :; do sleep 0.01; done) &
sleep 1000
"""


def sleepers(seconds: int) -> set[int]:
    """Return the processes that sleep so long, by their command lines alone."""
    wanted = f"sleep\0{seconds}\0".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().endswith(wanted):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="process trees are followed through /proc")


def living(pids: set[int]) -> set[int]:
    """Return those that run; a zombie whose new parent is slow to collect it does not."""
    found = set()
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if text.rpartition(")")[2].split()[0] != "Z":
            found.add(pid)
    return found


def num_threads(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    except FileNotFoundError:
        return 0


def processes_of(machine) -> set[int]:
    return machine_processes(machine.mark, root=machine.supervisor().pid)


def test_a_machine_boots_its_script_and_reports(host):
    machine = host.launch("echo I am $CLOUDSPOT_MACHINE at $PWD; sleep 1000")[0]
    console = host.wait_for_console(machine, "I am")
    assert console == f"I am {machine.mark} at {machine.path}\n"
    instance = host.instance(machine)
    assert instance.state is InstanceState.RUNNING
    assert (instance.job_id, instance.launch, instance.rank) == ("job", 1, 0)
    assert (instance.zone, instance.instance_type, instance.market) == ("local-a", "local", Market.SPOT)
    assert instance.end_reason is None
    assert instance.ended_at is None


def test_nothing_of_the_submitters_environment_reaches_a_machine(host, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("CLOUDSPOT_JOB", "another")
    machine = host.launch("env -0 > environment; echo done; sleep 1000")[0]
    host.wait_for_console(machine, "done")
    entries = (machine.path / "environment").read_text().split("\0")
    names = {entry.partition("=")[0] for entry in entries if entry}
    expected = {"PATH", "HOME", "TMPDIR", "LANG", MARK}
    expected |= {"CLOUDSPOT_NODE_DIR", "CLOUDSPOT_LOCAL_METADATA", "CLOUDSPOT_CORES"}
    if sys.platform == "linux":
        expected.add("CLOUDSPOT_ARENA")
        supervisor = Path(f"/proc/{machine.supervisor().pid}/environ").read_bytes()
        assert b"hunter2" not in supervisor
    assert names - {"PWD", "SHLVL", "_"} == expected


@linux_only
def test_a_machine_and_its_supervisor_are_away_from_the_submitters_terminal_directory_and_files(host):
    with left_open(host.home / "of-the-submitter"):
        machine = host.launch("echo $$ > pid; echo up; sleep 1000")[0]
        host.wait_for_console(machine, "up")
    supervisor = portrait_of(machine.supervisor().pid)
    boot = portrait_of(int((machine.path / "pid").read_text()))
    log = str(machine.path / "supervisor.log")
    assert supervisor.session not in {os.getsid(0), boot.session}
    assert supervisor.directory == Path("/")
    assert supervisor.streams == ("/dev/null", log, log)
    assert supervisor.environment.keys() <= {"PATH", "LANG", "PYTHONPATH"}
    assert boot.leads_its_session
    assert boot.directory == machine.path
    assert boot.streams == ("/dev/null", str(machine.console), str(machine.console))
    assert str(host.home / "of-the-submitter") not in supervisor.files | boot.files
    assert not [one for one in boot.files if one.startswith(str(machine.path / "lock"))]


def test_the_machines_of_a_job_share_the_hosts_cores_and_have_no_variable_of_their_supervisors(
    host, monkeypatch
):
    """Else each would compute with as many threads as there are cores, or import what the supervisor does."""
    machine = host.launch("sleep 1000", options=LocalOptions(boot_delay=3600.0))[0]
    monkeypatch.setenv("PYTHONPATH", "/of/the/supervisor")
    monkeypatch.setattr(forms.os, "cpu_count", lambda: 9)
    form = forms.make_form(machine)
    for num_nodes, cores in ((1, "9"), (2, "4"), (4, "2"), (10, "1")):
        form.record = msgspec.structs.replace(form.record, job_nodes=num_nodes)
        environment = form._environment()
        assert environment["CLOUDSPOT_CORES"] == cores
        assert "PYTHONPATH" not in environment


def test_the_boot_waits_for_the_boot_delay(host):
    machine = host.launch("sleep 1000", options=LocalOptions(boot_delay=3600.0))[0]
    assert host.instance(machine).state is InstanceState.PENDING
    plaincalls.preempt(LocalProvider(), machine.id, notice_seconds=0)
    assert host.wait_for_end(machine).end_reason is EndReason.RECLAIMED
    assert not machine.console.exists()


@linux_only
def test_a_supervisor_keeps_open_what_it_is_to_hold_and_finds_modules_where_it_is_told(host, tmp_path):
    """As the lock that tells its sandbox's other processes that a machine lives."""
    record = host.launch("sleep 1000", options=LocalOptions(boot_delay=3600.0))[0].record()
    path = host.home / "machines" / "m-held-0"
    machine = MachineDirectory.create(
        path, msgspec.structs.replace(record, id=path.name), user_data=b"echo up"
    )
    python_path = os.pathsep.join((str(tmp_path / "modules"), *sys.path))
    with (tmp_path / "held").open("w") as held:
        started = start_supervisor(machine, python_path=python_path, held=(held.fileno(),))
        assert started.wait(60) == 0
    supervisor = portrait_of(machine.supervisor().pid)
    assert held.name in supervisor.files
    assert supervisor.environment["PYTHONPATH"] == python_path


@linux_only
def test_a_machine_that_asks_for_its_end_waits_for_it_though_it_is_hung_up_on(host, wait_until):
    """Should its supervisor have been killed, it ends itself then."""
    machine = host.launch("sleep 1000", options=LocalOptions(boot_delay=3600.0))[0]
    shutdown = subprocess.Popen([machine.programs / "shutdown"], start_new_session=True)
    assert shutdown.wait(60) == 0

    try:
        # A shell and its sleep.
        wait_until(lambda: len(portraits_of_session(shutdown.pid)) == 2)
        assert all(signal.SIGHUP in one.ignored for one in portraits_of_session(shutdown.pid))
    finally:
        os.killpg(shutdown.pid, signal.SIGKILL)


def test_a_machine_that_had_a_supervisor_or_has_ended_never_gets_another(host):
    machine = host.launch("sleep 1000")[0]
    os.kill(machine.supervisor().pid, signal.SIGKILL)
    assert start_supervisor(machine).wait(60) == 1
    host.wait_for_end(machine)
    assert start_supervisor(machine).wait(60) == 1


def test_a_later_notice_moves_no_end_back(host):
    machine = host.launch("sleep 1000", options=LocalOptions(boot_delay=3600.0))[0]
    supervisor = Supervisor(machine)
    supervisor._form.view = SimpleNamespace(notice=None)
    supervisor._reclaim(1000.0, 30.0)
    first = supervisor._form.view.notice
    supervisor._reclaim(1001.0, 60.0)
    assert supervisor._deadline == 1030.0
    assert supervisor._form.view.notice is first
    supervisor._reclaim(1002.0, 5.0)
    assert supervisor._deadline == 1007.0
    assert supervisor._form.view.notice.deadline < first.deadline


LOOKED_AT = """
import sys
from contextlib import contextmanager
from pathlib import Path
from cloudspot.local import supervisor

try_lock, looks = supervisor.try_lock, []

@contextmanager
def held_by_a_look(path):
    looks.append(path)
    if len(looks) == 1:
        yield False
    else:
        with try_lock(path) as is_free:
            yield is_free

supervisor.try_lock = held_by_a_look
sys.exit(supervisor.main(Path(sys.argv[1])))
"""


def test_a_look_at_a_machine_that_starts_does_not_cost_it_its_supervisor(host):
    machine = host.launch("sleep 1000", options=LocalOptions(boot_delay=3600.0))[0]
    path = host.home / "machines" / "m-looked-at-0"
    record = msgspec.structs.replace(machine.record(), id=path.name)
    looked_at = MachineDirectory.create(path, record, user_data=b"echo up; sleep 1000")
    subprocess.run([sys.executable, "-c", LOOKED_AT, str(path)], check=True)
    assert looked_at.supervisor() is not None


def test_signals_that_the_submitter_ignores_work_on_a_machine(host):
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        machine = host.launch("trap 'echo interrupted' INT; kill -INT $$; echo done; sleep 1000")[0]
    finally:
        signal.signal(signal.SIGINT, previous)
    assert host.wait_for_console(machine, "done") == "interrupted\ndone\n"


@linux_only
@pytest.mark.parametrize("way", ["reclaim", "notice", "terminate"])
def test_the_end_of_a_machine_leaves_no_process_however_it_hides(host, way):
    seconds = random.randrange(10**6, 10**9)
    machine = host.launch(hiding_script(seconds))[0]
    host.wait_until(lambda: len(sleepers(seconds)) == 6)
    if way == "terminate":
        plaincalls.terminate(LocalProvider().provisioner(), [machine.id])
    else:
        plaincalls.preempt(LocalProvider(), machine.id, notice_seconds=0.0 if way == "reclaim" else 0.2)
    reason = EndReason.TERMINATED if way == "terminate" else EndReason.RECLAIMED
    assert host.wait_for_end(machine).end_reason is reason
    left = sleepers(seconds)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == set()
    assert marked_processes(MARK, machine.mark) == ()


@linux_only
def test_a_process_that_lost_its_first_thread_does_not_stay(host):
    code = (
        "import ctypes, os, threading, time;"
        "threading.Thread(target=time.sleep, args=(1000,)).start();"
        "print('pid', os.getpid(), flush=True);"
        "ctypes.CDLL(None).pthread_exit(0)"
    )
    machine = host.launch(f'setsid {sys.executable} -c "{code}"')[0]
    pid = int(host.wait_for_console(machine, "\n").split()[1])
    host.wait_until(lambda: living({pid}) == set())
    assert num_threads(pid) == 2
    assert processes_of(machine) >= {pid}
    plaincalls.preempt(LocalProvider(), machine.id, notice_seconds=0)
    host.wait_for_end(machine)
    assert num_threads(pid) <= 1


@linux_only
def test_a_unix_socket_fits_into_tmpdir(host):
    code = "import multiprocessing.connection as c; print('address', c.Listener(family='AF_UNIX').address)"
    machine = host.launch(f'{sys.executable} -c "{code}"; sleep 1000')[0]
    assert f"address {machine.temporary}/" in host.wait_for_console(machine, "address")


def test_a_machine_ends_itself_by_shutdown(host):
    machine = host.launch("shutdown -h now; sleep 1000")[0]
    assert host.wait_for_end(machine).end_reason is EndReason.SELF


def test_a_boot_script_that_returns_does_not_end_the_machine(host):
    machine = host.launch("(sleep 0.3; echo still here; poweroff) & echo returned")[0]
    assert host.wait_for_end(machine).end_reason is EndReason.SELF
    assert machine.console.read_text() == "returned\nstill here\n"


def test_a_shutdown_after_the_notice_counts_as_a_reclaim(host):
    machine = host.launch("echo up; while ! test -e leave; do sleep 0.02; done; shutdown; sleep 1000")[0]
    host.wait_for_console(machine, "up")
    plaincalls.preempt(LocalProvider(), machine.id, notice_seconds=3600)
    (machine.path / "leave").touch()
    assert host.wait_for_end(machine).end_reason is EndReason.RECLAIMED


def test_a_second_reclaim_can_only_come_sooner(host):
    machine = host.launch("sleep 1000")[0]
    provider = LocalProvider()
    plaincalls.preempt(provider, machine.id, notice_seconds=3600)
    plaincalls.preempt(provider, machine.id, notice_seconds=7200)
    assert host.instance(machine).state is InstanceState.RUNNING
    plaincalls.preempt(provider, machine.id, notice_seconds=0.1)
    assert host.wait_for_end(machine).end_reason is EndReason.RECLAIMED


def test_the_clouds_own_limit_ends_a_machine(host):
    machine = host.launch("sleep 1000", max_seconds=0.2)[0]
    assert host.wait_for_end(machine).end_reason is EndReason.TERMINATED


@linux_only
def test_a_machine_whose_supervisor_is_killed_is_ended_before_it_is_called_lost(host):
    machine = host.launch("(setsid sleep 1000 &); (setsid setsid sleep 1000 &); echo up; sleep 1000")[0]
    host.wait_for_console(machine, "up")
    pids = processes_of(machine)
    os.kill(machine.supervisor().pid, signal.SIGKILL)
    host.wait_until(lambda: is_free(machine))
    assert set(marked_processes(MARK, machine.mark)) == pids
    instance = host.instance(machine)
    assert (instance.state, instance.end_reason) == (InstanceState.ENDED, EndReason.LOST)
    assert living(pids) == set()
    assert not machine.node_directory.exists()


@linux_only
def test_an_end_that_the_supervisor_did_not_finish_keeps_its_reason(host):
    machine = host.launch("sleep 1000")[0]
    os.kill(machine.supervisor().pid, signal.SIGKILL)
    host.wait_until(lambda: is_free(machine))
    machine.write_state(MachineState(state=InstanceState.SHUTTING_DOWN, end_reason=EndReason.RECLAIMED))
    assert host.instance(machine).end_reason is EndReason.RECLAIMED


def test_a_supervisor_that_is_told_to_stop_takes_the_machine_along(host):
    machine = host.launch("sleep 1000")[0]
    os.kill(machine.supervisor().pid, signal.SIGTERM)
    host.wait_until(lambda: is_free(machine))
    assert machine.state().state is InstanceState.ENDED
    assert machine.state().end_reason is EndReason.LOST


def test_a_machine_ends_with_its_directory(host):
    machine = host.launch("echo up; sleep 1000")[0]
    host.wait_for_console(machine, "up")
    moved = machine.path.rename(machine.path.parent / ".moved")
    host.wait_until(lambda: marked_processes(MARK, machine.mark) == ())
    host.wait_until(lambda: is_free(type(machine)(moved)))
    assert machine.arena is None or not machine.arena.exists()


def test_a_machine_without_a_supervisor_ends_itself_by_shutdown(host):
    machine = host.launch("echo up; while ! test -e leave; do sleep 0.02; done; shutdown; sleep 1000")[0]
    shim = machine.path / "bin" / "shutdown"
    text = shim.read_text()
    assert text.count("sleep 10\n") == 1
    shim.write_text(text.replace("sleep 10\n", "sleep 0.1\n"))
    host.wait_for_console(machine, "up")
    os.kill(machine.supervisor().pid, signal.SIGKILL)
    host.wait_until(lambda: is_free(machine))
    (machine.path / "leave").touch()
    host.wait_until(lambda: machine.state().state is InstanceState.ENDED)
    assert machine.state().end_reason is EndReason.SELF
    host.wait_until(lambda: marked_processes(MARK, machine.mark) == ())


def test_an_ended_machine_keeps_its_console_and_loses_its_disk(host):
    script = (
        'mkdir -p "$CLOUDSPOT_NODE_DIR"/a; touch ~/b "$TMPDIR"/c "$CLOUDSPOT_ARENA"/d; chmod 0 ~; shutdown'
    )
    machine = host.launch(script if sys.platform == "linux" else "shutdown")[0]
    host.wait_for_end(machine)
    assert [path for path in machine.disk if path.exists()] == []
    assert machine.console.exists()


def test_a_planned_reclaim_comes_after_its_seconds(host):
    options = LocalOptions(reclaims=(Reclaim(after_seconds=0.2, notice=0.0),))
    machine = host.launch("sleep 1000", options=options)[0]
    assert host.wait_for_end(machine).end_reason is EndReason.RECLAIMED


def test_a_planned_reclaim_comes_when_its_step_has_begun(host):
    options = LocalOptions(reclaims=(Reclaim(rank=1, after_steps=40, notice=0.0),))
    machines = host.launch("sleep 1000", num_nodes=2, options=options)
    for machine in machines:
        for generation, step in ((1, 12), (2, 39)):
            directory = machine.node_directory / "generations" / str(generation)
            directory.mkdir(parents=True)
            handoff.progress_path(directory, 1).write_bytes(handoff.PROGRESS.pack(step, 100, step + 1))
    assert [host.instance(machine).state for machine in machines] == [InstanceState.RUNNING] * 2
    for machine in machines:
        path = handoff.progress_path(machine.node_directory / "generations" / "2", 1)
        path.write_bytes(handoff.PROGRESS.pack(40, 100, 41))
    assert host.wait_for_end(machines[1]).end_reason is EndReason.RECLAIMED
    assert host.instance(machines[0]).state is InstanceState.RUNNING


def test_a_random_reclaim_comes(host):
    options = LocalOptions(random_reclaims=RandomReclaims(mean=0.01, notice=0.0))
    machine = host.launch("sleep 1000", options=options)[0]
    assert host.wait_for_end(machine).end_reason is EndReason.RECLAIMED


def is_free(machine) -> bool:
    with try_lock(machine.lock) as free:
        return free


def test_a_machine_has_one_mark_however_its_directory_is_named_and_no_other_has_it(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "one")
    paths = [tmp_path / "one" / "i-1", tmp_path / "link" / "i-1", tmp_path / "two" / ".." / "one" / "i-1"]
    assert len({MachineDirectory(path).mark for path in paths}) == 1
    here, there = paths[0], tmp_path / "two" / "i-1"
    assert MachineDirectory(here).mark != MachineDirectory(there).mark
