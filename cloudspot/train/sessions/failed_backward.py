"""Notes that a backward pass has failed, although the script may catch the error and go on.

The sums of the gradients are incomplete then, and an optimizer that steps all the same spoils the weights.
torch tells nobody: DDP's next backward pass fails, too, but comes after that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def noted(note: Callable[[str], None]) -> Iterator[None]:
    """Call ``note`` with the reason when a backward pass fails, in whatever way the script has started it."""
    inner = torch.autograd.backward  # which Tensor.backward looks up at each call

    @functools.wraps(inner)
    def backward(*args: Any, **options: Any) -> Any:
        try:
            return inner(*args, **options)
        except BaseException:
            note("a backward pass has failed")
            raise

    torch.autograd.backward = backward
    try:
        yield
    finally:
        if torch.autograd.backward is backward:
            torch.autograd.backward = inner
