"""The Google Cloud roles that cloudspot needs, one in each file: the only list of its permissions.

``cloudspot setup`` makes these roles, and docs/gcp.md shows them. ``gcloud iam roles create --file`` accepts
the files; a comment before a group of permissions gives their reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).with_name("roles")


@dataclass(frozen=True)
class Role:
    """A custom role."""

    title: str
    description: str
    groups: Mapping[str, Sequence[str]]
    """The role's permissions, by their reason."""

    @property
    def permissions(self) -> tuple[str, ...]:
        """Return all permissions, sorted."""
        return tuple(sorted(one for group in self.groups.values() for one in group))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return a line for each reason, with its permissions."""
        return tuple(f"{why}: {', '.join(group)}" for why, group in self.groups.items())

    def body(self) -> dict[str, Any]:
        """Return the role in the form of IAM's API."""
        return {
            "title": self.title,
            "description": self.description,
            "stage": "GA",
            "includedPermissions": list(self.permissions),
        }


def role(name: str) -> Role:
    """Return the named role, such as ``submitter``."""
    fields: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    why = ""
    for line in (DIRECTORY / f"role-{name}.yaml").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            why = line[2:].rstrip(".")
        elif line.startswith("- "):
            groups.setdefault(why or fields["description"], []).append(line[2:])
        else:
            key, _, value = line.partition(":")
            fields[key] = value.strip()
            why = ""
    return Role(fields["title"], fields["description"], groups)


def self_end_condition() -> dict[str, str]:
    """Return the condition under which machines are granted the role ``self-end``."""
    lines = (DIRECTORY / "condition-self-end.yaml").read_text(encoding="utf-8").splitlines()
    title = next(line for line in lines if line.startswith("title: ")).removeprefix("title: ")
    return {"title": title, "expression": lines[-1].strip()}
