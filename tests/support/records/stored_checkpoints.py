"""A job's checkpoints as files of the local provider's store."""

from __future__ import annotations

from pathlib import Path


def newest_manifests(job: Path) -> list[Path]:
    """Return the checkpoints' manifests, newest first."""
    return sorted(job.glob("manifests/*"), reverse=True)


def flip_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def chunks_of(manifest: Path) -> list[Path]:
    """Return the chunks of a checkpoint."""
    return sorted((manifest.parent.parent / "checkpoints").glob(f"{manifest.name}-*/chunks/*/*"))
