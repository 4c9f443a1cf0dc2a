"""Write an account's settings to the user's config file, and leave its other lines unchanged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from cloudspot.errors import SpecError
from cloudspot.host.partial_files import write_whole
from cloudspot.model import SetupSettings


def write_settings(path: Path, provider: str, settings: SetupSettings) -> list[str]:
    """Write the provider's options, and the store under the provider's name; return the lines to show.

    A default store that is already in the file is kept.

    Raises:
        SpecError: the file is not TOML, or cannot be written.
    """
    document = _read(path)
    lines = []
    if settings.store_url is not None:
        _table(document, "stores")[provider] = settings.store_url
        lines.append(f"stores.{provider} = {settings.store_url}")
        default = document.setdefault("default_store", provider)
        stays = "" if default == provider else f" (kept; use the new one with --store {provider})"
        lines.append(f"default_store = {default}{stays}")
    for option, value in settings.options.items():
        _table(document, "providers", provider)[option] = value
        lines.append(f"providers.{provider}.{option} = {tomlkit.item(value).as_string()}")
    _write(path, document)
    return lines


def withdraw_settings(path: Path, provider: str, settings: SetupSettings) -> None:
    """Remove the values that ``write_settings`` wrote, unless they have changed since.

    Raises:
        SpecError: the file is not TOML, or cannot be written.
    """
    if not path.exists():
        return
    document = _read(path)
    stores: Any = document.get("stores", {})
    if stores.get(provider) == settings.store_url is not None:
        del stores[provider]
        if document.get("default_store") == provider:
            del document["default_store"]
    options: Any = document.get("providers", {}).get(provider, {})
    for option, value in settings.options.items():
        if options.get(option) == value:
            del options[option]
    for names in (("stores",), ("providers", provider), ("providers",)):
        _drop_empty(document, *names)
    _write(path, document)


def _read(path: Path) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return tomlkit.document()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error


def _write(path: Path, document: tomlkit.TOMLDocument) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # If the path is a symlink, keep it and write the file that it points to.
        write_whole(Path(os.path.realpath(path)), tomlkit.dumps(document).encode())
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}") from error


def _table(document: Any, *names: str) -> Any:
    """Return the table of that name; create it if it is missing."""
    found = document
    for number, name in enumerate(names, start=1):
        if name not in found:
            found[name] = tomlkit.table(is_super_table=number < len(names))
        found = found[name]
    return found


def _drop_empty(document: Any, *names: str) -> None:
    *above, last = names
    found: Any = document
    for name in above:
        found = found.get(name, {})
    if isinstance(found.get(last), Mapping) and not found[last]:
        del found[last]
