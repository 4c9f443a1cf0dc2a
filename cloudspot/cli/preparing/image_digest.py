"""Request the digest of an image's tag from a registry, so that all machines of a job run the same image.

The protocol is the OCI Distribution Specification 1.1, with the tokens of Docker's registries.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from cloudspot.errors import AuthError, SpecError
from cloudspot.host.paced_http import UnreadRedirects, read_at_most
from cloudspot.host.public_addresses import AddressRefused, handlers, public_addresses
from cloudspot.jobfile.image import image_parts, login_key
from cloudspot.model import RegistryLogin

TIMEOUT_SECONDS = 20.0
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_IDENTITY = "<token>"
"""The user name which marks a password as an identity token, for a different protocol."""
_IN_CLEAR = {("http", "localhost"), ("http", "127.0.0.1")}
"""Servers that need no https. All others do, because anyone in between could read a login."""
_HIDDEN = (HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_MAX_BYTES = 8 << 20
_MAX_SHOWN = 500
"""The maximum length of a failure's text in messages."""
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


def with_digest(image: str, find_login: Callable[[str], RegistryLogin | None] = lambda _: None) -> str:
    """Return the image with its digest: unchanged if it has one, or as the registry now resolves its tag.

    The default tag is ``latest``. If the registry requires a login, it gets the one that ``find_login``
    returns for its host or, failing that, the one that Docker's client would use: from a credential helper or
    from ``docker login``.

    Raises:
        AuthError: a login is refused or cannot be obtained.
        SpecError: the registry does not return the digest.
    """
    if "@" in image:
        return image
    registry, name, tag = image_parts(image)
    scheme = "http" if ("http", registry.partition(":")[0]) in _IN_CLEAR else "https"
    url = f"{scheme}://{registry}/v2/{name}/manifests/{tag}"
    login, faults = None, list[str]()
    try:
        try:
            data, stated = _get(url, authorization=None)
        except HTTPError as error:
            if error.code != HTTPStatus.UNAUTHORIZED:
                raise
            challenge = error.headers.get("WWW-Authenticate", "")
            error.close()
            login = _login(registry, find_login, faults)
            authorization = _authorization(challenge, login, f"repository:{name}:pull", registry)
            if authorization is None:
                login = None  # the login was not sent
                raise
            data, stated = _get(url, authorization=authorization)
    except HTTPError as error:
        error.close()
        if error.code not in _HIDDEN:
            raise SpecError(_failed(image, registry, f"{error.code} {error.reason}")) from error
        if login is not None:
            why = "; ".join((f"the tag does not exist, or the registry refuses {login.origin}", *faults))
            raise AuthError(_failed(image, registry, why)) from error
        why = "; ".join(("the tag does not exist or is private", *faults))
        advice = f"set run.image_login, or write {image}@sha256:..."
        raise (AuthError if faults else SpecError)(f"{_failed(image, registry, why)}; {advice}") from error
    except (OSError, HTTPException, ValueError, AttributeError, RecursionError) as error:
        why = str(getattr(error, "reason", error))
        raise SpecError(f"{_failed(image, registry, why)}; write {image}@sha256:...") from error
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if stated not in {None, digest}:
        raise SpecError(
            _failed(image, registry, f"it states {str(stated)[:80]}, but the content has {digest}")
        )
    return f"{image}@{digest}"


def _failed(image: str, registry: str, why: str) -> str:
    return f"run.image: {registry} does not return the digest of {image}: {why[:_MAX_SHOWN]}"


def _authorization(challenge: str, login: RegistryLogin | None, scope: str, registry: str) -> str | None:
    """Return the ``Authorization`` header that answers a registry's challenge, or None."""
    kind, _, parameters = challenge.partition(" ")
    basic = None if login is None else f"Basic {login.basic}"
    if kind.lower() == "basic":
        return basic
    fields = dict(_PARAMETER.findall(parameters))
    if kind.lower() != "bearer" or "realm" not in fields:
        return None
    query = {"scope": fields.get("scope", scope)}
    if "service" in fields:
        query["service"] = fields["service"]
    realm = urlsplit(fields["realm"])
    host = registry.partition(":")[0]
    in_clear = {(realm.scheme, realm.hostname), ("http", host)}
    if realm.scheme != "https" and not in_clear <= _IN_CLEAR:
        return None
    # A registry on the internet must not redirect to a server on this computer or its network.
    own_host = str(realm.hostname) if _is_private(host) else host
    data, _ = _get(f"{fields['realm']}?{urlencode(query)}", authorization=basic, own_host=own_host)
    answer = json.loads(data)
    token = answer.get("token") or answer.get("access_token")
    if not (isinstance(token, str) and token.isascii() and token.isprintable()):
        return None
    return f"Bearer {token}"


def _login(
    registry: str, find_login: Callable[[str], RegistryLogin | None], faults: list[str]
) -> RegistryLogin | None:
    """Return the login for a registry, or None; add the reasons for failures to ``faults``."""
    try:
        login = find_login(registry)
    except AuthError as error:
        faults.append(str(error))
        login = None
    if login is not None:
        return login
    key = login_key(registry)
    try:
        config: Any = json.loads(Path("~/.docker/config.json").expanduser().read_text())
        helper = config.get("credHelpers", {}).get(key) or config.get("credsStore")
        stored = config.get("auths", {}).get(key, {})
        user, _, password = base64.b64decode(stored.get("auth", "")).decode().partition(":")
        user = _IDENTITY if stored.get("identitytoken") else user
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    origin, program = "~/.docker/config.json", f"docker-credential-{helper}"
    if helper:
        try:
            kept = _ask_helper(program, key)
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            kept = None
            faults.append(f"{program} does not answer: {error}")
        if kept is not None:
            (user, password), origin = kept, program
    if user == _IDENTITY:
        faults.append(f"{origin} has an identity token, which cannot be used here; set run.image_login")
        return None
    return (
        RegistryLogin(user=user, password=password, origin=f"the user {user} of {origin}") if user else None
    )


def _ask_helper(program: str, key: str) -> tuple[str, str] | None:
    """Return the user and the password from one of Docker's credential helpers, or None if it has none."""
    done = subprocess.run(
        [program, "get"], input=key, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if done.stdout.startswith("credentials not found"):
        return None
    if done.returncode != 0:
        raise ValueError((done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1])
    answer = json.loads(done.stdout)
    return str(answer["Username"]), str(answer["Secret"])


def _is_private(host: str) -> bool:
    """Return whether a host belongs to this computer or its network."""
    try:
        public_addresses(host, 443)
    except AddressRefused:
        return True
    except OSError:  # a proxy may be able to resolve it
        return False
    return False


def _get(url: str, *, authorization: str | None, own_host: str = "") -> tuple[bytes, str | None]:
    """Return a body and the server's digest; only the URL's host or ``own_host`` may be private."""
    request = Request(url, headers={"Accept": ", ".join(_KINDS)})  # noqa: S310 - of http or https, as checked
    if authorization is not None:  # not sent to servers in redirects
        request.add_unredirected_header("Authorization", authorization)
    # Unencrypted requests go only to this computer, and never to a proxy.
    proxies = [ProxyHandler({})] if urlsplit(url).scheme == "http" else []
    checked = handlers(own_host or urlsplit(url).hostname or "")
    with build_opener(*proxies, UnreadRedirects(), *checked).open(request, timeout=TIMEOUT_SECONDS) as answer:
        if urlsplit(answer.url).scheme != urlsplit(url).scheme:
            raise ValueError(f"it redirects to {urlsplit(answer.url).scheme}://")
        return read_at_most(answer, _MAX_BYTES), answer.headers.get("Docker-Content-Digest")
