"""Random histories in portions: the first seeds in each run of the tests, the others in the long run."""

import pytest


def few_or_many(few, many, *, portion=None):
    """Give a test the argument ``seeds``: the first ``few``, and in the long run the others below ``many``.

    ``portion`` is the number of the others that one test takes, which has a time limit; by default all of them.
    """
    size = many - few if portion is None else portion
    firsts = range(few, many, size)
    rest = [
        pytest.param(
            range(first, min(first + size, many)),
            marks=pytest.mark.full,
            id="many" if len(firsts) == 1 else f"many-{first}",
        )
        for first in firsts
    ]
    return pytest.mark.parametrize("seeds", [pytest.param(range(few), id="few"), *rest])
