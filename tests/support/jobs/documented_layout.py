"""The keys that docs/bucket-layout.md documents, held against those that a job has left."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

LAYOUT = (Path(__file__).parents[3] / "docs" / "bucket-layout.md").read_text()


def documented_keys() -> dict[str, str]:
    """Return a regular expression for each key of the documented layout."""
    keys = re.findall(r"^\| `([^`]*/[^`]*|store-id)` \|", LAYOUT, re.MULTILINE)
    # An artifact's name is a path.
    return {
        key: re.sub(r"<\w+>", lambda found: ".+" if found[0] == "<name>" else "[^/]+", re.escape(key))
        for key in keys
    }


def check_layout(keys: Collection[str], *, absent: Collection[str]) -> None:
    """Each key is documented, and each documented one is there but for ``absent``."""
    documented = documented_keys()
    met = {key: [one for one, pattern in documented.items() if re.fullmatch(pattern, key)] for key in keys}
    assert [key for key, found in met.items() if not found] == []
    found = {one for many in met.values() for one in many}
    expected = set(documented) - set(absent)
    assert found == expected, f"not expected: {found - expected}; missing: {expected - found}"
