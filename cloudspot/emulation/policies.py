"""Policies in JSON as AWS and Alibaba Cloud have them: statements that allow actions on resources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase


def is_allowed(policies: Sequence[str], right: str, resource: str) -> bool:
    """Return whether one of the policies (JSON) grants a right on a resource.

    Conditions and denials are not understood.
    """
    statements = [one for policy in policies for one in json.loads(policy)["Statement"]]
    return any(
        one["Effect"] == "Allow" and _matches(one["Action"], right) and _matches(one["Resource"], resource)
        for one in statements
    )


def _matches(patterns: str | Sequence[str], text: str) -> bool:
    listed = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(text, one) for one in listed)
