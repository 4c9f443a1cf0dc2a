"""The first process of an isolated machine: ``python -m cloudspot.local.guest <directory> <network>``.

Makes the machine's own view of the host - its name, its processes, its files where they must differ -
and becomes the machine's init. The supervisor starts it, and the machine ends with the supervisor;
``network`` is the descriptor of the machine's network namespace.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cloudspot.local import namespaces
from cloudspot.local.machine_records import Guest
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.processes import MARK

PROGRAMS = Path("/run/machine")
"""Where the machine finds its init and its power switch."""
SCRIPTS = Path("/var/lib/cloud/instance/scripts")
"""Where cloud-init keeps what it runs."""
_FETCH, _FETCH_AT_END = "fetch-user-data", "fetch-shutdown-script"
_OPTIONAL = Path("/opt")
_SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_POWER_SWITCHES = ("shutdown", "poweroff", "halt", "systemctl")
_NO_PACKAGE = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)\n"
_POWER_SWITCH = """\
#!/bin/sh
# The machine's power switch.
name=${0##*/}
case "$name $*" in
    "shutdown "*-c*) exit 0 ;;
    "shutdown "*now*|"poweroff "*|"halt "*|"systemctl poweroff"*|"systemctl halt"*|"shutdown "*+0*) ;;
    "shutdown "*) (trap '' HUP; sleep 60; kill -s PWR 1) </dev/null >/dev/null 2>&1 & exit 0 ;;
    "systemctl "*) echo "systemctl: System has not been booted with systemd as init system." >&2; exit 1 ;;
esac
exec kill -s PWR 1
"""


def write_programs(directory: Path, guest: Guest) -> None:
    """Write the programs of a machine's init into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("init.sh"), directory / "init.sh")
    (directory / _FETCH).write_text(guest.fetch_user_data, encoding="utf-8")
    (directory / _FETCH_AT_END).write_text(guest.fetch_shutdown_script, encoding="utf-8")


def init_arguments(programs: Path, guest: Guest, *, url: str, scripts: Path, edits: str = "") -> list[str]:
    """Return the arguments of bash for the machine's init in ``programs``."""
    at_end = [str(programs / _FETCH_AT_END), f"{guest.shutdown_seconds:g}"]
    start = [str(programs / "init.sh"), url, str(programs / _FETCH), str(scripts), edits]
    return start + (at_end if guest.fetch_shutdown_script else [])


def main(directory: Path, network: int) -> int:
    """Become the machine; returns when its init has ended, with its status."""
    namespaces.die_with_parent()
    namespaces.enter(network, namespaces.NEW_NETWORK)
    kinds = (namespaces.NEW_MOUNTS, namespaces.NEW_PIDS, namespaces.NEW_HOST_NAME, namespaces.NEW_IPC)
    namespaces.unshare(sum(kinds))
    child = os.fork()
    if child == 0:
        try:
            namespaces.die_with_parent()
            _become_init(MachineDirectory(directory))
        except Exception:  # noqa: BLE001 # printed to the console, which is all that is left
            traceback.print_exc()
        finally:
            os._exit(1)
    # The machine's power button, for whoever started us.
    signal.signal(signal.SIGPWR, lambda *_: os.kill(child, signal.SIGPWR))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _become_init(machine: MachineDirectory) -> None:
    guest = machine.record().guest
    assert guest is not None
    assert guest.network is not None
    namespaces.keep_mounts_to_ourselves()
    socket.sethostname(guest.host_name)
    _furnish(machine, guest)
    namespaces.mount_proc()
    os.chdir("/")
    path = [str(PROGRAMS), *guest.image_path, *_SYSTEM_DIRECTORIES]
    own = {"PATH": os.pathsep.join(path), "LANG": "C.UTF-8"}
    environment = {**own, **guest.environment, MARK: machine.mark}
    url = f"http://{guest.service_addresses[0]}"
    arguments = init_arguments(PROGRAMS, guest, url=url, scripts=SCRIPTS)
    os.execve("/bin/bash", ["init", *arguments], environment)  # noqa: S606 # it is the shell


def _furnish(machine: MachineDirectory, guest: Guest) -> None:
    """Show the machine files of its own where they must not be the host's."""
    assert guest.network is not None
    system = machine.system
    memory = machine.arena
    assert memory is not None
    libraries = system / "var-lib"
    # (source, target); homes too, because the submitter's credentials lie there.
    shown = [
        (system / "tmp", Path("/tmp")),  # noqa: S108 # a place to mount on
        (system / "run", Path("/run")),
        (libraries, Path("/var/lib")),
        (memory, Path("/dev/shm")),  # noqa: S108 # as /tmp
        *((machine.home, home) for home in _homes()),
    ]
    for source, _ in shown:
        source.mkdir(mode=0o755, parents=True, exist_ok=True)
    (system / "tmp").chmod(0o1777)
    write_programs(system / "run" / PROGRAMS.name, guest)
    switch = system / "run" / PROGRAMS.name / "shutdown"
    for name in _POWER_SWITCHES:
        switch = switch.with_name(name)
        switch.write_text(_POWER_SWITCH, encoding="utf-8")
        switch.chmod(0o755)
    resolver = system / "resolv.conf"
    resolver.touch()
    (libraries / "cloudspot").mkdir(exist_ok=True)
    namespaces.bind(machine.node_directory, libraries / "cloudspot")
    for source, target in shown:
        _keep_visible(guest.visible, hidden=target, shown=source)
    if guest.programs and _OPTIONAL.is_dir():
        _add_programs(system / "opt", guest.programs)
        shown.append((system / "opt", _OPTIONAL))
    # To Python, an empty directory would be a package without modules.
    (system / "hidden").mkdir()
    (system / "hidden" / "__init__.py").write_text(_NO_PACKAGE, encoding="utf-8")
    no_package = os.open(system / "hidden", os.O_PATH | os.O_CLOEXEC)
    # Open all first: a source may lie under a directory that another one hides.
    covers: list[tuple[Path, Path]] = [(Path(guest.network.hosts), Path("/etc/hosts"))]
    covers.append((resolver, Path("/etc/resolv.conf")))
    covers += [(switch, path) for path in _power_switches()]
    covers += shown
    opened = [(os.open(source, os.O_PATH | os.O_CLOEXEC), target) for source, target in covers]
    for descriptor, target in opened:
        if target.exists():
            namespaces.bind(Path(f"/proc/self/fd/{descriptor}"), target)
    for package in map(Path, guest.hidden):
        if package.is_dir():
            namespaces.bind(Path(f"/proc/self/fd/{no_package}"), package)


def _add_programs(shown: Path, programs: Mapping[str, str]) -> None:
    """Fill ``shown`` with the programs and with what else ``/opt`` holds."""
    shown.mkdir()
    for name, target in programs.items():
        program = shown / Path(name).relative_to(_OPTIONAL)
        program.parent.mkdir(parents=True, exist_ok=True)
        # Not a link, because a Python that is called by one does not find its environment.
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(target)} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    for entry in _OPTIONAL.iterdir():
        if entry.is_dir() and not (shown / entry.name).exists():
            (shown / entry.name).mkdir()
            namespaces.bind(entry, shown / entry.name)


def _keep_visible(visible: Sequence[str], *, hidden: Path, shown: Path) -> None:
    """Show in ``shown`` the directories that would vanish with ``hidden``."""
    for name in visible:
        for path in dict.fromkeys((Path(name), Path(name).resolve())):
            if hidden in path.parents and path.is_dir():
                target = shown / path.relative_to(hidden)
                target.mkdir(parents=True, exist_ok=True)
                namespaces.bind(path, target)


def _homes() -> Iterable[Path]:
    """Return the home directories of this user, inside and outside of a user namespace."""
    covered = {Path(name) for name in ("/tmp", "/run", "/var/lib")}  # noqa: S108 # hidden themselves
    for home in dict.fromkeys((Path("/root"), Path.home())):
        if len(home.parts) > 1 and not covered & {home, *home.parents}:
            yield home


def _power_switches() -> Iterable[Path]:
    """Return the host's power switches, each file once."""
    paths = [Path(directory, name) for directory in _SYSTEM_DIRECTORIES[2:] for name in _POWER_SWITCHES]
    return dict.fromkeys(path.resolve() for path in paths if path.exists())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
