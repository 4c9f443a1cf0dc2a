"""Asks a registry for the digest of an image's tag, so that all machines of a job run the same image.

The protocol is that of the OCI Distribution Specification 1.1, with the tokens of Docker's registries.
"""

from __future__ import annotations

import hashlib
import json
import re
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, build_opener

from cloudspot.errors import SpecError

TIMEOUT_SECONDS = 20.0
_HUB = "registry-1.docker.io"
_HUB_LOGIN = "https://index.docker.io/v1/"
"""Under this name Docker keeps the log-in of its own registry."""
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_IN_CLEAR = {("http", "localhost"), ("http", "127.0.0.1")}
"""Servers that need no https; everyone between here and another one could read a log-in."""
_HIDDEN = (HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_MAX_BYTES = 8 << 20
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


def with_digest(image: str) -> str:
    """Return the image by its digest: as it is, or as the registry has its tag (or ``latest``) now.

    The registry is asked without a log-in, or with one that ``docker login`` has written to
    ``~/.docker/config.json`` itself; credential helpers are not asked.

    Raises:
        SpecError: it does not tell.
    """
    if "@" in image:
        return image
    registry, name, tag = _parts(image)
    try:
        data, said = _manifest(registry, name, tag)
    except HTTPError as error:
        why = (
            "there is no such tag, or it is private"
            if error.code in _HIDDEN
            else f"{error.code} {error.reason}"
        )
        raise SpecError(_failed(image, registry, why)) from error
    except (OSError, HTTPException, ValueError) as error:
        raise SpecError(_failed(image, registry, str(getattr(error, "reason", error)))) from error
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if said not in {None, digest}:
        raise SpecError(_failed(image, registry, f"it says {said}, and what it sends has {digest}"))
    return f"{image}@{digest}"


def _failed(image: str, registry: str, why: str) -> str:
    return f"run.image: {registry} does not tell the digest of {image}: {why}; write {image}@sha256:..."


def _parts(image: str) -> tuple[str, str, str]:
    """Return the registry, the name and the tag, by the rules of Docker."""
    first, slash, rest = image.partition("/")
    is_registry = slash and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, rest) if is_registry else (_HUB, image)
    name, _, tag = path.partition(":")
    if registry in {_HUB, "docker.io", "index.docker.io"}:
        registry, name = _HUB, name if "/" in name else f"library/{name}"
    return registry, name, tag or "latest"


def _manifest(registry: str, name: str, tag: str) -> tuple[bytes, str | None]:
    """Return the manifest of a tag, and its digest as the registry says it."""
    scheme = "http" if ("http", registry.partition(":")[0]) in _IN_CLEAR else "https"
    url = f"{scheme}://{registry}/v2/{name}/manifests/{tag}"
    try:
        return _get(url, authorization=None)
    except HTTPError as error:
        if error.code != HTTPStatus.UNAUTHORIZED:
            raise
        challenge = error.headers.get("WWW-Authenticate", "")
        error.close()
        authorization = _authorization(challenge, _login(registry), f"repository:{name}:pull")
        if authorization is None:
            raise
    return _get(url, authorization=authorization)


def _authorization(challenge: str, login: str | None, scope: str) -> str | None:
    """Return what a registry that asks who is there gets to hear; None: there is nothing to say."""
    kind, _, parameters = challenge.partition(" ")
    if kind.lower() == "basic":
        return login and f"Basic {login}"
    found = dict(_PARAMETER.findall(parameters))
    if kind.lower() != "bearer" or "realm" not in found:
        return None
    query = {"scope": found.get("scope", scope)}
    if "service" in found:
        query["service"] = found["service"]
    realm = urlsplit(found["realm"])
    if realm.scheme != "https" and (realm.scheme, realm.hostname) not in _IN_CLEAR:
        return None
    data, _ = _get(f"{found['realm']}?{urlencode(query)}", authorization=login and f"Basic {login}")
    answer = json.loads(data)
    token = answer.get("token") or answer.get("access_token")
    return f"Bearer {token}" if isinstance(token, str) else None


def _login(registry: str) -> str | None:
    """Return the log-in that ``docker login`` has written down, or None."""
    try:
        config: Any = json.loads(Path("~/.docker/config.json").expanduser().read_text())
        found = config["auths"][_HUB_LOGIN if registry == _HUB else registry]["auth"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and found else None


def _get(url: str, *, authorization: str | None) -> tuple[bytes, str | None]:
    request = Request(url, headers={"Accept": ", ".join(_KINDS)})  # noqa: S310 - of http or https, as checked
    if authorization is not None:  # a server that is redirected to does not get it
        request.add_unredirected_header("Authorization", authorization)
    with build_opener().open(request, timeout=TIMEOUT_SECONDS) as answer:
        if urlsplit(answer.url).scheme != urlsplit(url).scheme:
            raise ValueError(f"it redirects to {urlsplit(answer.url).scheme}://")
        data = answer.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError("its answer is too large")
        return data, answer.headers.get("Docker-Content-Digest")
