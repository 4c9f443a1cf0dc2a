"""A real registry of container images on this machine: Debian's ``docker-registry``."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

USER, PASSWORD = "me", "hush-registry"
_USERS = f"{USER}:$2y$04$abcdefghijklmnopqrstuuoI2DXyj.y98AsFuUI3PYF9Y/KOXVqQa\n"
"""The line of an htpasswd file."""


@contextmanager
def real_registry(scratch: Path, *, is_private: bool = False) -> Iterator[str]:
    """Lend the address of a registry, over HTTP; a private one lets in ``USER`` alone."""
    if shutil.which("docker-registry") is None:
        pytest.skip("needs Debian's docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(scratch / "registry")}},
        "http": {"addr": address},
    }
    if is_private:
        (scratch / "htpasswd").write_text(_USERS)
        config["auth"] = {"htpasswd": {"realm": "here", "path": str(scratch / "htpasswd")}}
    (scratch / "config.yml").write_text(json.dumps(config))
    with (
        (scratch / "registry.log").open("w") as log,
        subprocess.Popen(
            ["docker-registry", "serve", str(scratch / "config.yml")], stdout=log, stderr=log
        ) as server,
    ):
        try:
            yield address
        finally:
            server.terminate()


@contextmanager
def pushed(image: str, address: str, scratch: Path) -> Iterator[str]:
    """Lend the name, with tag and digest, under which the registry has a copy of one of the engine's images.

    Afterwards the engine has no image of that name, whoever may have pulled it.
    """
    name = f"{address}/team/train"
    options = ("--tls-verify=false", "--digestfile", str(scratch / "digest"), f"--creds={USER}:{PASSWORD}")
    _podman("push", "--quiet", *options, image.partition("@")[0], f"{name}:7")
    digest = (scratch / "digest").read_text()
    try:
        yield f"{name}:7@{digest}"
    finally:
        _podman("rmi", "--force", f"{name}@{digest}", check=False)


def _podman(*words: str, check: bool = True) -> None:
    subprocess.run(["podman", "--log-level=error", *words], check=check, timeout=60)


def registries_conf(address: str, scratch: Path) -> Path:
    """Return a file that lets the engine speak HTTP with the registry: for CONTAINERS_REGISTRIES_CONF."""
    path = scratch / "registries.conf"
    path.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    return path
