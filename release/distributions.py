"""The distributions of this repository, their versions, and their sources as a release packs them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
CORE_VERSION = "cloudspot/__init__.py"
FIRST_PARTY = re.compile(r"cloudspot(-[a-z-]+)?(?=\W|$)")
"""The start of a requirement of a distribution of this repository."""

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?://|mailto:|#)([^)\s]+)\)")


class ReleaseError(Exception):
    """A release cannot be made; the message says what to mend."""


@dataclass(frozen=True)
class Distribution:
    """A project that becomes a wheel and an sdist."""

    name: str
    folder: Path

    def project(self) -> Mapping[str, Any]:
        """Return the table ``[project]``."""
        table: Mapping[str, Any] = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        return table


@dataclass(frozen=True)
class Addresses:
    """Where the project is found."""

    repository: str
    documentation: str

    @property
    def are_placeholders(self) -> bool:
        """Return whether nobody has entered them yet."""
        return ".invalid" in self.repository + self.documentation

    def urls(self, version: str) -> Mapping[str, str]:
        """Return the table ``[project.urls]``."""
        return {
            "Documentation": self.documentation,
            "Source": self.repository,
            "Issues": f"{self.repository}/issues",
            "Changelog": f"{self.repository}/blob/v{version}/CHANGELOG.md",
        }


def addresses() -> Addresses:
    """Return what project.toml says."""
    return Addresses(**tomllib.loads((ROOT / "release" / "project.toml").read_text()))


def distributions(root: Path = ROOT) -> tuple[Distribution, ...]:
    """Return the core, then the plugins by name."""
    plugins = sorted(path.parent for path in root.glob("plugins/*/pyproject.toml"))
    return (
        Distribution("cloudspot", root),
        *(Distribution(f"cloudspot-{folder.name}", folder) for folder in plugins),
    )


def version(root: Path = ROOT) -> str:
    """Return the core's version, which is that of all."""
    found = re.search(r'^__version__ = "([^"]+)"$', (root / CORE_VERSION).read_text(), re.MULTILINE)
    if found is None:
        raise ReleaseError(f"{CORE_VERSION} has no line __version__ = ...")
    return found[1]


def misfits(root: Path = ROOT) -> tuple[str, ...]:
    """Return, for each version or requirement that is not in step with the core, a line that says so."""
    want, found = version(root), []
    known = {one.name for one in distributions(root)}
    for one in distributions(root):
        project, file = one.project(), one.folder.relative_to(root) / "pyproject.toml"
        if "version" in project and project["version"] != want:
            found.append(f"{file}: version {project['version']} is not that of the core, {want}")
        for line in _requirements(project):
            own = FIRST_PARTY.match(line)
            if own is None or line.startswith("cloudspot["):
                continue
            if own[0] not in known:
                found.append(f"{file}: {line} is no distribution of this repository")
            elif line != f"{own[0]}=={want}":
                found.append(f"{file}: {line} must be {own[0]}=={want}")
    extras = distributions(root)[0].project()["optional-dependencies"]
    clouds = {one.name.removeprefix("cloudspot-") for one in distributions(root)[1:]}
    lacking = sorted(name for name in clouds if not name.endswith("-sandbox") and name not in extras)
    found += [f"pyproject.toml: there is no extra {name} for cloudspot-{name}" for name in lacking]
    return tuple(found)


def set_version(new: str, root: Path = ROOT) -> None:
    """Write the version to all places that have it."""
    if re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", new) is None:
        raise ReleaseError(f"{new} is no version; expected one such as 0.2.0 or 0.2.0rc1")
    core = root / CORE_VERSION
    core.write_text(re.sub(r'(?m)^__version__ = ".*"$', f'__version__ = "{new}"', core.read_text()))
    for one in distributions(root):
        file = one.folder / "pyproject.toml"
        text = re.sub(r'(?m)^version = ".*"$', f'version = "{new}"', file.read_text())
        file.write_text(re.sub(r'"(cloudspot(?:-[a-z-]+)?)==[^"]*"', rf'"\1=={new}"', text))


def stage(one: Distribution, into: Path, where: Addresses) -> Path:
    """Copy what git tracks of a distribution, with the addresses entered, and return the folder.

    Links of its README that lead into the repository become links to it on the forge, at the tag of the
    version: an index shows the README alone.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", "."], cwd=one.folder, capture_output=True, check=True
    ).stdout
    folder, release = into / one.name, version()
    for name in filter(None, listed.decode().split("\0")):
        if (one.folder / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(one.folder / name, folder / name)  # a link to LICENSE becomes the file
    settings = folder / "pyproject.toml"
    lines = (f'{name} = "{url}"' for name, url in where.urls(release).items())
    settings.write_text("\n".join((settings.read_text(), "[project.urls]", *lines, "")))
    readme = folder / "README.md"
    place = one.folder.relative_to(ROOT)
    readme.write_text(absolute_links(readme.read_text(), place, where.repository, f"v{release}"))
    return folder


def absolute_links(text: str, place: Path, repository: str, ref: str) -> str:
    """Return Markdown whose links to files lead to the forge; ``place`` is the folder of the page."""

    def absolute(found: re.Match[str]) -> str:
        target, _, anchor = found[3].partition("#")
        path = (ROOT / place / target).resolve().relative_to(ROOT)
        kind = "raw" if found[1] else "tree" if (ROOT / path).is_dir() else "blob"
        return f"{found[1]}{found[2]}({repository}/{kind}/{ref}/{path}{'#' if anchor else ''}{anchor})"

    return _LINK.sub(absolute, text)


def _requirements(project: Mapping[str, Any]) -> Iterator[str]:
    yield from project.get("dependencies", ())
    for lines in project.get("optional-dependencies", {}).values():
        yield from lines
