"""Part of the boot script: fetches an object from Cloud Storage with the machine's service account."""

import json
import os
import re
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

METADATA = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
MAX_BYTES = 1 << 30
TOKEN = "computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105 - the path of a token


def fetch(store_url: str, key: str, path: Path) -> None:
    """Write the object to the file."""
    bucket, _, prefix = store_url.partition("://")[2].partition("/")
    name = "/".join(part for part in (prefix.strip("/"), key) if part)
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")
    try:
        with ask(f"http://{METADATA}/{TOKEN}", {"Metadata-Flavor": "Google"}) as answer:
            token = json.loads(answer.read(1 << 20))["access_token"]
        url = f"{endpoint}/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media"
        with ask(url, {"Authorization": f"Bearer {token}"}) as answer:
            path.write_bytes(answer.read(MAX_BYTES))
            if answer.length:
                raise OSError("the object is truncated or too long")
    except HTTPError as error:
        body = error.read(2000).decode("utf-8", "replace")
        if "/storage/v1/" in error.url:
            message = re.search(r'"message": *"(.*?)"', body)
            server, body = "Cloud Storage", message[1] if message else body
        elif error.code == 404:
            raise OSError("this machine has no service account; see providers.gcp.service_account") from None
        else:
            server = "the metadata server"
        raise OSError(f"{server} answered {error.code} {body[:300]}") from None


class NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, whose target would receive the machine's credentials."""

    def redirect_request(self, *_: object) -> None:
        """Return no request."""


def ask(url: str, headers: dict[str, str]) -> HTTPResponse:
    """Return the open response. The environment's proxies are not used."""
    request = Request(url, headers=headers)  # noqa: S310
    answer: HTTPResponse = build_opener(ProxyHandler({}), NoRedirects).open(request, timeout=60)
    return answer
