"""Parameters of whole jobs that differ little: the full tests run one of them, the soak the others."""

import pytest


def first_in_full(first, *rest):
    """Return the values for ``parametrize``; those after the first are marked ``soak``."""
    return [first, *(pytest.param(one, marks=pytest.mark.soak) for one in rest)]
