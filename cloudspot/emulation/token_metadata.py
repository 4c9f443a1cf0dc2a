"""Base class for metadata services that use session tokens and serve a tree of text values."""

from __future__ import annotations

import re
import secrets
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Final

from cloudspot.emulation.role_credentials import RoleKeys, ShownCredentials
from cloudspot.local.machines import now_utc
from cloudspot.local.metadataservice import Answer, MachineView, MetadataService, Request

MIN_TOKEN_SECONDS: Final = 1
MAX_TOKEN_SECONDS: Final = 21600

_PAGE = """\
<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
	"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>{0} - {1}</title>
 </head>
 <body>
  <h1>{0} - {1}</h1>
 </body>
</html>
"""

Tree = Mapping[str, Any]
"""Entries by name: a text, a subtree, or a function that returns one of these."""


class TokenedMetadata(MetadataService):
    """One machine's service; a plugin's subclass supplies its cloud's names and the data."""

    versions: ClassVar[tuple[str, ...]]
    """The versions of the interface as they are listed, including ``latest``."""
    pass_header: ClassVar[str]
    """The token's header, in lower case; with ``-ttl-seconds`` appended, the header that requests a token."""
    token_prefix: ClassVar[str] = ""
    bare_status: ClassVar[int] = 401
    """The status for a request that lacks a required token; a wrong token gets 401."""
    titles: ClassVar[Mapping[int, str]] = {
        400: "Bad Request",
        401: "Unauthorized",
        403: "Forbidden",
        404: "Not Found",
        405: "Method Not Allowed",
    }

    def __init__(self, view: MachineView, *, now: Callable[[], datetime] = now_utc) -> None:
        super().__init__(view)
        self._now = now
        self._tokens: dict[str, datetime] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def tree(self) -> Tree:
        """Return the tree below a version, without the user data."""

    @abstractmethod
    def needs_token(self) -> bool:
        """Return whether this machine's service requires a token."""

    def token_hops(self) -> int | None:
        """Return the hop limit of the response to a token request, or None for the usual limit."""
        return None

    def answer(self, request: Request) -> Answer:
        path = request.path.partition("?")[0]
        if request.method == "PUT" and path.rstrip("/") == "/latest/api/token":
            return self._give_token(request)
        if request.method not in {"GET", "HEAD"}:
            return self.refuse(405)
        refusal = self._check_token(request)
        if refusal is not None:
            return self.refuse(refusal)
        return self._find(path)

    def _give_token(self, request: Request) -> Answer:
        # A request through a proxy may not come from the machine itself.
        if "x-forwarded-for" in request.headers:
            return self.refuse(403)
        life_header = f"{self.pass_header}-ttl-seconds"
        text = request.headers.get(life_header, "")
        if not re.fullmatch(r"[0-9]{1,5}", text) or not MIN_TOKEN_SECONDS <= int(text) <= MAX_TOKEN_SECONDS:
            return self.refuse(400)
        token = self.token_prefix + secrets.token_urlsafe(37) + "=="
        with self._lock:
            now = self._now()
            self._tokens = {one: end for one, end in self._tokens.items() if end > now}
            self._tokens[token] = now + timedelta(seconds=int(text))
        return Answer(200, token.encode(), headers={life_header: text}, hop_limit=self.token_hops())

    def _check_token(self, request: Request) -> int | None:
        token = request.headers.get(self.pass_header)
        if token is None:
            return self.bare_status if self.needs_token() else None
        with self._lock:
            end = self._tokens.get(token)
        return None if end is not None and end > self._now() else 401

    def _find(self, path: str) -> Answer:
        parts = [part for part in path.split("/") if part]
        if not parts:
            return _text("\n".join(self.versions))
        version, *rest = parts
        if version not in self.versions:
            return self.refuse(404)
        if rest == ["user-data"]:
            if not self.view.user_data:
                return self.refuse(404)
            return Answer(200, self.view.user_data, "application/octet-stream")
        node: Any = {**self.tree(), "user-data": ""}
        if not self.view.user_data:
            del node["user-data"]
        for part in rest:
            node = node() if callable(node) else node
            if not isinstance(node, Mapping) or part not in node:
                return self.refuse(404)
            node = node[part]
        node = node() if callable(node) else node
        if not isinstance(node, Mapping):
            return self.refuse(404) if path.endswith("/") else _text(str(node))
        # Names of directories end in a slash, except at the top.
        slash = "/" if rest else ""
        return _text(
            "\n".join(
                name + (slash if callable(value) or isinstance(value, Mapping) else "")
                for name, value in sorted(node.items())
            )
        )

    def refuse(self, status: int) -> Answer:
        """Return an error page."""
        return Answer(status, _PAGE.format(status, self.titles[status]).encode(), "text/html")


class RoleMetadata(TokenedMetadata):
    """A service that also shows the credentials of its machine's role.

    It uses the machine's facts ``http-tokens`` (``required`` or ``optional``) and
    ``http-put-response-hop-limit``, and the facts that :class:`ShownCredentials` uses.
    """

    role_keys: ClassVar[type[RoleKeys]]
    renewed_before: ClassVar[timedelta]
    """How long new credentials appear before the old ones expire."""

    def __init__(self, view: MachineView, *, now: Callable[[], datetime] = now_utc) -> None:
        super().__init__(view, now=now)
        self.credentials = ShownCredentials(self.role_keys, view.facts, lead=self.renewed_before, now=now)

    def needs_token(self) -> bool:
        return bool(self.view.facts.get("http-tokens", "optional") == "required")

    def token_hops(self) -> int:
        return int(self.view.facts.get("http-put-response-hop-limit", 1))


def shown_time(moment: datetime) -> str:
    """Return a time in the format of these services, such as ``2026-11-30T08:00:00Z``."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(text: str) -> Answer:
    return Answer(200, text.encode())
