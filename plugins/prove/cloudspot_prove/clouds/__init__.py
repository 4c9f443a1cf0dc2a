"""What differs between the clouds: what recordings show, how calls are repeated, how machines are taken."""

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
MAX_WORD: Final = 200


@cache
def words_of(package: str) -> frozenset[str]:
    """Return the texts that stand in a package's source, which are public and say nothing of an account.

    Examples of names of an account, as they are in messages, are not among them.
    """
    found = set()
    for path in files(package).iterdir():
        if path.name.endswith(".py"):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            rules = [one for one in nodes if isinstance(one, ast.Call) and _is_name_rule(one)]
            examples = {id(inner) for one in rules for inner in ast.walk(one)}
            found |= {one.value for one in nodes if isinstance(one, ast.Constant) and id(one) not in examples}
    return frozenset({one for one in found if isinstance(one, str) and 0 < len(one) <= MAX_WORD})


def _is_name_rule(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "NameRule"


class Cloud(ABC):
    """One cloud, for a first run on it."""

    left_out: ClassVar[frozenset[str]] = frozenset()
    """Services that are not recorded, as those of objects and logs: their answers are the job's own data."""
    types_option: ClassVar[str] = ""
    """The option that names the types of machines; empty: the provider's table lists them itself."""
    setup: ClassVar[tuple[str, ...]] = ()
    """Lines of ``run.setup`` that install PyTorch where the provider's own image has none."""
    python: ClassVar[str | None] = None
    """``run.python`` with these."""
    release: ClassVar[str | None] = None
    """How a person takes a machine where no reclaim can be requested; None: ``cloudspot preempt`` does it."""
    bill: ClassVar[str]
    """Where the cloud shows its own bill."""
    has_functions: ClassVar[bool] = True

    free: ClassVar[frozenset[str]] = frozenset()
    """Parameters that may be made up, since they decide on no answer: tokens, scripts, the values of tags."""

    def own(self, kind: str) -> str | None:
        """Return the account's own name that follows this part of a path, where there is only one."""
        return None

    def completed(self, action: str, request: Any) -> Any:
        """Return a request to repeat with what a recording cannot hold, such as a script in base64."""
        return request

    @abstractmethod
    def allowed(self) -> Allowed:
        """Return what a recording may show; without I/O."""

    @abstractmethod
    def repeat(self, exchange: Exchange) -> None:
        """Make a recorded request again, with this computer's credentials.

        What it names was put in for the pseudonyms. The plugin tells the answer to who observes; a refusal is
        no error here.
        """


def cloud_of(provider: str) -> Cloud:
    """Return the cloud of a provider; raise SpecError if this distribution knows none."""
    place = CLOUDS.get(provider)
    if place is None:
        raise SpecError(f"{provider!r} is not one of the clouds that can be proven: {', '.join(CLOUDS)}")
    module, _, name = place.partition(":")
    made: Cloud = getattr(import_module(module), name)()
    return made
