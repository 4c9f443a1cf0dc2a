"""The code archive of a cloud function that drives jobs: an importable zip of the files installed here."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from cloudspot.boot.agentarchive import make_agent_archive
from cloudspot.errors import CloudspotError

_TIME = (2020, 1, 1, 0, 0, 0)
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)")
"""PEP 600; older tags such as ``manylinux2014`` need only libraries that every function runtime has."""


@dataclass(frozen=True)
class FunctionArchive:
    """The code of a function, ready to deploy."""

    data: bytes = field(repr=False)
    """A zip without timestamps and owners, so that equal code gives equal bytes."""
    unpacked_bytes: int
    needs_glibc: tuple[int, int]
    """The minimum glibc version that the compiled code's tags require; (0, 0) if any version will do."""


def make_function_archive(plugins: Sequence[str]) -> FunctionArchive:
    """Return cloudspot, the plugins' distributions and all their dependencies, unpacked into one directory.

    Compiled code fits only the Python and the platform of this process.

    Raises:
        CloudspotError: a distribution is not installed, or its files cannot be found.
    """
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(make_agent_archive(plugins, drives=True).data)) as archive:
        held = {one.name: archive.extractfile(one) for one in archive}
        wheels = {name: wheel for name, wheel in held.items() if name.startswith(("wheels/", "compiled/"))}
        for wheel in wheels.values():
            assert wheel is not None, "the archive holds files only"
            with zipfile.ZipFile(io.BytesIO(wheel.read())) as unpacked:
                files.update((name, unpacked.read(name)) for name in unpacked.namelist())
        index = held["index.txt"]
        assert index is not None, "the archive holds files only"
        listed = index.read().decode().split()
    # A wheel's file name has "_" in place of the separators in the project's name.
    compiled = {name.partition("/")[2].split("-")[0].lower() for name in wheels}
    missing = [one for one in listed if one.partition("==")[0].replace("-", "_").lower() not in compiled]
    if missing:
        raise CloudspotError(
            f"the files of {', '.join(missing)} cannot be found, because pip did not install them; "
            "install cloudspot in a virtual environment"
        )
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as packed:
        for path, data in sorted(files.items()):
            info = zipfile.ZipInfo(path, _TIME)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, data, compresslevel=6)
    needed = max(map(_glibc_of, wheels), default=(0, 0))
    return FunctionArchive(target.getvalue(), sum(map(len, files.values())), needed)


def _glibc_of(wheel: str) -> tuple[int, int]:
    """Return the minimum version of glibc for a wheel, from the tags in its file name."""
    found = [(int(major), int(minor)) for major, minor in _MANYLINUX.findall(wheel)]
    return min(found, default=(0, 0))
