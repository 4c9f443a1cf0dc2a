"""Masks the requests and answers of a cloud's API: only names and values on an allow-list remain.

Any other text becomes a pseudonym, which is the same for the same text within one recording, so that readers
can see which texts are equal.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

MARK: Final = "~"
"""The character with which a masked value begins."""
NUMBER: Final = "~number"
TIME: Final = "~time"
BYTES: Final = "~bytes"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")
_SHOWN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/ +-]{0,63}")
"""Even a value that may be shown is shown only if it has this form."""
_CODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}")


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """The contents that a recording of one cloud may show."""

    names: Callable[[str], frozenset[str]]
    """Returns the names of a service's fields that the cloud's SDK defines."""
    values: frozenset[str]
    """Fields whose values are shown, such as ``InstanceType`` or, with the field around it, ``State.Name``.
    """
    texts: Callable[[str], frozenset[str]]
    """Returns texts that are shown anywhere in a service's requests: texts in cloudspot's own source, and in
    the API's definition.
    """
    segments: frozenset[str] = frozenset()
    """Parts of an HTTP path that are shown."""
    named_by: frozenset[str] = frozenset()
    """Parts of a path after which the next part is shown, such as ``zones``."""


class Mask:
    """Masks values for one recording."""

    def __init__(self, key: bytes, allowed: Allowed) -> None:
        """``key`` is the recording's own; its owner can test whether a pseudonym stands for a text."""
        self._key = key
        self._allowed = allowed

    def pseudonym(self, text: str) -> str:
        """Return the pseudonym of the text."""
        return MARK + hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()[:12]

    def code(self, code: str) -> str:
        """Return an error's code, or its pseudonym if it does not have the form of a code."""
        return code if not code or _CODE.fullmatch(code) else self.pseudonym(code)

    def action(self, action: str, service: str) -> str:
        """Return an operation's name, or a method and a path in which names are masked."""
        method, space, path = action.partition(" ")
        if not space:
            return self.code(action)
        shown, before = [], ""
        known = self._allowed.segments | self._allowed.texts(service)
        for part in path.split("/"):
            # Google's own verbs follow a colon.
            name, colon, verb = part.partition(":")
            is_shown = not name or name in known or before in self._allowed.named_by
            is_shown = is_shown and (not name or _SHOWN.fullmatch(name) is not None)
            verb = verb if verb in known else verb and self.pseudonym(verb)
            shown.append((name if is_shown else self.pseudonym(name)) + colon + verb)
            before = name
        return f"{method} {'/'.join(shown)}"

    def tree(self, value: Any, service: str) -> Any:
        """Return a JSON value, or an SDK's version of one, in which all that may not be shown is masked."""
        texts = self._allowed.texts(service)
        return self._tree(value, self._allowed.names(service) | texts, texts, ())

    def _tree(self, value: Any, names: frozenset[str], texts: frozenset[str], path: tuple[str, ...]) -> Any:
        if value is None or isinstance(value, bool) or value in ("", [], {}):
            return value
        if isinstance(value, Mapping):
            return {
                self._name(str(name), names): self._tree(one, names, texts, (*path, str(name)))
                for name, one in value.items()
            }
        if isinstance(value, (int, float)):
            return value if self._is_shown(path) else NUMBER
        if isinstance(value, datetime):
            return TIME
        if isinstance(value, str):
            return self._text(value, texts, path)
        if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
            return [self._tree(one, names, texts, path) for one in value]
        return BYTES

    def _name(self, name: str, names: frozenset[str]) -> str:
        return name if name in names else self.pseudonym(name)

    def _text(self, text: str, texts: frozenset[str], path: Sequence[str]) -> str:
        if _TIME.fullmatch(text):
            return TIME
        # A URL names an object by its last part, as a path does.
        last = text.rstrip("/").rpartition("/")[2] if text.startswith(("http://", "https://")) else text
        if last in texts:
            return last
        if self._is_shown(path) and _SHOWN.fullmatch(last):
            return last
        return self.pseudonym(last)

    def _is_shown(self, path: Sequence[str]) -> bool:
        allowed = self._allowed.values
        return bool(path) and (path[-1] in allowed or ".".join(path[-2:]) in allowed)
