"""Access to the local site, for browsers that have the token, but not for other sites in those browsers."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""The policy that pages run only the site's own script, and send data only to the site."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with "no-referrer", a form's own Origin would be "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access:
    """Passes permitted requests on to the site.

    The first URL contains a token, which becomes a cookie of this site only. The Host must be this computer's
    loopback, so that another site's name that resolves to it is refused (DNS rebinding). Requests from pages
    of other sites have a foreign Origin and are refused, and so are changes without an Origin.
    """

    def __init__(self, app: App, port: int, *, token: str) -> None:
        """Guard the application, which is served at ``port``; the first URL contains ``token``."""
        self._app = app
        self._token = token
        self._cookie_name = f"cloudspot-ui-{port}"  # cookies ignore ports, and several sites may be open
        self._cookie = secrets.token_urlsafe(32)
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refused = self._look(scope)
        if refused is not None:
            for name, value in _HEADERS.items():
                refused.headers[name] = value
            await refused(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower().encode(): value.encode() for name, value in _HEADERS.items()}
                message["headers"] = [*(one for one in message["headers"] if one[0] not in own), *own.items()]
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _look(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not passed on, or None if it is passed on."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            message = f"the Host {host!r} is not this site's; open it at 127.0.0.1"
            return PlainTextResponse(message, status_code=421)
        is_change = scope["method"] not in {"GET", "HEAD"}
        if (origin is None and is_change) or (origin is not None and origin != f"http://{host}"):
            return PlainTextResponse("the request does not come from a page of this site", status_code=403)
        if _is(self._cookie, self._cookie_of(headers.get("cookie", ""))):
            return None
        given = parse_qs(scope["query_string"].decode("ascii", errors="replace")).get("token", [""])[0]
        if scope["path"] == "/" and not is_change and _is(self._token, given):
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(self._cookie_name, self._cookie, httponly=True, samesite="strict", path="/")
            return answer
        message = "the request has no valid token: open the URL that `cloudspot ui` has printed"
        return PlainTextResponse(message, status_code=403)

    def _cookie_of(self, header: str) -> str:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(header)
        except CookieError:
            return ""
        found = cookies.get(self._cookie_name)
        return "" if found is None else found.value


def _is(secret: str, given: str) -> bool:
    return hmac.compare_digest(secret.encode(), given.encode(errors="replace"))
