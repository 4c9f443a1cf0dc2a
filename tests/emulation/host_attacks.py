"""Attempts to read or change what is a host's: ``host_attacks.py ASKED``, a JSON object.

``file`` is a file of the host, ``disks`` has the device numbers of its disks, ``sleep`` is what one of its
processes sleeps. Prints by name which attempts were ``refused`` and which were ``done``. None does harm where it is
not refused.
"""

import ctypes
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NEW_USER, NEW_CGROUP = 0x10000000, 0x02000000
BIND, REMOUNT = 0x1000, 0x20
GET_USER_NAMESPACE, GET_PARENT = 0xB701, 0xB702  # ioctl_ns(2)
INIT_MODULE = 175 if os.uname().machine == "x86_64" else 105
libc = ctypes.CDLL(None, use_errno=True)
asked = json.loads(sys.argv[1])
IS_MACHINE = Path("/run/machine").exists()
attempts = {}


def attempt(name):
    def add(function):
        attempts[name] = function
        return function

    return add


def check(status):
    if status < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def read(path):
    with Path(path).open("rb") as file:
        file.read(1)


def settings():
    """Return the files of the kernel's that are there to be written."""
    for top in ("/proc/sys", "/proc/irq", "/sys/kernel", "/sys/module", "/sys/power", "/sys/class"):
        for parent, _, names in os.walk(top):
            yield from (f"{parent}/{name}" for name in names)
    yield from ("/proc/sysrq-trigger", "/proc/mtrr", "/sys/power/state")


@attempt("change a kernel setting")
def _():
    written = []
    for path in settings():
        try:
            os.close(os.open(path, os.O_WRONLY))
            written.append(path)
        except OSError:
            continue
    # COMMAND may change what its user may; the kernel's settings are another matter.
    if any(path.startswith("/proc") or IS_MACHINE for path in written):
        return
    raise OSError("none")


@attempt("remount the settings")
def _():
    check(libc.mount(b"none", b"/proc/sys", None, ctypes.c_ulong(REMOUNT | BIND), None))


@attempt("uncover the settings")
def _():
    check(libc.umount2(b"/proc/sys", 2))


@attempt("uncover the hosts file")
def _():
    check(libc.umount2(b"/etc/hosts", 2))


@attempt("mount the processes anew")
def _():
    subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], check=True, stderr=subprocess.DEVNULL
    )


@attempt("load a module")
def _():
    code = b"\x7fELF"
    libc.syscall(ctypes.c_long(INIT_MODULE), code, ctypes.c_ulong(len(code)), b"")
    if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):  # else it is refused because it is none
        raise PermissionError


@attempt("set the clock")
def _():
    time.clock_settime(time.CLOCK_REALTIME, time.time())


@attempt("change the host's name")
def _():
    socket.sethostname("attacked" if IS_MACHINE else socket.gethostname())


@attempt("make a disk device")
def _():
    os.mknod(Path(tempfile.mkdtemp(), "disk"), 0o060600, [*asked["disks"], 0x700][0])


@attempt("open a disk")
def _():
    for path in Path("/dev").rglob("*"):
        if not path.is_symlink() and path.stat().st_rdev in asked["disks"]:
            read(path)
            return
    raise OSError("none")


@attempt("change a device")
def _():
    os.chmod(0, Path("/dev/null").stat().st_mode)  # where it was opened


@attempt("change the mode of a device")
def _():
    Path("/dev/null").chmod(Path("/dev/null").stat().st_mode)


@attempt("open the memory")
def _():
    read("/dev/mem")


@attempt("mount a disk")
def _():
    for disk in Path("/sys/class/block").iterdir():
        for kind in (b"ext4", b"xfs", b"btrfs"):
            at = tempfile.mkdtemp().encode()
            if libc.mount(b"/dev/" + disk.name.encode(), at, kind, ctypes.c_ulong(1), None) == 0:
                return
    raise OSError("none")


@attempt("find a host's process")
def _():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if words[:2] == ["sleep", asked["sleep"]]:
            os.kill(int(process.name), 0)
            return
    raise ProcessLookupError


@attempt("read a file of the host")
def _():
    read(asked["file"])


@attempt("read a file of the host through a process")
def _():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            return read(f"{process}/root{asked['file']}")
        except OSError:
            continue
    raise OSError("none")


@attempt("read a file of the host from a chroot")
def _():
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chroot(tempfile.mkdtemp())
            for _ in range(50):
                os.chdir("..")
            os.chroot(".")
            read(asked["file"])
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError("none")


@attempt("read the passwords")
def _():
    read("/etc/shadow")


@attempt("open by handle")
def _():
    # The root directory of an ext4 or xfs: the handle is its inode's number and generation.
    for number in (2, 128):
        handle = (ctypes.c_uint32 * 4)(8, 1, number, 0)
        opened = libc.open_by_handle_at(os.open("/", os.O_RDONLY), handle, 0)
        if opened >= 0 and Path(f"/proc/self/fd/{opened}{asked['file']}").exists():
            return
    raise OSError("none")


@attempt("get the host's namespaces")
def _():
    found = [ioctl(kind, what) for kind, what in (("user", GET_PARENT), ("pid", GET_PARENT))]
    found += [
        ioctl(kind, GET_USER_NAMESPACE) for kind in ("user", "net", "pid", "mnt", "uts", "ipc", "cgroup")
    ]
    ours = Path("/proc/self/ns/user").stat().st_ino
    outer = [one for one in found if one is not None and os.fstat(one).st_ino != ours]
    if not outer:
        raise OSError("none")
    for one in outer:
        check(libc.setns(one, 0))


def ioctl(kind, what):
    with Path(f"/proc/self/ns/{kind}").open() as file:
        try:
            return fcntl.ioctl(file, what)
        except OSError:
            return None


@attempt("reach the control groups")
def _():
    check(libc.unshare(NEW_CGROUP))


@attempt("find a host's network interface")
def _():
    own = {"lo", "eth0"}
    if not {name for _, name in socket.if_nameindex()} - own:
        raise OSError("none")


@attempt("add a network interface")
def _():
    subprocess.run(["ip", "link", "add", "d0", "type", "dummy"], check=True, stderr=subprocess.DEVNULL)


@attempt("cut its own cable")
def _():
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True, stderr=subprocess.DEVNULL)


@attempt("send raw packets")
def _():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)


@attempt("watch all packets")
def _():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


answers = {}
for name, function in attempts.items():
    try:
        function()
        answers[name] = "done"
    except (OSError, subprocess.SubprocessError):
        answers[name] = "refused"
print(json.dumps(answers))
