"""Checks a bucket's settings: some keep deleted objects, which are billed, and some would break jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloudspot.model import CheckResult

_NONCURRENT = frozenset({"daysSinceNoncurrentTime", "noncurrentTimeBefore", "numNewerVersions"})
"""The lifecycle conditions that only old versions can meet."""


def check_settings(handle: Any, prefix: str) -> Sequence[CheckResult]:
    """Return the results for a bucket; ``handle`` is the SDK's bucket, with its settings loaded."""
    return (
        CheckResult(name="bucket location", ok=True, detail=str(handle.location)),
        _finding("bucket versioning", *_versioning(handle)),
        _finding("bucket soft delete", *_soft_delete(handle)),
        _check_retention(handle),
        _check_lifecycle(handle, prefix),
        _finding("bucket storage class", *_storage_class(handle)),
    )


def _finding(name: str, detail: str, advice: str) -> CheckResult:
    return CheckResult(name=name, ok=True, detail=detail, remedy=advice)


def _versioning(handle: Any) -> tuple[str, str]:
    if not handle.versioning_enabled:
        return "off", ""
    return (
        "on: deleted and replaced objects stay as old versions and are billed",
        "add a lifecycle rule that deletes noncurrent versions",
    )


def _soft_delete(handle: Any) -> tuple[str, str]:
    policy = handle.soft_delete_policy
    seconds = int(policy.retention_duration_seconds or 0) if policy is not None else 0
    if seconds == 0:
        return "off", ""
    return (
        f"on: deleted and replaced objects are billed for {seconds / 86400:g} more days",
        f"turn it off (gcloud storage buckets update gs://{handle.name} --clear-soft-delete)",
    )


def _storage_class(handle: Any) -> tuple[str, str]:
    name = str(handle.storage_class or "STANDARD")
    if name == "STANDARD":
        return name, ""
    return (
        f"{name}: each object is billed for a minimum time, and cloudspot deletes many sooner",
        "use STANDARD, which has no minimum",
    )


def _check_lifecycle(handle: Any, prefix: str) -> CheckResult:
    """Look for a rule that deletes live objects below the prefix."""
    for rule in handle.lifecycle_rules:
        condition = rule.get("condition", {})
        starts = condition.get("matchesPrefix", [""])
        is_here = any(start.startswith(prefix) or prefix.startswith(start) for start in starts)
        is_of_old_versions = condition.get("isLive") is False or not _NONCURRENT.isdisjoint(condition)
        if rule.get("action", {}).get("type") == "Delete" and is_here and not is_of_old_versions:
            return CheckResult(
                name="bucket lifecycle",
                ok=False,
                detail="a rule deletes objects below the store's prefix, even checkpoints that are needed",
                remedy="leave the prefix out of the rule, or use another bucket",
            )
    return CheckResult(name="bucket lifecycle", ok=True, detail="no rule deletes live objects")


def _check_retention(handle: Any) -> CheckResult:
    if not handle.retention_period:
        return CheckResult(name="bucket retention", ok=True, detail="none")
    return CheckResult(
        name="bucket retention",
        ok=False,
        detail=f"objects cannot be replaced or deleted for {handle.retention_period} s",
        remedy="use a bucket without a retention policy",
    )
