"""The package index of emulated machines, which can reach no other: it offers this host's packages as wheels.

It implements the part of the simple API of Python's package indexes that pip needs: one page per project. A
wheel is built from the installed files when it is first requested.

Source: "Simple repository API", "Binary distribution format" (PyPA specifications, checked 2026-11).
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

from cloudspot.boot.agentarchive import canonical
from cloudspot.emulation.image_packages import listed_files, places
from cloudspot.host.partial_files import partial_directory

_INSTALLERS_NOTES = frozenset({"INSTALLER", "REQUESTED", "direct_url.json"})
_WHEELS, _SIMPLE = "/wheels/", "/simple/"


class PackageIndex:
    """A package index, served in threads from its construction until ``close``."""

    def __init__(self, address: str, directory: Path) -> None:
        """Start on any free port of the address; the wheels are stored below ``directory``."""
        found = [one for one in metadata.distributions(path=list(map(str, places()))) if _is_listed(one)]
        # If a distribution is installed twice, Python imports the first one.
        self.projects = {canonical(one.name): one for one in reversed(found)}
        self.directory = directory
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"index": self})
        self._server = ThreadingHTTPServer((address, 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="package index", daemon=True
        )
        self._thread.start()

    def environment(self) -> dict[str, str]:
        """Return the variables that make pip use this index."""
        address, port = self._server.server_address[:2]
        return {"PIP_INDEX_URL": f"http://{address!s}:{port}{_SIMPLE}", "PIP_TRUSTED_HOST": str(address)}

    def wheel(self, name: str) -> Path | None:
        """Return the file of the wheel with that name, or None if there is none."""
        made = self.directory / name
        distribution = self.projects.get(canonical(name.partition("-")[0]))
        if distribution is None or name != wheel_name(distribution):
            return None
        with self._lock:
            if not made.exists():
                self.directory.mkdir(parents=True, exist_ok=True)
                with partial_directory(self.directory) as partial:
                    write_wheel(distribution, partial / name)
                    (partial / name).rename(made)
        return made

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def wheel_name(distribution: metadata.Distribution) -> str:
    """Return the file name of the distribution's wheel."""
    tags = [tag.split("-") for tag in re.findall(r"(?m)^Tag: (\S+)", distribution.read_text("WHEEL") or "")]
    compressed = (".".join(dict.fromkeys(column)) for column in zip(*tags, strict=True))
    project = re.sub(r"[-_.]+", "_", distribution.name)
    return "-".join((project, distribution.version, *compressed)) + ".whl"


def write_wheel(distribution: metadata.Distribution, target: Path) -> None:
    """Write a wheel of the installed distribution, uncompressed, because it stays on this host."""
    stem = "-".join(target.name.split("-")[:2])
    scripts = {point.name for point in distribution.entry_points if point.group.endswith("_scripts")}
    place = Path(str(distribution.locate_file("")))
    with zipfile.ZipFile(target, "w", strict_timestamps=False) as archive:
        for file in listed_files(distribution):
            parts = file.split("/")
            if "__pycache__" in parts or parts[-1] in _INSTALLERS_NOTES or not (place / file).is_file():
                continue
            if parts[0] == "..":
                # Such files go into the wheel's data directory; pip itself writes the scripts of entry
                # points.
                below = parts[parts.count("..") :]
                if below[0] == "bin" and below[-1] in scripts:
                    continue
                name = posixpath.join(f"{stem}.data/data", *below)
            elif parts[0].endswith(".dist-info"):
                name = posixpath.join(f"{stem}.dist-info", *parts[1:])
            else:
                name = file
            archive.write(place / file, name)


def _is_listed(distribution: metadata.Distribution) -> bool:
    """Return whether the distribution has a list of its files and is not editable."""
    url = json.loads(distribution.read_text("direct_url.json") or "{}")
    has_lists = all(distribution.read_text(name) for name in ("RECORD", "WHEEL"))
    return has_lists and not url.get("dir_info", {}).get("editable", False)


class _Handler(BaseHTTPRequestHandler):
    index: ClassVar[PackageIndex]

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])  # pip requests names such as 1.0%2Bcpu
        if path.startswith(_WHEELS):
            wheel = self.index.wheel(path[len(_WHEELS) :])
            if wheel is None:
                self.send_error(404)
                return
            with wheel.open("rb") as file:
                self.send_response(200)
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self.end_headers()
                shutil.copyfileobj(file, self.wfile)
            return
        distribution = self.index.projects.get(canonical(path[len(_SIMPLE) :].strip("/")))
        if not path.startswith(_SIMPLE) or distribution is None:
            self.send_error(404)
            return
        name = wheel_name(distribution)
        page = f'<!DOCTYPE html><html><body><a href="{_WHEELS}{name}">{name}</a></body></html>\n'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the base class's name
        """Log nothing, because pip reports errors on the machines."""
