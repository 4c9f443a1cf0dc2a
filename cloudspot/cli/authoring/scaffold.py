"""The files of a new plugin: templates, filled in with its names and the docstrings of the interfaces."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from cloudspot import __version__, hookspecs, interfaces, registry
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.testing.account import Account, LogAccount, Service, StoreAccount
from cloudspot.testing.machine import Machine

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PLACES = {"ci.yml": ".github/workflows/ci.yml"}
"""The paths of files that are named differently in the template."""
_DOC = re.compile(r"^( *)@DOC (\w+)\.(\w+)@$", re.MULTILINE)
_DESCRIBED = {
    **{kind.__name__: kind for kind in (Account, LogAccount, Machine, Service, StoreAccount)},
    **{
        kind.__name__: kind
        for kind in (
            interfaces.LogSink,
            interfaces.ObjectStore,
            interfaces.PreemptionSource,
            interfaces.Provider,
            interfaces.Provisioner,
            interfaces.Upload,
        )
    },
}


def check_name(name: str) -> None:
    """Check the name of a new provider and store scheme.

    Raises:
        SpecError: the name is malformed or already in use.
    """
    if _NAME.fullmatch(name) is None:
        raise SpecError(
            f"NAME: {name!r} must consist of lower-case letters and digits, with single hyphens between "
            "them, such as acme-2"
        )
    taken = {*registry.provider_names(), *registry.store_schemes(), *registry.sandbox_names()}
    if name in taken or registry.has_extra(name):
        raise SpecError(f'NAME: "{name}" is taken by another plugin; choose another name')
    if find_spec(package_of(name)) is not None:
        raise SpecError(f"NAME: a package named {package_of(name)} is already installed; choose another name")


def package_of(name: str) -> str:
    """Return the name of the Python package for the plugin with that name."""
    return f"cloudspot_{name.replace('-', '_')}"


def files(name: str) -> Mapping[str, str]:
    """Return the text of each of the distribution's files, by path."""
    values = {
        "NAME": name,
        "PACKAGE": package_of(name),
        "CLASS": "".join(part.capitalize() for part in name.split("-")),
        "API_VERSION": str(hookspecs.API_VERSION),
        "VERSION": __version__,
        "YEAR": str(datetime.now(timezone.utc).year),
    }
    contents = {}
    with resources.as_file(resources.files("cloudspot.cli") / "templates" / "plugin") as root:
        for path in sorted(root.rglob("*.txt")):
            inside = path.relative_to(root).with_suffix("").as_posix()
            place = re.sub("^package/", f"{values['PACKAGE']}/", _PLACES.get(inside, inside))
            text = _DOC.sub(_docstring, path.read_text(encoding="utf-8"))
            contents[place] = re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], text)
    return contents


def write_files(directory: Path, texts: Mapping[str, str]) -> None:
    """Write the files to the directory, in which none of them may exist yet.

    Raises:
        SpecError: one of them already exists; nothing was written.
        CloudspotError: a file cannot be written.
    """
    for place in texts:
        if (directory / place).exists():
            raise SpecError(f"{directory / place} already exists; name another directory")
    try:
        for place, text in texts.items():
            (directory / place).parent.mkdir(parents=True, exist_ok=True)
            with (directory / place).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise CloudspotError(f"{error.filename} cannot be written: {error.strerror}") from error


def _docstring(match: re.Match[str]) -> str:
    """Return the docstring of the method that the line names, with the line's indentation."""
    indent, kind, method = match.groups()
    doc = inspect.getdoc(vars(_DESCRIBED[kind])[method])
    assert doc, f"{kind}.{method} has no docstring"
    closing = "\n" if "\n" in doc else ""
    return textwrap.indent(f'"""{doc}{closing}"""', indent)
