"""What a machine, and COMMAND beside it, cannot do to the host, whoever runs the sandbox."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cloudspot_toy import ToyCloud
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot.emulation.cloud import EmulatedMachine
from cloudspot.emulation.local_machine_host import emulated
from cloudspot.local import namespaces
from cloudspot.local.enclosure import fork, run_enclosed, stand_in_for

pytestmark = pytest.mark.full


enclosed = pytest.mark.enclosed
ATTEMPTS = Path(__file__).with_name("host_attacks.py")
SLEEP = "86399.25"
"""What the host's process sleeps that is looked for."""
KERNEL = {
    *("change a kernel setting", "load a module", "set the clock", "change the host's name"),
    *("make a disk device", "reach the control groups", "get the host's namespaces"),
    *("find a host's process", "find a host's network interface"),
}
"""What COMMAND cannot do either."""


@pytest.fixture
def sleeper():
    """A process of the host, which has to be there after the test."""
    process = subprocess.Popen(["sleep", SLEEP])
    yield
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.fixture
def machine(tmp_path, wait_until):
    """``machine(script)``: boot one with a bash script, and return what it prints until ``up``; inside."""

    def run(script: str, directory: Path = tmp_path, **arguments) -> str:
        with emulated(ToyCloud(), directory / "toy", is_isolated=True) as host:
            user_data = f"#!/bin/bash\n{script}\necho up\n".encode()
            host.start(EmulatedMachine(id="i-1", user_data=user_data, **arguments))
            wait_until(lambda: "init: the user data ended" in host.console("i-1"))
            console, sign, _ = host.console("i-1").partition("up\n")
            assert sign, console
            return console

    return run


def disks() -> list[int]:
    """Return the device numbers of the host's disks."""
    return [path.stat().st_rdev for path in Path("/dev").iterdir() if stat.S_ISBLK(path.stat().st_mode)]


@enclosed
def test_a_machine_can_neither_read_nor_change_what_is_the_hosts(machine, tmp_path, sleeper):
    kept = tmp_path / "kept"
    kept.write_text("the host's")
    asked = json.dumps({"file": str(kept), "disks": disks(), "sleep": SLEEP})
    script = ATTEMPTS.read_text()
    console = machine(f"cat >/tmp/attack <<'END'\n{script}\nEND\npython3 /tmp/attack {shlex.quote(asked)}")
    found = json.loads(console.splitlines()[-1])
    # A name of its own it may have.
    assert {name for name, answer in found.items() if answer != "refused"} == {"change the host's name"}
    assert len(found) > 25
    assert socket.gethostname() != "attacked"
    assert kept.read_text() == "the host's"


@enclosed
def test_what_a_machine_writes_or_removes_anywhere_stays_with_it(machine, tmp_path):
    name = f"cloudspot-{secrets.token_hex(8)}"
    installed = Path(sys.prefix) if os.access(sys.prefix, os.W_OK) else tmp_path
    places = ["/", "/boot", "/etc", "/home", "/opt", "/root", "/srv", "/tmp", "/usr", "/var", "/var/tmp"]
    places += ["/usr/bin", "/usr/local/lib", "/var/lib", "/var/log", str(tmp_path), str(installed)]
    paths = [Path(place, name) for place in places]
    kept = installed / f"{name}-kept"
    kept.touch()
    write = f"cp /bin/sh $place/{name} && chmod 4755 $place/{name}"
    try:
        console = machine(
            f"rm -f {kept}; ls {kept} || echo removed\n"
            f"for place in {' '.join(places)}; do mkdir -p $place; {write} && echo wrote $place; done 2>&1"
        )
        assert [path for path in paths if path.exists()] == []
        assert kept.exists()
    finally:
        for path in (kept, *paths):
            path.unlink(missing_ok=True)
    expected = {"removed", *(f"wrote {place}" for place in places)}
    if " 1\n" in Path("/proc/self/uid_map").read_text():  # not run by root: the host's root owns these
        expected -= {f"wrote {place}" for place in ("/usr/bin", "/usr/local/lib")}
    assert expected <= set(console.splitlines()), console
    # Nobody else of the host comes to where it wrote.
    assert stat.S_IMODE((tmp_path / "toy" / "machines" / "i-1").stat().st_mode) == 0o700


@enclosed
def test_where_the_disk_cannot_hold_what_a_machine_changes_the_hosts_directories_are_read_only(
    machine, tmp_path
):
    for name in ("lower", "upper/files", "upper/work", "disk"):
        (tmp_path / name).mkdir(parents=True)
    # An overlay cannot lie under an overlay's changes, as in containers.
    disk = tmp_path / "disk"
    namespaces.mount_overlay(disk, [tmp_path / "lower"], upper=tmp_path / "upper")
    installed = Path(msgspec.__file__).parent
    console = machine(
        f"for place in /etc/init.d /usr/bin {installed} /var/tmp /; do touch $place/written && echo wrote $place; done 2>&1\n"
        "cat /etc/shadow /etc/resolv.conf\n"
        "python -c 'import msgspec, pytest'",
        disk,
    )
    assert "guest: the content of /usr is read-only: " in console
    # An image has no more packages there.
    assert "ModuleNotFoundError: No module named 'pytest'" in console
    assert [line for line in console.splitlines() if line.startswith("wrote")] == [
        "wrote /var/tmp",
        "wrote /",
    ]
    assert "/etc/shadow: No such file" in console


@needs_isolated_machines
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork; it is a fresh start here
def test_what_is_mounted_among_the_hosts_programs_is_there_and_read_only(machine, tmp_path):
    if not Path("/opt").is_dir():
        pytest.skip("this host has no /opt")

    def be_host() -> int:
        namespaces.become_root()
        namespaces.unshare(namespaces.NEW_MOUNTS)
        namespaces.keep_mounts_to_ourselves()
        namespaces.mount_memory(Path("/opt"))
        inner = Path("/opt", "a driver")
        inner.mkdir()
        namespaces.mount_memory(inner)
        (inner / "library").write_text("of the driver\n")
        Path("/opt/link").symlink_to("a driver/library")
        return run_enclosed(boot)

    def boot() -> int:
        script = "cat /opt/link; cd '/opt/a driver' && touch new && echo written; /opt/a.tool/bin/tool said"
        (tmp_path / "console").write_text(machine(script, programs={"/opt/a.tool/bin/tool": "/bin/echo"}))
        return 0

    assert stand_in_for(fork(be_host)) == 0
    console = (tmp_path / "console").read_text()
    assert "guest: the content of /opt is read-only: " in console
    assert "of the driver\n" in console
    assert "written" not in console
    assert console.endswith("said\n")


@enclosed
def test_command_sees_the_hosts_files_but_changes_nothing_of_its_kernel(tmp_path, sleeper):
    kept = tmp_path / "kept"
    kept.write_text("the host's")
    asked = json.dumps({"file": str(kept), "disks": disks(), "sleep": SLEEP})
    done = subprocess.run([sys.executable, str(ATTEMPTS), asked], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {name for name in KERNEL if found[name] != "refused"} == set()
    assert found["read a file of the host"] == "done"
    assert os.access(tmp_path, os.W_OK)
