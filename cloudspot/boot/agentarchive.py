"""The archive from which a stock image installs its agent: wheels made from the files installed here.

Machines run the submitter's exact code, even from an editable install, and its exact dependencies: the wheels
are assembled from the installed files, without building anything. Equal code gives equal bytes, so the
archive is named by its content and stored once. It contains

- ``wheels/``: cloudspot, the plugins, and each dependency that is pure Python or did not come from a package
  index, except ``DRIVERS_ONLY``;
- ``compiled/``: the other dependencies, which fit only machines with this Python version and platform;
- ``index.txt``: the versions of dependencies that a package index may provide: those in ``compiled/`` if they
  do not fit, and those without a list of their files, such as Debian's packages;
- ``installer/``: pip, if it is installed here.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path, PurePosixPath

from cloudspot.errors import CloudspotError

CORE = "cloudspot"
INSTALLER = "pip"
DRIVERS_ONLY = frozenset({"numpy"})
"""Requirements of cloudspot that no machine imports; they are large and fit only one Python and platform."""
_METADATA = ("METADATA", "entry_points.txt")
_TIME = (2020, 1, 1, 0, 0, 0)
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True)
class AgentArchive:
    """The agent's archive, which is staged in the store for the nodes."""

    data: bytes = field(repr=False)
    """A tar archive of wheels, without timestamps and owners."""
    sha256: str
    """The hash of ``data``, in hex."""
    digest: str
    """The code hash of cloudspot and the plugins, in hex; an image with the same code needs no archive."""
    requirements: tuple[str, ...]
    """The distributions that contain this code; all other wheels in the archive are their dependencies."""


def make_agent_archive(plugins: Sequence[str], *, drives: bool = False) -> AgentArchive:
    """Return the archive with cloudspot, the plugins' distributions, and all their dependencies.

    If ``drives``, include the dependencies that only drivers need.

    Raises:
        CloudspotError: a distribution is not installed, or its files cannot be found.
    """
    left_out = frozenset() if drives else DRIVERS_ONLY
    wanted = (CORE, *(name for name in plugins if canonical(name) != CORE))
    ours = set(map(canonical, wanted))
    members: dict[str, bytes] = {}
    versions: list[str] = []
    for name in closure(wanted, left_out=left_out):
        distribution = _distribution(name)
        if canonical(name) in ours or not _came_from_index(distribution):
            files, folder = _files(distribution), "wheels"
        else:
            files = _listed_files(distribution)
            folder = "wheels" if files and _is_pure(_tags(distribution)) else "compiled"
        if files:
            file, data = _wheel(distribution, files, left_out)
            members[f"{folder}/{file}"] = data
        if folder == "compiled":
            versions.append(f"{distribution.metadata['Name']}=={distribution.version}\n")
    members["index.txt"] = "".join(versions).encode()
    if _is_installed(INSTALLER):
        # Debian's Python has no ensurepip, so the node installs with this pip.
        installer = _distribution(INSTALLER)
        file, data = _wheel(installer, _files(installer), left_out)
        members[f"installer/{file}"] = data
    tar = _tar(members)
    return AgentArchive(tar, hashlib.sha256(tar).hexdigest(), code_digest(wanted), wanted)


def code_digest(names: Iterable[str]) -> str:
    """Return the hash of the distributions' code as installed, without bytecode.

    Raises:
        CloudspotError: a distribution is not installed.
    """
    hashed = hashlib.sha256()
    for name in sorted(names, key=canonical):
        for path, data in sorted(_files(_distribution(name)).items()):
            hashed.update(f"{len(path)} {path} {len(data)} ".encode() + data)
    return hashed.hexdigest()


def _came_from_index(distribution: metadata.Distribution) -> bool:
    """Return whether the distribution comes from a package index, not a directory, repository or file.

    Installers record the URL of a directory, repository or file, but Conda records a URL for every package.
    """
    installer = (distribution.read_text("INSTALLER") or "").strip()
    return distribution.read_text("direct_url.json") is None or installer == "conda"


def _wheel(
    distribution: metadata.Distribution, code: Mapping[str, bytes], left_out: frozenset[str]
) -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel of the installed distribution."""
    tags = _tags(distribution)
    files = dict(code)
    project = re.sub(r"[-_.]+", "_", str(distribution.metadata["Name"]))
    stem = f"{project}-{distribution.version}"
    for file in _METADATA:
        text = distribution.read_text(file)
        if text is not None:
            files[f"{stem}.dist-info/{file}"] = _for_machines(distribution, text, left_out).encode()
    lines = ["Wheel-Version: 1.0", "Generator: cloudspot", f"Root-Is-Purelib: {str(_is_pure(tags)).lower()}"]
    files[f"{stem}.dist-info/WHEEL"] = "\n".join([*lines, *(f"Tag: {tag}" for tag in tags), ""]).encode()
    record = f"{stem}.dist-info/RECORD"
    files[record] = _record(files, record)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in sorted(files.items()):
            info = zipfile.ZipInfo(path, _TIME)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            # The user waits for this; the lowest level takes a third of the default's time and saves nearly
            # as much.
            archive.writestr(info, data, compresslevel=1)
    return f"{stem}-{_compressed(tags)}.whl", target.getvalue()


def _for_machines(distribution: metadata.Distribution, text: str, left_out: frozenset[str]) -> str:
    """Return the metadata, without the requirements that the archive omits and pip would otherwise demand."""
    if canonical(distribution.metadata["Name"]) != CORE:
        return text
    return "".join(line for line in text.splitlines(keepends=True) if not _requires(line, left_out))


def _requires(line: str, names: frozenset[str]) -> bool:
    name, _, requirement = line.partition(":")
    match = _REQUIREMENT.match(requirement.strip())
    return name == "Requires-Dist" and match is not None and canonical(match[1]) in names


def _files(distribution: metadata.Distribution) -> dict[str, bytes]:
    # An editable install lists only the files by which Python finds it.
    return _listed_files(distribution) or _package_files(distribution)


def _listed_files(distribution: metadata.Distribution) -> dict[str, bytes]:
    """Return the distribution's own files by their path in a wheel, without files that installers added.

    The result is empty if the installer recorded no list of files.
    """
    contents: dict[str, bytes] = {}
    listed = () if distribution.read_text("RECORD") is None else distribution.files
    for file in listed or ():
        path = PurePosixPath(str(file))
        is_ours = ".." not in path.parts and not path.is_absolute() and "__pycache__" not in path.parts
        if not is_ours or path.parts[0].endswith((".dist-info", ".egg-info")) or path.suffix == ".pth":
            continue
        place = Path(str(distribution.locate_file(file)))
        if place.is_file():
            contents[str(path)] = place.read_bytes()
    return contents


def _package_files(distribution: metadata.Distribution) -> dict[str, bytes]:
    name = str(distribution.metadata["Name"])
    package = re.sub(r"[-_.]+", "_", name)
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CloudspotError(f"the files of {name} cannot be found, so no node can install it")
    root = Path(next(iter(spec.submodule_search_locations)))
    contents = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.is_file() and "__pycache__" not in relative.parts and path.suffix not in {".pyc", ".tmp"}:
            contents[f"{package}/{relative.as_posix()}"] = path.read_bytes()
    return contents


def closure(names: Iterable[str], *, left_out: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the distributions and all their installed dependencies, sorted by canonical name.

    ``left_out`` names the requirements of cloudspot to omit.

    Raises:
        CloudspotError: a distribution is not installed.
    """
    waiting = [(name, "") for name in names]
    spellings: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        if (canonical(name), extra) in seen:
            continue
        seen.add((canonical(name), extra))
        spellings.setdefault(canonical(name), name)
        unwanted = left_out if canonical(name) == CORE else frozenset()
        for needed, extras in _needed(_distribution(name), extra):
            if canonical(needed) not in unwanted and _is_installed(needed):
                waiting += [(needed, one) for one in ("", *extras)]
    return tuple(spellings[name] for name in sorted(spellings))


def _needed(distribution: metadata.Distribution, extra: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the names that ``extra`` requires, or the basic ones if it is empty, each with its own extras.

    The caller skips requirements that do not apply here, because they are not installed.
    """
    for line in distribution.requires or ():
        requirement, _, marker = line.partition(";")
        match = _REQUIREMENT.match(requirement.strip())
        of = _EXTRA.findall(marker)
        if match is not None and (extra in map(canonical, of) if extra else not of):
            yield match[1], [canonical(one.strip()) for one in (match[2] or "").split(",") if one.strip()]


def canonical(name: str) -> str:
    """Return the distribution's name as package indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _tags(distribution: metadata.Distribution) -> tuple[str, ...]:
    text = distribution.read_text("WHEEL")
    tags = HeaderParser().parsestr(text).get_all("Tag", []) if text else []
    return tuple(tags) or ("py3-none-any",)


def _is_pure(tags: Sequence[str]) -> bool:
    return all(tag.startswith("py") and tag.endswith("-none-any") for tag in tags)


def _compressed(tags: Sequence[str]) -> str:
    """Return a wheel's tags in the form of its file name, such as ``py2.py3-none-any``."""
    columns = zip(*(tag.split("-") for tag in tags), strict=True)
    return "-".join(".".join(dict.fromkeys(column)) for column in columns)


def _record(files: dict[str, bytes], record: str) -> bytes:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    for path, data in sorted(files.items()):
        hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        writer.writerow((path, f"sha256={hashed}", len(data)))
    writer.writerow((record, "", ""))
    return target.getvalue().encode()


def _tar(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise CloudspotError(
            f"{name} is not installed as a distribution, so no node can install it: "
            "install it with pip, or use an image that has it"
        ) from None


def _is_installed(name: str) -> bool:
    return any(metadata.distributions(name=name))


if __name__ == "__main__":
    # A node compares this with the digest in its boot script.
    print(code_digest(sys.argv[1:]))  # noqa: T201 # read by install.sh
