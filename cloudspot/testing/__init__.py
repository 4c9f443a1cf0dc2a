"""Test kits for plugin authors, with the promises of each interface as tests; and isolated tests."""

import pkgutil
import sys

if "pytest" in sys.modules:
    import pytest

    # A failure should show the values that differ, as in an author's own tests. pytest rewrites the asserts
    # of an installed package only if the package is registered before the import.
    pytest.register_assert_rewrite(*(f"{__name__}.{one.name}" for one in pkgutil.iter_modules(__path__)))
