"""Part of the boot script: releases this machine with the machine's own role. Standard library only.

An ECS instance that shuts itself down still exists, and may be billed; only its release ends it.
"""

import base64
import hashlib
import hmac
import json
import os
import random
import time
import uuid
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

METADATA = os.environ.get("CLOUDSPOT_ALIYUN_METADATA", "http://100.100.100.200").rstrip("/")

TRIES = 3  # of each address


def release() -> None:
    """Ask ECS to release the machine; raise OSError if it refuses."""
    lifetime = {"X-aliyun-ecs-metadata-token-ttl-seconds": "300"}
    token = {"X-aliyun-ecs-metadata-token": ask(f"{METADATA}/latest/api/token", lifetime, "PUT")}
    base = f"{METADATA}/latest/meta-data/"
    machine, region = ask(base + "instance-id", token), ask(base + "region-id", token)
    role = ask(base + "ram/security-credentials/", token).strip()
    key = json.loads(ask(f"{base}ram/security-credentials/{role}", token))
    chosen = os.environ.get("ECS_ENDPOINT", "").rstrip("/")
    if chosen and "://" not in chosen:
        chosen = f"https://{chosen}"
    # The first address works only from within the VPC.
    hosts = [chosen] if chosen else [f"https://ecs{kind}.{region}.aliyuncs.com" for kind in ("-vpc", "")]
    for num_left in reversed(range(TRIES * len(hosts))):
        host = hosts[-1 - num_left % len(hosts)]
        try:
            body = urlencode(sign(machine, region, key)).encode()
            ask(host + "/", {"x-acs-action": "DeleteInstance"}, "POST", body)
            return
        except OSError as error:
            response_text = error.read(300).decode("utf-8", "replace") if hasattr(error, "read") else ""
            if not num_left:
                raise OSError(f"{error} {response_text}") from None
            if "Throttling" in response_text or getattr(error, "code", 0) >= 500:
                # All nodes of a job may end at once, and this cannot be repeated after the shutdown.
                time.sleep(random.uniform(1.0, 8.0))


def sign(machine: str, region: str, key: dict[str, str]) -> dict[str, str]:
    """Return the parameters of the request, signed in the RPC style."""
    fields = {
        "AccessKeyId": key["AccessKeyId"],
        "Action": "DeleteInstance",
        "Force": "true",
        "Format": "JSON",
        "InstanceId": machine,
        "RegionId": region,
        "SecurityToken": key["SecurityToken"],
        "SignatureMethod": "HMAC-SHA1",
        "SignatureNonce": str(uuid.uuid4()),
        "SignatureVersion": "1.0",
        "Timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "Version": "2014-05-26",
    }
    pairs = "&".join(f"{name}={quote(fields[name], safe='-_.~')}" for name in sorted(fields))
    text = f"POST&%2F&{quote(pairs, safe='-_.~')}".encode()
    secret = (key["AccessKeySecret"] + "&").encode()
    digest = hmac.new(secret, text, hashlib.sha1).digest()
    return {**fields, "Signature": base64.b64encode(digest).decode()}


class NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, whose target would receive the machine's credentials."""

    def redirect_request(self, *_: object) -> None:
        """Return no request."""


def ask(url: str, headers: dict[str, str], method: str = "GET", body: bytes | None = None) -> str:
    """Return the answer. The environment's proxies are not used."""
    request = Request(url, data=body, headers=headers, method=method)  # noqa: S310
    with build_opener(ProxyHandler({}), NoRedirects).open(request, timeout=15) as answer:
        return str(answer.read(1 << 20).decode())


if __name__ == "__main__":
    release()
