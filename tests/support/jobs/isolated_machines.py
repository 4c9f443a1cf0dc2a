"""Whether this host can run isolated machines, tried once for all tests that need them."""

import pytest

from cloudspot.local.enclosure import why_not

WHY_NOT = why_not()
needs_isolated_machines = pytest.mark.skipif(
    WHY_NOT is not None, reason=f"NOT TESTED, no isolated machines: {WHY_NOT}"
)
