"""Emulated machines, isolated: real namespaces, a real boot, the real metadata addresses."""

from __future__ import annotations

import gzip
import ipaddress
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from cloudspot_toy import ToyCloud
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot.emulation.cloud import EmulatedMachine
from cloudspot.emulation.local_machine_host import emulated
from cloudspot.local.machine_records import PlannedReclaim
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.processes import machine_processes
from cloudspot.model import EndReason, InstanceState, Market
from cloudspot.train import handoff

pytestmark = pytest.mark.full


enclosed = pytest.mark.enclosed


class Lab:
    """A toy cloud's host, and waiting for what its machines do."""

    def __init__(self, host, wait_until):
        self.host = host
        self.wait_until = wait_until

    def boot(self, script: str, *, name: str = "i-1", **arguments) -> str:
        """Start a machine with a bash script and return its address."""
        user_data = f"#!/bin/bash\n{script}\n".encode()
        self.host.start(EmulatedMachine(id=name, user_data=user_data, **arguments))
        return self.host.states()[name].address

    def wait_for_console(self, text: str, *, name: str = "i-1") -> str:
        """Wait for the text, and return all that the user data has printed."""
        self.wait_until(lambda: text in self.host.console(name))
        return self.console(name).partition("init: ")[0]

    def console(self, name: str = "i-1") -> str:
        """Return the console without what is said there of a host whose directories hold other mounts."""
        lines = self.host.console(name).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("guest: what is in "))

    def wait_for_end(self, *, name: str = "i-1"):
        self.wait_until(lambda: self.host.states()[name].state is InstanceState.ENDED)
        return self.host.states()[name]


@pytest.fixture
def lab(tmp_path, wait_until):
    """``with lab() as it``: to be entered inside, by a test marked ``enclosed``."""

    @contextmanager
    def make(**arguments):
        with emulated(ToyCloud(), tmp_path / "toy", is_isolated=True, **arguments) as host:
            yield Lab(host, wait_until)

    return make


@enclosed
def test_a_machine_boots_its_user_data_with_what_its_image_sets(lab):
    with lab() as it:
        address = it.boot(
            'echo I am $(hostname) $$ ${HOME-without a home} at $PWD; echo "$SAID"; echo $TOY_ENDPOINT; env; echo up',
            environment={"SAID": "by the machine"},
        )
        console = it.wait_for_console("up\n")
        assert f"I am ip-{address.replace('.', '-')} " in console
        assert "without a home at /\n" in console
        assert "by the machine\n" in console
        assert it.host.states()["i-1"].state is InstanceState.RUNNING


@enclosed
def test_a_machine_writes_to_what_it_shares_with_its_host_and_sees_what_is_written_there(lab, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    with lab() as it:
        it.boot(
            "echo from inside >/mnt/volume/in; until cat /mnt/volume/out 2>/dev/null; do sleep 0.05; done; echo up",
            shared={"/mnt/volume": str(shared)},
        )
        it.wait_until((shared / "in").exists)
        (shared / "out").write_text("from outside\n")
        assert "from outside\n" in it.wait_for_console("up\n")
        assert (shared / "in").read_text() == "from inside\n"


@enclosed
def test_a_machine_starts_with_the_disk_of_another(lab):
    written = (
        "/usr/local/written",
        "/root/written",
        "/var/lib/cloudspot/written",
        "/var/log/written",
        "/home/w",
    )
    with lab() as it:
        it.boot(
            f"for f in {' '.join(written)} /tmp/written /dev/shm/written; do echo $f > $f; done;"
            "rm /usr/bin/factor; ln -s nowhere /srv/link; chmod 600 /root/written; echo up"
        )
        it.wait_for_console("up\n")
        disk = it.host.save_disk("i-1")
        it.host.terminate("i-1")
        it.boot(
            f"cat {' '.join(written)}; ls /tmp /dev/shm /usr/bin/factor; readlink /srv/link;"
            "stat -c %a /root/written; echo more >> /root/written; echo up",
            name="i-2",
            disk=disk,
        )
        lines = it.wait_for_console("up\n", name="i-2").splitlines()
        assert lines[: len(written)] == list(written)
        assert "ls: cannot access '/usr/bin/factor': No such file or directory" in lines
        assert lines[-3:] == ["nowhere", "600", "up"]
        assert "/tmp/written" not in lines
        it.boot("cat /root/written; echo up", name="i-3", disk=disk)
        assert it.wait_for_console("up\n", name="i-3") == "/root/written\nup\n"


@enclosed
def test_nothing_of_the_submitters_environment_or_home_reaches_a_machine(lab, monkeypatch, tmp_path):
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text("hunter2")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with lab() as it:
        it.boot(f"env; ls -a {home} ~root 2>&1; cat {home}/.aws/credentials 2>&1; ps -ef; echo up")
        console = it.wait_for_console("up\n")
        assert "hunter2" not in console
        assert "No such file" in console
        assert "bin/pytest" not in console


@enclosed
def test_the_metadata_answer_at_the_real_addresses_and_names(lab):
    with lab() as it:
        it.boot(
            "curl -s http://169.254.169.254/facts; echo; curl -s http://100.100.100.200/tags; echo;"
            "curl -s http://metadata.toy.internal/facts; echo; echo up",
            metadata={"type": "toy.large"},
            tags={"Name": "ü"},
        )
        lines = it.wait_for_console("up\n").splitlines()
        assert lines == ['{"type": "toy.large"}', '{"Name": "\\u00fc"}', '{"type": "toy.large"}', "up"]


@enclosed
def test_tags_change_while_the_machine_runs_and_a_long_poll_sees_it(lab):
    with lab() as it:
        it.boot("curl -s 169.254.169.254/tags; curl -s 169.254.169.254/change 169.254.169.254/tags; echo .")
        it.wait_for_console("{}")
        numbers = itertools.count()
        it.wait_until(
            lambda: it.host.set_tags("i-1", {"N": str(next(numbers))}) or "}.\n" in it.host.console("i-1")
        )
        assert re.match(r'{}changed{"N": "\d+"}\.\n', it.console())


@enclosed
@pytest.mark.parametrize("user_data", [b"", b"#cloud-config\nruncmd: [echo ran]\n", b"echo ran\n"])
def test_what_is_no_script_is_not_run(lab, user_data):
    with lab() as it:
        it.host.start(EmulatedMachine(id="i-1", user_data=user_data))
        it.wait_for_console("user data")
        assert "ran" not in it.host.console("i-1")
        assert it.host.states()["i-1"].state is InstanceState.RUNNING


@enclosed
def test_gzipped_user_data_is_run(lab):
    with lab() as it:
        it.host.start(EmulatedMachine(id="i-1", user_data=gzip.compress(b"#!/bin/sh\necho unpacked\n")))
        it.wait_for_console("unpacked\n")


@enclosed
def test_a_bare_image_has_python_and_curl_and_no_cloudspot(lab):
    with lab() as it:
        it.boot(
            "python3 -c 'import cloudspot' && echo has it; command -v curl python3; echo up", is_bare=True
        )
        console = it.wait_for_console("up\n")
        assert "has it" not in console
        assert "/curl" in console
        assert "/python3" in console
        it.boot("python3 -c 'import cloudspot; print(cloudspot.__name__)'; echo up", name="i-2")
        assert it.wait_for_console("up\n", name="i-2") == "cloudspot\nup\n"


SAYS = "2>&1 | tail -n 1"
"""Of a Python's error, its last line."""


@enclosed
def test_a_bare_images_other_python_has_its_packages_and_no_cloudspot(lab):
    with lab() as it:
        it.boot(
            "/opt/torch/python -c 'import msgspec; print(msgspec.__name__)';"
            f"/opt/torch/python -c 'import cloudspot.train' {SAYS}; /opt/torch/python -c 'import click' {SAYS}; echo up",
            is_bare=True,
            packages=("msgspec",),
            programs={"/opt/torch/python": sys.executable},
        )
        found = it.wait_for_console("up\n")
        assert found == (
            "msgspec\nModuleNotFoundError: No module named 'cloudspot'\n"
            "ModuleNotFoundError: No module named 'click'\nup\n"
        )


@enclosed
def test_a_machine_has_the_packages_of_its_image_and_none_of_this_hosts_others(lab):
    with lab() as it:
        it.boot(
            "python -c 'import cloudspot, click, msgspec'; python -m pip --version | cut -c 1-4;"
            f"python -c 'import pytest' {SAYS}; command -v pytest; python -m pip list 2>/dev/null | grep -ci pytest;"
            "python -c 'import werkzeug' 2>&1 | tail -n 1; echo up",
            packages=("pip",),
        )
        console = it.wait_for_console("up\n")
        missing = "ModuleNotFoundError: No module named"
        assert console == f"pip \n{missing} 'pytest'\n0\n{missing} 'werkzeug'\nup\n"


@enclosed
def test_a_machine_installs_from_its_clouds_index_what_this_host_has(lab):
    install = "python -m pip install --disable-pip-version-check --quiet"
    with lab() as it:
        it.boot(
            f"{install} pytest && python -c 'import pytest, iniconfig; print(pytest.__version__)' && pytest --version;"
            f"{install} no-such-project {SAYS};"
            f"python -m venv /root/own && /root/own/bin/{install} iniconfig && /root/own/bin/python -c 'import iniconfig';"
            "echo up",
            packages=("pip",),
        )
        it.boot(f"python -c 'import pytest' {SAYS}; echo up", name="i-2", packages=("pip",))
        version = pytest.__version__
        said = "ERROR: No matching distribution found for no-such-project"
        assert it.wait_for_console("up\n") == f"{version}\npytest {version}\n{said}\nup\n"
        found = it.wait_for_console("up\n", name="i-2")
        assert found == "ModuleNotFoundError: No module named 'pytest'\nup\n"


@enclosed
@pytest.mark.parametrize(
    "command", ["shutdown -h now", "poweroff", "systemctl poweroff", "/sbin/shutdown -h now"]
)
def test_a_machine_shuts_itself_down_and_the_cloud_hears_of_it(lab, command):
    if command.startswith("/") and not Path("/sbin/shutdown").exists():
        pytest.skip("this host has no /sbin/shutdown")
    with lab() as it:
        it.boot(f"trap 'echo asked to leave; exit' TERM; {command}; sleep 1000 & wait")
        end = it.wait_for_end()
        assert end.end_reason is EndReason.SELF, it.host.console("i-1")
        assert "asked to leave\n" in it.host.console("i-1")


@enclosed
def test_a_terminated_machine_leaves_no_process_and_says_no_farewell(lab):
    with lab() as it, socket.create_server((it.host.address, 0)) as server:
        port = server.getsockname()[1]
        it.boot(f"(setsid sleep 1000 &); exec 3<>/dev/tcp/{it.host.address}/{port}; echo up >&3; sleep 1000")
        connection, _ = server.accept()
        assert connection.recv(100) == b"up\n"
        it.host.terminate("i-1")
        it.host.terminate("i-1")
        assert it.wait_for_end().end_reason is EndReason.TERMINATED
        # A killed program's kernel would close the connection; a machine that is gone closes nothing.
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(100)
        assert "sleep" not in subprocess.run(["ps", "-e"], capture_output=True, text=True).stdout
        assert not it.host.directory("i-1").system.exists()


@enclosed
def test_a_reclaim_is_announced_and_comes(lab):
    with lab() as it:
        it.boot("until curl -sf 169.254.169.254/notice; do sleep 0.05; done; echo; sleep 1000")
        it.wait_until(lambda: it.host.states()["i-1"].state is InstanceState.RUNNING)
        it.host.reclaim("i-1", notice_seconds=3600.0)
        it.wait_for_console("terminate\n")
        assert it.host.states()["i-1"].notice_deadline is not None
        it.host.reclaim("i-1", notice_seconds=0.1)
        assert it.wait_for_end().end_reason is EndReason.RECLAIMED


@enclosed
def test_a_planned_reclaim_comes_when_the_share_of_the_steps_has_begun(lab):
    plan = (PlannedReclaim(after_share=0.5, notice_seconds=0.0),)
    with lab(plan=lambda machine: plan if machine.market is Market.SPOT else ()) as it:
        for name, market in (("i-1", Market.SPOT), ("i-2", Market.ON_DEMAND)):
            it.boot("echo up; sleep 1000", name=name, market=market)
            it.wait_for_console("up\n", name=name)
            directory = it.host.directory(name).node_directory / "generations" / "000001"
            directory.mkdir(parents=True)
            handoff.progress_path(directory, 0).write_bytes(handoff.PROGRESS.pack(50, 100, 51))
        assert it.wait_for_end().end_reason is EndReason.RECLAIMED
        assert it.host.states()["i-2"].state is InstanceState.RUNNING


@enclosed
def test_machines_reach_each_other_by_address_and_by_name(lab):
    with lab() as it:
        script = "python3 -m http.server 8000 --bind $(hostname) --directory /run/machine & wait"
        address = it.boot(script)
        for name, peer in (("i-2", address), ("i-3", f"ip-{address.replace('.', '-')}")):
            it.boot(
                f"until curl -sf http://{peer}:8000/init.sh >/dev/null; do sleep 0.1; done; echo met",
                name=name,
            )
            it.wait_for_console("met\n", name=name)


@enclosed
def test_a_machine_sees_no_network_but_its_clouds(lab):
    with lab() as it, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        it.boot(
            f"curl -sS -m 5 http://127.0.0.1:{port}; curl -sS -m 5 http://192.0.2.1; curl -sS -m 5 http://pypi.org; echo up"
        )
        console = it.wait_for_console("up\n")
        assert console.count("curl: (7)") == 2
        assert console.count("curl: (6)") == 1


@enclosed
def test_a_killed_supervisor_takes_its_machine_along(lab):
    with lab() as it:
        it.boot("echo up; (setsid sleep 1000 &); sleep 1000")
        it.wait_for_console("up\n")
        os.kill(it.host.directory("i-1").supervisor().pid, signal.SIGKILL)
        assert it.wait_for_end().end_reason is EndReason.LOST
        it.wait_until(
            lambda: "sleep" not in subprocess.run(["ps", "-e"], capture_output=True, text=True).stdout
        )


@enclosed
def test_a_machine_ends_with_whoever_holds_it(lab, tmp_path):
    with lab() as it:
        it.boot("echo up; sleep 1000")
        it.wait_for_console("up\n")
        it.host._owner.close()
        assert it.wait_for_end().end_reason is EndReason.LOST


@enclosed
def test_a_machines_private_directories_are_its_own(lab):
    # What the machine's Python runs from is there too, where these tests are installed below /tmp.
    installed = Path(sys.prefix).parts[2:3] if Path(sys.prefix).is_relative_to("/tmp") else ()
    names = "\n".join(sorted({"mine", *installed}))
    with lab() as it:
        write = "touch /tmp/mine /dev/shm/mine /run/mine /var/lib/cloudspot/mine; ls /tmp /dev/shm; cat /etc/resolv.conf; echo up"
        for name in ("i-1", "i-2"):
            it.boot(write, name=name, is_bare=True)
            console = it.wait_for_console("up\n", name=name)
            assert console == f"/dev/shm:\nmine\n\n/tmp:\n{names}\nup\n"
        assert (it.host.directory("i-1").node_directory / "mine").exists()
        assert not Path("/tmp/mine").exists()


@enclosed
def test_a_host_refuses_what_no_cloud_can_mean(lab):
    with lab() as it:
        it.boot("sleep 1000", address="10.77.1.5")
        for wrong in (
            {"name": "i-1"},
            {"name": "i-2", "address": "10.78.0.5"},
            {"name": "i-2", "address": "10.77.0.1"},
            {"name": "i-2", "address": "10.77.1.5"},
            {"name": "../i"},
        ):
            with pytest.raises(ValueError, match="machine"):
                it.boot("true", **wrong)
        assert list(it.host.states()) == ["i-1"]


@enclosed
def test_an_address_is_given_again_after_its_machines_end_and_found_at_once(lab):
    with lab() as it:
        serve = "python3 -m http.server 8000 --bind 10.77.3.3 & wait"
        it.boot(serve, name="i-1", address="10.77.3.3")
        poll = "while :; do until curl -sf -m 1 http://10.77.3.3:8000/ >/dev/null; do sleep 0.05; done; echo met $((++n)); sleep 0.1; done"
        it.boot(poll, name="i-2")
        it.wait_for_console("met", name="i-2")
        it.host.terminate("i-1")
        it.wait_for_end()
        before = it.host.console("i-2").count("met")
        it.boot(serve, name="i-3", address="10.77.3.3")
        it.wait_for_console(f"met {before + 2}", name="i-2")


def test_without_namespaces_the_machines_have_addresses_of_loopback(tmp_path, wait_until):
    with emulated(ToyCloud(), tmp_path / "toy", is_isolated=False) as host:
        it = Lab(host, wait_until)
        address = it.boot("curl -s $TOY_METADATA/facts; echo; echo $TOY_ENDPOINT; echo up", metadata={"a": 1})
        assert ipaddress.IPv4Address(address) in ipaddress.IPv4Network(host.network)
        assert it.wait_for_console("up\n").startswith(f'{{"a": 1}}\nhttp://{host.address}:')
        it.boot("shutdown -h now; sleep 1000", name="i-2")
        assert it.wait_for_end(name="i-2").end_reason is EndReason.SELF
        host.reclaim("i-1", notice_seconds=0.0)
        assert it.wait_for_end().end_reason is EndReason.RECLAIMED


def test_clouds_on_one_loopback_share_no_address_and_end_only_their_own_machines(tmp_path, wait_until):
    script = (
        'curl -s $TOY_METADATA/facts; echo; touch "$TMPDIR"/here "$CLOUDSPOT_ARENA"/here; echo up; sleep 1000'
    )
    with (
        emulated(ToyCloud(), tmp_path / "one", is_isolated=False) as one,
        emulated(ToyCloud(), tmp_path / "two", is_isolated=False) as two,
    ):
        addresses = []
        for number, host in enumerate((one, two)):
            addresses.append(Lab(host, wait_until).boot(script, metadata={"cloud": number}))
        for number, host in enumerate((one, two)):
            assert Lab(host, wait_until).wait_for_console("up\n") == f'{{"cloud": {number}}}\nup\n'
        assert addresses[0] != addresses[1]
        one.terminate("i-1")
        assert Lab(one, wait_until).wait_for_end().end_reason is EndReason.TERMINATED
        assert not one.directory("i-1").temporary.exists()
        kept = two.directory("i-1")
        assert two.states()["i-1"].state is InstanceState.RUNNING
        assert [(path / "here").exists() for path in (kept.temporary, kept.arena)] == [True, True]
        assert machine_processes(kept.mark) != set()


def test_the_addresses_of_a_cloud_are_free_only_when_its_last_machine_has_ended(tmp_path, wait_until):
    with emulated(ToyCloud(), tmp_path / "one", is_isolated=False) as one:
        it = Lab(one, wait_until)
        it.boot("echo up; sleep 1000")
        it.wait_for_console("up\n")
        supervisor = one.directory("i-1").supervisor().pid
        os.kill(supervisor, signal.SIGSTOP)
        one._owner.close()  # as when its process is killed
        try:
            with emulated(ToyCloud(), tmp_path / "two", is_isolated=False) as two:
                assert two.network != one.network
        finally:
            os.kill(supervisor, signal.SIGCONT)
        assert it.wait_for_end().end_reason is EndReason.LOST


@pytest.mark.parametrize("is_isolated", [pytest.param(True, marks=enclosed), False])
def test_what_an_image_has_below_opt_is_called_by_its_path(tmp_path, wait_until, is_isolated):
    program = Path("/bin/echo")
    if not is_isolated:  # they see all of the host
        program = tmp_path / "the program & more"
        program.symlink_to("/bin/echo")
    with emulated(ToyCloud(), tmp_path / "toy", is_isolated=is_isolated) as host:
        it = Lab(host, wait_until)
        script = 'export P=/opt/of-the.image/bin/program\n"$P" called with 1; ! /opt/of-the.image/bin/program3; echo up'
        it.boot(script, programs={"/opt/of-the.image/bin/program": str(program)})
        console = it.wait_for_console("up\n")
        assert "called with 1\n" in console
        assert "program3: No such file" in console


class PoliteCloud(ToyCloud):
    """Presses the power button two seconds before it takes a machine."""

    shutdown_seconds = 2.0
    fetch_shutdown_script = 'curl -sf "$METADATA_URL/at-end"'


@pytest.mark.parametrize("is_isolated", [pytest.param(True, marks=enclosed), False])
def test_a_reclaim_is_first_a_notice_then_the_power_button_and_a_script_then_the_end(
    tmp_path, wait_until, is_isolated
):
    where = "http://169.254.169.254" if is_isolated else "$TOY_METADATA"
    script = f"echo up; until curl -sf {where}/notice; do sleep 0.05; done; echo; while echo work; do sleep 0.1; done"
    at_end = f"#!/bin/bash\necho going; sleep {0.5 if is_isolated else 1000}\n"
    with emulated(PoliteCloud(), tmp_path / "toy", is_isolated=is_isolated) as host:
        it = Lab(host, wait_until)
        it.boot(script, tags={"at-end": at_end})
        it.wait_for_console("up\n")
        host.reclaim("i-1", notice_seconds=6.0)
        end = it.wait_for_end()
        assert end.end_reason is EndReason.RECLAIMED
        lines = it.console().splitlines()
        # A machine that is not isolated cannot shut down: it is ended.
        off = ["init: powering off"] if is_isolated else []
        told = ["up", "terminate", *off, "init: the shutdown script runs", "going"]
        assert [line for line in lines if line != "work"][: len(told)] == told
        assert (end.ended_at < end.notice_deadline) == is_isolated
        assert "work" in lines[lines.index("going") :]  # who does not listen is not stopped before its end


@enclosed
def test_the_power_button_is_pressed_at_once_where_the_notice_is_shorter_and_its_script_is_limited(
    tmp_path, wait_until
):
    with emulated(PoliteCloud(), tmp_path / "toy", is_isolated=True) as host:
        it = Lab(host, wait_until)
        it.boot("echo up; sleep 1000", tags={"at-end": "#!/bin/sh\necho going\nexec sleep 1000\n"})
        it.wait_for_console("up\n")
        host.reclaim("i-1", notice_seconds=1.5)
        end = it.wait_for_end()
        assert (end.end_reason, end.ended_at >= end.notice_deadline) == (EndReason.RECLAIMED, True)
        assert "going\n" in host.console("i-1")


@enclosed
@pytest.mark.parametrize("at_end", ["#!/bin/sh\necho going\n", "echo no script\n", ""])
def test_a_machine_that_shuts_itself_down_runs_its_shutdown_script_if_it_has_one(
    tmp_path, wait_until, at_end
):
    with emulated(PoliteCloud(), tmp_path / "toy", is_isolated=True) as host:
        it = Lab(host, wait_until)
        it.boot("shutdown -h now; sleep 1000", tags={"at-end": at_end})
        assert it.wait_for_end().end_reason is EndReason.SELF
        has_run = "init: the shutdown script ended with status 0" in host.console("i-1")
        assert has_run == at_end.startswith("#!")


INSIDE = """
import subprocess, sys, time
from pathlib import Path
from cloudspot.local.enclosure import run_enclosed
from cloudspot.emulation.cloud import EmulatedMachine
from cloudspot.emulation.local_machine_host import emulated
from cloudspot_toy import ToyCloud

def main():
    with emulated(ToyCloud(), Path(sys.argv[1]), is_isolated=True) as host:
        host.start(EmulatedMachine(id="i-1", user_data=b"#!/bin/bash\\necho up; sleep 987654321\\n"))
        while "up" not in host.console("i-1"):
            time.sleep(0.05)
        print("up", flush=True)
        time.sleep(1000)

run_enclosed(main)
"""


@needs_isolated_machines
def test_nothing_is_left_of_a_host_that_is_killed(tmp_path, wait_until):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "plugins" / "toy")}
    namespaces = len(list(Path("/sys/class/net").iterdir()))
    process = subprocess.Popen(
        [sys.executable, "-c", INSIDE, str(tmp_path / "toy")],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(60.0, process.kill)
    timer.start()
    assert process.stdout.readline() == "up\n"
    timer.cancel()
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: sleepers() == [])
    assert len(list(Path("/sys/class/net").iterdir())) == namespaces
    assert not MachineDirectory(tmp_path / "toy" / "machines" / "i-1").arena.exists()


def sleepers() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"987654321" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
