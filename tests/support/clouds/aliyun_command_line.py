"""Alibaba Cloud's command line as cloudspot and its docs print it, run on an emulated account.

It is no dependency of the tests. It passes an action's parameters on as they are, so each of its commands is a request
of the plugin's SDK here; the emulation refuses whatever is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.clouds.documented_setup import options_of

PRODUCTS = {"ecs": "Ecs", "ram": "Ram", "vpc": "Vpc"}


def run_command(ask: Callable[..., Any], words: Sequence[str], *, region: str) -> Any:
    """Run ``PRODUCT ACTION --Name value ...`` by ``ask(action, product, parameters)``; return the answer."""
    (product, action), parameters = options_of(list(words))
    assert parameters.pop("RegionId", region) == region
    return ask(action, PRODUCTS[product], parameters)
