"""Random histories in two portions: the first seeds in each run of the tests, the others in the long run."""

import pytest


def few_or_many(few, many):
    """Give a test the argument ``seeds``: the first ``few``, and in the long run the others below ``many``."""
    rest = pytest.param(range(few, many), marks=pytest.mark.full, id="many")
    return pytest.mark.parametrize("seeds", [pytest.param(range(few), id="few"), rest])
