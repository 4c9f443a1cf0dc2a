"""The moment in an optimizer's step from which the step may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def before_writes(args: Any, kwargs: Any, note: Callable[[], None]) -> Any:
    """Call ``note`` before a step writes; a hook that runs before the step calls this and returns its result.

    Without a closure, ``note`` is called now. If the step has a closure, which may run the backward pass as
    Lightning's does, ``note`` is called when the closure has returned.
    """

    def noting(closure: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            loss = closure()
            note()
            return loss

        return call

    if len(args) > 1 and callable(args[1]):
        return (args[0], noting(args[1]), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": noting(kwargs["closure"])}
    note()
    return None
