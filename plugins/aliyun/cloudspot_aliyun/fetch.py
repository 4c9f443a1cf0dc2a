"""Part of the boot script: fetches an object from OSS with the machine's role. Standard library only."""

import hashlib
import hmac
import json
import os
import re
import time
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

METADATA = os.environ.get("CLOUDSPOT_ALIYUN_METADATA", "http://100.100.100.200").rstrip("/")
MAX_BYTES = 1 << 30


def fetch(store_url: str, key: str, path: Path) -> None:
    """Write the object to the file."""
    bucket, _, prefix = store_url.partition("://")[2].partition("/")
    name = "/".join(part for part in (prefix.strip("/"), key) if part)
    token = {
        "X-aliyun-ecs-metadata-token": read(
            f"{METADATA}/latest/api/token", {"X-aliyun-ecs-metadata-token-ttl-seconds": "300"}, "PUT"
        )
    }
    base = f"{METADATA}/latest/meta-data/"
    here = read(base + "region-id", token).strip()
    try:
        role = read(base + "ram/security-credentials/", token).strip()
    except HTTPError as error:
        if error.code != 404:
            raise
        raise OSError("this machine has no RAM role; see providers.aliyun.role") from None
    keys = json.loads(read(f"{base}ram/security-credentials/{role}", token))
    endpoint = os.environ.get("OSS_ENDPOINT", "").rstrip("/")
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    region = here
    while True:
        # In the machine's own region, the internal endpoint is free and needs no internet access.
        inside = "-internal" if region == here else ""
        parts = urlsplit(endpoint or f"https://oss-{region}{inside}.aliyuncs.com")
        resource = f"/{bucket}/{quote(name, safe='/-_.~')}"
        is_address = re.fullmatch(r"[\d.]+|localhost", parts.hostname or "")
        host = parts.netloc if is_address else f"{bucket}.{parts.netloc}"
        target = resource if is_address else resource[len(bucket) + 1 :]
        try:
            with ask(f"{parts.scheme}://{host}{target}", sign(resource, region, keys)) as answer:
                path.write_bytes(answer.read(MAX_BYTES))
                if answer.length:
                    raise OSError("the object is truncated or too long")
            return
        except HTTPError as error:
            body = error.read(2000).decode("utf-8", "replace")
            # The bucket may be in another region, which OSS names.
            named = re.search(r"<Endpoint>oss-([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com</Endpoint>", body)
            if named is None or named[1] == region or endpoint:
                code = re.search("<Code>(.*?)</Code>", body)
                raise OSError(f"OSS answered {error.code} {code[1] if code else body[:300]}") from None
            region = named[1]


def sign(resource: str, region: str, keys: dict[str, str]) -> dict[str, str]:
    """Return the headers of a GET, signed with version 4."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {
        "x-oss-content-sha256": "UNSIGNED-PAYLOAD",
        "x-oss-date": now,
        "x-oss-security-token": keys["SecurityToken"],
    }
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"GET\n{resource}\n\n{lines}\n\nUNSIGNED-PAYLOAD"
    scope = f"{now[:8]}/{region}/oss/aliyun_v4_request"
    text = f"OSS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    secret = f"aliyun_v4{keys['AccessKeySecret']}".encode()
    for part in scope.split("/"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"OSS4-HMAC-SHA256 Credential={keys['AccessKeyId']}/{scope},Signature={signature}"
    )
    return headers


def read(url: str, headers: dict[str, str], method: str = "GET") -> str:
    """Return a response of the metadata service."""
    with ask(url, headers, method) as answer:
        return answer.read(1 << 20).decode()


class NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, whose target would receive the machine's credentials."""

    def redirect_request(self, *_: object) -> None:
        """Return no request."""


def ask(url: str, headers: dict[str, str], method: str = "GET") -> HTTPResponse:
    """Return the open response. The environment's proxies are not used."""
    request = Request(url, headers=headers, method=method)  # noqa: S310
    answer: HTTPResponse = build_opener(ProxyHandler({}), NoRedirects).open(request, timeout=60)
    return answer
