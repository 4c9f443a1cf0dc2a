"""Waits for Compute Engine's operations.

The caller checks their errors, because a failed operation is done, too.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

from cloudspot.errors import TransientError
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.listing import is_done
from cloudspot_gcp.lookups import ask

WAIT_SECONDS: Final = 150.0
"""How long one call of ``wait`` may take, in seconds; the server holds it for two minutes (discovery
document).
"""
MAX_SECONDS: Final = 120.0
"""How long to wait for an operation, in seconds; the next try finds the operation by its request's id."""
NUM_WAITS: Final = 20
"""How often to ask, a second apart, because a busy server may answer a wait at once."""


def wait_for_region(
    clients: GcpClients, region: str, operation: Any, what: str, *, deadline: float = math.inf
) -> Any:
    """Wait for a region's operation until the deadline, and return it when it is done; see ``_wait``."""
    most = min(MAX_SECONDS, max(0.0, deadline - time.monotonic()))
    return _wait(clients, "RegionOperationsClient", operation, what, most_seconds=most, region=region)


def wait_for_global(clients: GcpClients, operation: Any, what: str) -> Any:
    """Wait for a global operation, and return it when it is done; see ``_wait``."""
    return _wait(clients, "GlobalOperationsClient", operation, what)


def _wait(
    clients: GcpClients,
    kind: str,
    operation: Any,
    what: str,
    *,
    most_seconds: float = MAX_SECONDS,
    **place: str,
) -> Any:
    """Return the operation when it is done; ``refusals.causes_of`` shows whether it succeeded.

    The SDK's own waiting is not suitable: it ignores the configured endpoint, and counts an operation with
    errors as a success.

    Raises:
        TransientError: the operation is not done yet, or Google did not answer, so the outcome is unknown.
    """
    request = {"project": clients.project, **place, "operation": operation.name}
    began = time.monotonic()
    for _ in range(NUM_WAITS):
        if is_done(operation):
            return operation
        operation = ask(
            what,
            lambda: clients.call(kind, "wait", request, seconds=WAIT_SECONDS),
        )
        if not is_done(operation):
            if time.monotonic() - began > most_seconds:
                break
            time.sleep(1.0)
    if is_done(operation):
        return operation
    raise TransientError(f"{what}: not done after {time.monotonic() - began:.0f} s; asking again")
