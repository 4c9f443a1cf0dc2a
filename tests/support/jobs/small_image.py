"""A container image of this system's Python and shells, for tests: no registry can be reached."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("sh", "bash", "cat", "chmod", "env", "id", "mkdir", "mv", "sleep")
PYTHON = Path("/usr/bin/python3")


def why_no_containers() -> str:
    """Return why no container can run here; empty: one can."""
    if shutil.which("podman") is None:
        return "needs podman; as root on Debian: apt-get install --no-install-recommends podman runc"
    if not PYTHON.exists():
        return f"needs {PYTHON}, to make an image of it"
    options = ("--network=host", "--pid=host", "--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000")
    done = _podman("run", "--rm", *options, "--rootfs", "/:O", "true", check=False)
    return "" if done.returncode == 0 else f"podman runs no container here: {done.stderr.strip()[-300:]}"


@contextmanager
def small_image(scratch: Path, *, packages: Sequence[str] = (), volumes: Sequence[str] = ()) -> Iterator[str]:
    """Lend the name, with its digest, of an image that is removed afterwards.

    ``packages`` are Python packages that these tests can import, and the image then, too; ``volumes`` are the
    directories that it declares as such.
    """
    name = f"localhost/cloudspot-test-{uuid.uuid4().hex[:12]}"
    root = scratch / "image"
    _fill(root, packages)
    archive = scratch / "image.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    shutil.rmtree(root)
    own = ("--change", "ENV OF_IMAGE=image", "--change", "ENV PYTHONPATH=/of/image")
    own += tuple(word for path in volumes for word in ("--change", f"VOLUME {path}"))
    _podman("import", *own, str(archive), name)
    archive.unlink()
    try:
        digest = _podman("image", "inspect", "--format", "{{.Digest}}", name).stdout.strip()
        yield f"{name}:latest@{digest}"
    finally:
        _podman("rmi", "--force", name)


def containers(home: Path) -> list[str]:
    """Return the names of all containers of jobs on machines of this home, those that have ended, too."""
    lines = _podman("ps", "--all", "--no-trunc", "--format", "{{.Names}} {{.Mounts}}").stdout.splitlines()
    return [line.split()[0] for line in lines if str(home) in line]


def volumes() -> set[str]:
    """Return the names of all volumes that podman keeps."""
    return set(_podman("volume", "ls", "--quiet").stdout.split())


def kill_container(name: str) -> None:
    """End a container as the kernel would that has no memory left."""
    _podman("kill", "--signal", "KILL", name)


def _fill(root: Path, packages: Sequence[str]) -> None:
    version = subprocess.run(
        [str(PYTHON), "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    library = Path("/usr/lib", version)
    leave_out = shutil.ignore_patterns("__pycache__", "test", "idlelib", "ensurepip")
    shutil.copytree(library, root / library.relative_to("/"), ignore=leave_out)
    programs = [Path(shutil.which(program) or "") for program in PROGRAMS]
    python = Path("/usr/bin", version)
    modules = list((library / "lib-dynload").glob("*.so"))
    for program in (*programs, python):
        _copy(program, root)
    target = root / "usr/local/lib" / version / "dist-packages"
    target.mkdir(parents=True)
    for package in packages:
        found = Path(importlib.util.find_spec(package).origin)
        if found.name == "__init__.py":
            leave_out = shutil.ignore_patterns("__pycache__", "include", "*.a")
            for one in (found.parent, found.parent.with_name(f"{package}.libs")):
                if one.exists():
                    shutil.copytree(one, target / one.name, ignore=leave_out)
                    modules += one.rglob("*.so*")
        else:
            shutil.copy2(found, target)
    for needed in _libraries([*programs, python, *modules]):
        _copy(needed, root)
    (root / "usr/bin/python3").symlink_to(version)
    if not (root / "bin").exists():
        (root / "bin").symlink_to("usr/bin")
    for name in ("sh", "bash"):
        if not (root / "bin" / name).exists():
            shutil.copy2(f"/bin/{name}", root / "bin" / name)
    for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp"):
        (root / name).mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def _libraries(programs: list[Path]) -> set[Path]:
    said = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}
    return {
        path
        for path in found
        if path.is_relative_to("/lib") or path.is_relative_to("/lib64") or path.is_relative_to("/usr/lib")
    }


def _copy(path: Path, root: Path) -> None:
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(path, target)


def _podman(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, check=False, timeout=120)
    assert not check or done.returncode == 0, f"podman {words}: {done.stderr}"
    return done
