"""The differences between the clouds: what recordings may show, and how calls and reclaims are made."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, ClassVar, Final

from cloudspot.errors import SpecError
from cloudspot_prove.masking import Allowed
from cloudspot_prove.recording import Exchange

CLOUDS: Final = {
    "aliyun": "cloudspot_prove.clouds.aliyun:Aliyun",
    "aws": "cloudspot_prove.clouds.aws:Aws",
    "gcp": "cloudspot_prove.clouds.gcp:Gcp",
    "kubernetes": "cloudspot_prove.clouds.kubernetes:Kubernetes",
}
MAX_TEXT: Final = 200


@cache
def public_texts_of(package: str) -> frozenset[str]:
    """Return the texts in a package's source, which are public and reveal nothing about an account.

    Examples of an account's names, which messages contain, are not included.
    """
    found = set()
    for path in files(package).iterdir():
        if path.name.endswith(".py"):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            rules = [one for one in nodes if isinstance(one, ast.Call) and _is_name_rule(one)]
            examples = {id(inner) for one in rules for inner in ast.walk(one)}
            found |= {one.value for one in nodes if isinstance(one, ast.Constant) and id(one) not in examples}
    return frozenset({one for one in found if isinstance(one, str) and 0 < len(one) <= MAX_TEXT})


def _is_name_rule(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "NameRule"


class Cloud(ABC):
    """The properties of one cloud that a first run on it needs."""

    left_out: ClassVar[frozenset[str]] = frozenset()
    """Services that are not recorded, such as those of objects and logs, because their answers are the job's
    own data.
    """
    types_option: ClassVar[str] = ""
    """The option that names the machine types; empty if the provider's table lists them itself."""
    setup: ClassVar[tuple[str, ...]] = ()
    """Lines of ``run.setup`` that install PyTorch if the provider's own image does not have it."""
    python: ClassVar[str | None] = None
    """``run.python`` with this setup."""
    release: ClassVar[str | None] = None
    """How a user reclaims a machine if no reclaim can be requested; None if ``cloudspot preempt`` does so."""
    bill: ClassVar[str]
    """Where the cloud shows its own bill."""
    has_functions: ClassVar[bool] = True

    free: ClassVar[frozenset[str]] = frozenset()
    """Parameters that may be invented, because answers do not depend on them: tokens, scripts, the values of
    tags.
    """

    def own(self, kind: str) -> str | None:
        """Return the account's own name that follows this part of a path, if there is only one such name."""
        return None

    def completed(self, action: str, request: Any) -> Any:
        """Return a request to repeat, with values that a recording cannot contain, such as a script."""
        return request

    @abstractmethod
    def allowed(self) -> Allowed:
        """Return what a recording may contain; this does no I/O."""

    @abstractmethod
    def repeat(self, exchange: Exchange) -> None:
        """Make a recorded request again, with this computer's credentials.

        Its pseudonyms have been replaced by real names. The plugin reports the answer to observers; a refusal
        is not an error here.
        """


def cloud_of(provider: str) -> Cloud:
    """Return a provider's cloud; raise SpecError if this distribution does not know the provider."""
    place = CLOUDS.get(provider)
    if place is None:
        raise SpecError(f"{provider!r} is not one of the clouds that can be proven: {', '.join(CLOUDS)}")
    module, _, name = place.partition(":")
    made: Cloud = getattr(import_module(module), name)()
    return made
