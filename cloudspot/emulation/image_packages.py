"""Find the Python packages of this host that an emulated image must lack because a real image lacks them."""

from __future__ import annotations

import csv
import posixpath
import site
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from cloudspot.boot.agentarchive import canonical, closure

_CORE = "cloudspot"
_PLUGIN_GROUPS = ("cloudspot.providers", "cloudspot.stores", "cloudspot.notifiers", "cloudspot.trackers")


def own_distributions() -> tuple[str, ...]:
    """Return the installed distributions of cloudspot and its plugins, without the emulations."""
    points = [one for group in _PLUGIN_GROUPS for one in metadata.entry_points(group=group)]
    plugins = {point.dist.name for point in points if point.dist is not None}
    return (_CORE, *sorted(plugins))


@lru_cache(maxsize=16)
def missing_files(distributions: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files and directories that this Python would lack with only ``distributions`` installed.

    Their dependencies are kept too, if this host has them. Packages whose installer has recorded no list of
    files, such as Debian's, count as part of the system and are kept.
    """
    installed = [name for name in distributions if any(metadata.distributions(name=name))]
    kept = set(map(canonical, closure(installed)))
    paths: set[str] = set()
    for place in places():
        needed: set[str] = set()
        missing: set[str] = set()
        for distribution in metadata.distributions(path=[str(place)]):
            files = needed if canonical(distribution.name) in kept else missing
            files.update(listed_files(distribution))
        shared: set[str] = set()
        for file in needed:
            _add_parents(shared, file)
        # A directory stands for all its files, unless some of them are kept. Outside the place, each file is
        # listed alone, because other files there are in no list, such as Python itself.
        names = {file if file.startswith("../") else _highest(file, shared) for file in missing - needed}
        paths.update(posixpath.normpath(posixpath.join(place, name)) for name in names)
    return tuple(sorted(paths))


def places() -> tuple[Path, ...]:
    """Return the directories that hold distributions of this Python and of its base Python."""
    named = site.getsitepackages(list(dict.fromkeys((sys.prefix, sys.base_prefix))))
    if site.ENABLE_USER_SITE:
        named.append(site.getusersitepackages())
    return tuple(dict.fromkeys(path.resolve() for path in map(Path, named) if path.is_dir()))


def listed_files(distribution: metadata.Distribution) -> Iterator[str]:
    """Yield the files in the distribution's list, as normalized paths relative to its directory.

    Entries outside the environment are skipped, because the list is not trusted.
    """
    place = str(Path(str(distribution.locate_file(""))).resolve())
    homes = [str(Path(one).resolve()) for one in (sys.prefix, sys.base_prefix, site.getuserbase())]
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        file = posixpath.normpath(row[0]) if row else ".."
        whole = posixpath.normpath(posixpath.join(place, file))
        if not file.startswith("/") and any(whole.startswith(f"{home}/") for home in homes):
            yield file


def _add_parents(found: set[str], file: str) -> None:
    end = file.rfind("/")
    while end > 0 and file[:end] not in found:
        found.add(file[:end])
        end = file.rfind("/", 0, end)


def _highest(file: str, shared: set[str]) -> str:
    """Return the highest parent directory of the file that is not shared, or the file itself."""
    end = file.find("/")
    while end > 0:
        if file[:end] not in shared:
            return file[:end]
        end = file.find("/", end + 1)
    return file
