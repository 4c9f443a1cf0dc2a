"""Sizes in bytes as text for people."""

from __future__ import annotations


def size_text(num_bytes: float) -> str:
    """Return a size in binary units: ``900 B``, ``12.3 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"
