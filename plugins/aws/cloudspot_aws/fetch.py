"""Part of the boot script: fetches an object from S3 with the machine's role. Standard library only."""

import hashlib
import hmac
import json
import os
import re
from datetime import datetime, timezone
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
MAX_BYTES = 1 << 30
NOTHING = hashlib.sha256(b"").hexdigest()


def fetch(store_url: str, key: str, path: Path) -> None:
    """Write the object to the file."""
    bucket, _, prefix = store_url.partition("://")[2].partition("/")
    name = "/".join(part for part in (prefix.strip("/"), key) if part)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION", "us-east-1")
    role = read_role()
    while True:
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        base = (endpoint or f"https://s3.{region}.{domain}").rstrip("/")
        target = f"/{bucket}/{quote(name, safe='/-_.~')}"
        try:
            with ask(base + target, sign(urlsplit(base).netloc, target, region, role)) as answer:
                path.write_bytes(answer.read(MAX_BYTES))
                if answer.length:
                    raise OSError("the object is truncated or too long")
            return
        except HTTPError as error:
            # The bucket may be in another region, which S3's response names.
            named = error.headers.get("x-amz-bucket-region")
            if named in {None, region} or endpoint:
                body = error.read(2000).decode("utf-8", "replace")
                code = re.search("<Code>(.*?)</Code>", body)
                raise OSError(f"S3 answered {error.code} {code[1] if code else body[:300]}") from None
            region = str(named)


def read_role() -> dict[str, str]:
    """Return the credentials of the machine's role."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    with ask(f"{METADATA}/latest/api/token", lifetime, "PUT") as answer:
        token = {"X-aws-ec2-metadata-token": answer.read(1 << 20).decode()}
    url = f"{METADATA}/latest/meta-data/iam/security-credentials/"
    try:
        with ask(url, token) as answer:
            role = answer.read(1 << 20).decode().strip()
    except HTTPError as error:
        if error.code != 404:
            raise
        raise OSError("this machine has no role; see providers.aws.instance_profile") from None
    with ask(url + role, token) as answer:
        credentials: dict[str, str] = json.loads(answer.read(1 << 20))
    return credentials


def sign(host: str, target: str, region: str, role: dict[str, str]) -> dict[str, str]:
    """Return the headers of a GET, signed with Signature Version 4."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "host": host,
        "x-amz-content-sha256": NOTHING,
        "x-amz-date": now,
        "x-amz-security-token": role["Token"],
    }
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"GET\n{target}\n\n{lines}\n{names}\n{NOTHING}"
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    secret = f"AWS4{role['SecretAccessKey']}".encode()
    for part in scope.split("/"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={role['AccessKeyId']}/{scope}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
    return headers


class NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, whose target would receive the machine's credentials."""

    def redirect_request(self, *_: object) -> None:
        """Return no request."""


def ask(url: str, headers: dict[str, str], method: str = "GET") -> HTTPResponse:
    """Return the open response. The environment's proxies are not used."""
    request = Request(url, headers=headers, method=method)  # noqa: S310
    answer: HTTPResponse = build_opener(ProxyHandler({}), NoRedirects).open(request, timeout=60)
    return answer
