"""Parses quantities of resources, and finds launches that exceed a ResourceQuota in any case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from cloudspot_kubernetes.cluster import Refusal
from cloudspot_kubernetes.podspec import PodsRequest

_AMOUNTS = re.compile(r"(requested|limited): ((?:[^\s=,]+=[^\s=,;]+,?)+)")


def never_fits(refusal: Refusal, body: PodsRequest) -> str:
    """Return why a quota can never allow the launch, even if nothing else runs, or "" if it may allow it.

    All pods of a launch request the same resources, and the launch needs ``min_nodes`` of them at once. The
    figures are found only in the API server's message: ``exceeded quota: NAME, requested: A=1,B=2, used: A=9,
    limited: A=9`` (kubernetes, plugin/pkg/admission/resourcequota/controller.go).
    """
    amounts = {kind: _amounts(text) for kind, text in _AMOUNTS.findall(str(refusal))}
    for name, limit in amounts.get("limited", {}).items():
        asked = amounts.get("requested", {}).get(name)
        if asked is not None and asked * body.min_nodes > limit:
            pods = "one pod asks" if asked > limit else f"the {body.min_nodes} pods that it needs ask"
            return (
                f"{pods} for more {name} than the namespace's quota can ever give: ask for less, or raise it"
            )
    return ""


def amount(quantity: object) -> Decimal:
    """Parse a quantity in the form that Kubernetes uses, such as ``7910m`` or ``28Gi``.

    Raises:
        ValueError: the text is not a quantity.
    """
    found: Decimal = parse_quantity(quantity)
    return found


def amounts(quantities: Mapping[str, Any] | None) -> dict[str, Decimal]:
    """Parse the quantities of several resources, by name."""
    return {name: amount(one) for name, one in (quantities or {}).items()}


def _amounts(text: str) -> dict[str, Decimal]:
    """Return the quantities in a message, without those that cannot be parsed."""
    amounts = {}
    for assignment in text.strip(",").split(","):
        name, _, quantity = assignment.partition("=")
        with suppress(ValueError):
            amounts[name] = amount(quantity)
    return amounts
