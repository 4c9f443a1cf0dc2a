"""A store in a directory that is there already, as an input's is; a store of jobs is made by its submission."""

from __future__ import annotations

from pathlib import Path

from cloudspot.local.filestore import FileStore


def directory_store(directory: Path | str) -> FileStore:
    """Make the directory and return its store, which is not held to an id."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    return FileStore(f"file://{directory}")
