"""The first process of an isolated machine: ``python -m cloudspot.local.guest <directory> <network>``.

It creates the machine's view of the host (name, processes, files) and becomes the machine's init, in a user
namespace that cannot change the host. The supervisor starts it, and the machine ends together with the
supervisor; ``network`` is the descriptor of the machine's network namespace.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudspot.errors import CloudspotError
from cloudspot.host.partial_files import partial_directory
from cloudspot.local import namespaces
from cloudspot.local.machine_records import Guest
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.processes import MARK

PROGRAMS = Path("/run/machine")
"""The machine's directory that contains its init and its power switch."""
SCRIPTS = Path("/var/lib/cloud/instance/scripts")
"""The directory in which cloud-init stores the scripts that it runs."""
_FETCH, _FETCH_AT_END = "fetch-user-data", "fetch-shutdown-script"
_DISK_DIRECTORIES = (
    *("/home", "/srv"),
    *(f"/var/{name}" for name in ("cache", "lib", "local", "log", "mail", "opt", "spool")),
)
_OWN_DIRECTORIES = ("/dev", "/media", "/mnt", "/proc", "/root", "/run/lock", "/sys", *_DISK_DIRECTORIES)
_ANYBODYS_DIRECTORIES = ("/tmp", "/var/tmp")  # noqa: S108 # the machine's
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/ptmx": "pts/ptmx",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/var/lock": "../run/lock",
    "/var/run": "../run",
}
_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
_ACCELERATORS = ("accel*", "dri", "dxg", "infiniband", "kfd", "nvidia*")
_NETWORK_SETTINGS = {"ip_unprivileged_port_start": "0", "ping_group_range": "0 0"}
"""Settings that allow the machine to use any port and to ping, like root on a real machine."""
_RULES = ("sudoers", "sudoers.d")
"""Files that other users cannot read but that are not secret; programs of the machine need them."""
_SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_POWER_SWITCHES = ("shutdown", "poweroff", "halt", "systemctl")
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
    """Write the programs of the machine's init into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("init.sh"), directory / "init.sh")
    (directory / _FETCH).write_text(guest.fetch_user_data, encoding="utf-8")
    (directory / _FETCH_AT_END).write_text(guest.fetch_shutdown_script, encoding="utf-8")


def init_arguments(programs: Path, guest: Guest, *, url: str, scripts: Path, edits: str = "") -> list[str]:
    """Return the arguments with which bash runs the machine's init; ``programs`` is the init's directory."""
    at_end = [str(programs / _FETCH_AT_END), f"{guest.shutdown_seconds:g}"]
    start = [str(programs / "init.sh"), url, str(programs / _FETCH), str(scripts), edits]
    return start + (at_end if guest.fetch_shutdown_script else [])


def copy_disk(machine: MachineDirectory, target: Path) -> None:
    """Copy the disk of a running machine to ``target``, which appears only once it is complete.

    Raises:
        CloudspotError: the disk cannot be copied.
    """
    target.parent.mkdir(exist_ok=True)
    with partial_directory(target.parent) as copy:
        for name, source in _on_disk(machine).items():
            if source.is_dir():
                _copy(source, copy / name)
        copy.rename(target)


def _on_disk(machine: MachineDirectory) -> dict[str, Path]:
    """Return the machine's directories that are on its disk, by their names in a copy of the disk."""
    found = {f"own{name}": machine.system / "root" / name[1:] for name in _DISK_DIRECTORIES}
    found |= {"home": machine.home, "node": machine.node_directory, "written": machine.system / "written"}
    return found


def _copy(source: Path, target: Path) -> None:
    """Copy a directory and its whole content, including the whiteouts of an overlay's layer."""
    target.mkdir(parents=True, exist_ok=True)
    words = ["cp", "--archive", "--no-target-directory", str(source), str(target)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CloudspotError(f"the disk cannot be copied: {done.stderr.strip()[-200:]}")


def main(directory: Path, network: int) -> int:
    """Run the machine; return the status of its init once the init has ended."""
    namespaces.die_with_parent()
    namespaces.enter(network, namespaces.NEW_NETWORK)
    os.close(network)
    namespaces.unshare(namespaces.NEW_MOUNTS | namespaces.NEW_PIDS)
    child = os.fork()
    if child == 0:
        try:
            namespaces.die_with_parent()
            _become_init(MachineDirectory(directory))
        except Exception:  # noqa: BLE001 # printed to the console, because no caller is left
            traceback.print_exc()
        finally:
            os._exit(1)
    # SIGPWR to this process presses the machine's power button.
    signal.signal(signal.SIGPWR, lambda *_: os.kill(child, signal.SIGPWR))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _become_init(machine: MachineDirectory) -> None:
    guest = machine.record().guest
    assert guest is not None
    namespaces.keep_mounts_to_ourselves()
    os.umask(0o022)
    _furnish(machine, guest)
    # This happens after the mounts, so that the machine's root cannot undo them.
    namespaces.become_root()
    namespaces.unshare(namespaces.NEW_MOUNTS | namespaces.NEW_HOST_NAME | namespaces.NEW_IPC)
    socket.sethostname(guest.host_name)
    path = [str(PROGRAMS), *guest.image_path, *_SYSTEM_DIRECTORIES]
    own = {"PATH": os.pathsep.join(path), "LANG": "C.UTF-8"}
    environment = {**own, **guest.environment, MARK: machine.mark}
    url = f"http://{guest.service_addresses[0]}"
    arguments = init_arguments(PROGRAMS, guest, url=url, scripts=SCRIPTS)
    os.execve("/bin/bash", ["init", *arguments], environment)  # noqa: S606 # it is the shell


def _furnish(machine: MachineDirectory, guest: Guest) -> None:
    """Create the machine's root directory on its disk, and make it the root of this process."""
    view = _View(machine.system)
    if guest.disk is not None:
        for part, on_disk in _on_disk(machine).items():
            if Path(guest.disk, part).is_dir():
                _copy(Path(guest.disk, part), on_disk)
    for name in _OWN_DIRECTORIES:
        view.at(name).mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in _ANYBODYS_DIRECTORIES:
        view.at(name).mkdir()
        view.at(name).chmod(0o1777)
    for name, target in _LINKS.items():
        view.at(name).symlink_to(target)
    assert machine.arena is not None
    view.show(machine.home, "/root")
    view.show(machine.node_directory, "/var/lib/cloudspot")
    view.show(machine.arena, "/dev/shm")  # noqa: S108 # its own
    for name, source in guest.shared.items():
        view.show(Path(source), name)
    view.add_devices()
    view.add_kernel()
    _write_layers(view, guest)
    for path in _system_directories():
        if path.is_symlink():
            # The link must be relative, or files created below it would be created on the host.
            view.at(path).symlink_to(str(path.readlink()).lstrip("/"))
        else:
            view.copy(path)
    for name in guest.visible:
        for path in dict.fromkeys((Path(name), Path(name).resolve())):
            view.copy(path)
    assert guest.network is not None
    view.show(Path(guest.network.hosts), "/etc/hosts")
    write_programs(view.at(PROGRAMS), guest)
    for name in _POWER_SWITCHES:
        switch = view.at(PROGRAMS / name)
        switch.write_text(_POWER_SWITCH, encoding="utf-8")
        switch.chmod(0o755)
    for path in filter(lambda path: view.at(path).exists(), _power_switches()):
        view.show(view.at(PROGRAMS / path.name), path)
    namespaces.change_root(view.root)
    # The supervisor opened its standard input on the host, outside the read-only view.
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


class _View:
    """A machine's root directory while it is being built; paths are as the machine sees them."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self.root = disk / "root"
        self.root.mkdir()
        namespaces.bind(self.root, self.root)
        namespaces.restrict(self.root, read_only=False)
        self.layers = disk / "layers"
        """The files that replace files of the host, by path."""
        self.layers.mkdir()
        # An in-memory file system supports whiteouts; the disk's file system may not.
        namespaces.mount_memory(self.layers)
        self._copied: list[Path] = []

    def at(self, path: str | Path) -> Path:
        """Return the path on the host that corresponds to ``path`` on the machine."""
        return self.root / Path(path).relative_to("/")

    def show(self, source: Path, path: str | Path) -> None:
        """Show a file or directory of the host; the machine can write to it if this process can."""
        target = self.at(path)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            target.touch()
        namespaces.bind(source, target)

    def copy(self, source: Path) -> None:
        """Show the host's directory as the machine's own; changes to it go to the machine's disk.

        The content is read-only if that disk does not support such a layer, or if something is mounted in the
        directory, such as drivers in a container.
        """
        layer = self.layers / source.resolve().relative_to("/")
        layers = tuple(one for one in (layer, source) if one.is_dir())
        if not layers or any(one in (source, *source.parents) for one in self._copied):
            return
        self._copied.append(source)
        target = self.at(source)
        target.mkdir(parents=True, exist_ok=True)
        upper = self._disk / "written" / str(len(self._copied))
        for name in ("files", "work"):
            (upper / name).mkdir(parents=True, exist_ok=True)
        shutil.copymode(layers[-1], upper / "files")
        try:
            namespaces.mount_overlay(target, layers, upper=upper)
        except OSError as error:
            sys.stderr.write(f"guest: the content of {source} is read-only: {error}\n")
            self._show_entries(source)

    def _show_entries(self, source: Path) -> None:
        """Show, read-only, those entries of a directory that the directory's layer does not replace."""
        over = self.layers / source.resolve().relative_to("/")
        self.at(source).mkdir(exist_ok=True)
        for entry in source.iterdir() if source.is_dir() else ():
            if (over / entry.name).is_dir():
                self._show_entries(entry)
            elif (over / entry.name).exists():
                continue
            elif entry.is_symlink():
                self.at(entry).symlink_to(entry.readlink())
            else:
                self.show(entry, entry)
                namespaces.restrict(self.at(entry))
        if over.is_dir():
            for entry in over.iterdir():
                path = source / entry.name
                if entry.is_file():
                    shutil.copy(entry, self.at(path))
                elif entry.is_dir() and not path.is_dir():
                    shutil.copytree(entry, self.at(path))

    def add_devices(self) -> None:
        """Show the accelerators and the devices that store no data, such as /dev/null."""
        names = [Path("/dev", name) for name in _DEVICES]
        found = (path for pattern in _ACCELERATORS for path in sorted(Path("/dev").glob(pattern)))
        for path in (*names, *found):
            if path.exists():
                self.show(path, path)
                # The device keeps the mode that it has on the host.
                namespaces.restrict(self.at(path), no_devices=False)
        self.at("/dev/pts").mkdir()
        namespaces.mount_terminals(self.at("/dev/pts"))

    def add_kernel(self) -> None:
        """Show the machine's processes and the kernel's view of the hardware."""
        namespaces.mount_sys(self.at("/sys"))
        namespaces.mount_proc(self.at("/proc"))
        for name, value in _NETWORK_SETTINGS.items():
            (self.at("/proc/sys/net/ipv4") / name).write_text(value, encoding="ascii")
        namespaces.seal_proc(self.at("/proc"))


def _write_layers(view: _View, guest: Guest) -> None:
    """Write the machine's own files, which replace files of the host, and the whiteouts, which hide them."""
    etc = view.layers / "etc"
    etc.mkdir()
    for name in ("hosts", "resolv.conf"):
        (etc / name).touch()
    for hidden in filter(os.path.lexists, (*_secrets(Path("/etc")), *map(Path, guest.hidden))):
        for parent in reversed(hidden.parents[:-1]):
            layer = view.layers / parent.relative_to("/")
            if not layer.is_dir():
                layer.mkdir()
                shutil.copymode(parent, layer)
        os.mknod(view.layers / hidden.relative_to("/"), stat.S_IFCHR)  # an overlay's whiteout
    for name, target in guest.programs.items():
        program = view.layers / Path(name).relative_to("/")
        program.parent.mkdir(parents=True, exist_ok=True)
        # This is not a link, because a Python that is called through a link does not find its environment.
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(target)} "$@"\n', encoding="utf-8")
        program.chmod(0o755)


def _secrets(directory: Path) -> Iterator[Path]:
    """Yield files that not everybody may read but that a machine could read if the host's root runs it."""
    if not os.access(directory, os.R_OK | os.X_OK):
        return  # the machine cannot read it either
    for entry in os.scandir(directory):
        try:
            is_closed = not entry.stat(follow_symlinks=False).st_mode & stat.S_IROTH
        except FileNotFoundError:  # removed meanwhile
            continue
        if entry.name in _RULES:
            continue
        if is_closed:
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            yield from _secrets(Path(entry.path))


def _system_directories() -> Iterator[Path]:
    """Yield the host's program directories, and the links to them."""
    yield from map(Path, ("/usr", "/etc", "/opt", "/var/lib/dpkg"))
    for pattern in ("bin", "sbin", "lib*"):
        yield from Path("/").glob(pattern)


def _power_switches() -> Iterable[Path]:
    """Return the host's power switches, each file once."""
    paths = [Path(directory, name) for directory in _SYSTEM_DIRECTORIES[2:] for name in _POWER_SWITCHES]
    return dict.fromkeys(path.resolve() for path in paths if path.exists())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
