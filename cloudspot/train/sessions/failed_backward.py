"""Notes that a backward pass or an all-reduce has failed, although the script may catch the error and go on.

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
def noted(note: Callable[[str, BaseException], None], *, succeeded: Callable[[], None]) -> Iterator[None]:
    """Call ``note`` with the reason and the error when one fails; ``succeeded`` after each backward pass."""
    inner, reduce = torch.autograd.backward, torch.distributed.all_reduce  # Tensor.backward looks it up, too

    @functools.wraps(inner)
    def backward(*args: Any, **options: Any) -> Any:
        try:
            found = inner(*args, **options)
        except BaseException as error:
            note("a backward pass has failed", error)
            raise
        succeeded()
        return found

    @functools.wraps(reduce)
    def all_reduce(*args: Any, **options: Any) -> Any:
        try:
            return reduce(*args, **options)
        except BaseException as error:
            note("an all-reduce has failed", error)
            raise

    torch.autograd.backward, torch.distributed.all_reduce = backward, all_reduce
    try:
        yield
    finally:
        if torch.autograd.backward is backward:
            torch.autograd.backward = inner
        if torch.distributed.all_reduce is all_reduce:
            torch.distributed.all_reduce = reduce
