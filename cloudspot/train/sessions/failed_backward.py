"""Reports that a backward pass or an all-reduce has failed, even if the script catches the error.

Then the sums of the gradients are incomplete, and an optimizer that steps anyway spoils the weights. torch
does not report this in time: DDP's next backward pass also fails, but only after that step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def noted(note: Callable[[str, BaseException], None], *, succeeded: Callable[[], None]) -> Iterator[None]:
    """Call ``note`` with a failure's reason and error, and ``succeeded`` after each backward pass."""
    inner, reduce = torch.autograd.backward, torch.distributed.all_reduce  # Tensor.backward uses the former

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
