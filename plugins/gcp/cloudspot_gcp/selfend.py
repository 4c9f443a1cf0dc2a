"""Part of the boot script: deletes this machine with the machine's own service account.

Standard library only.

A Compute Engine machine that shuts itself down still exists, and its disk is billed; only deletion ends both.
The machine is deleted by its name, because the condition on that permission is about names (docs/gcp.md).
"""

import json
import os
import uuid
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

METADATA = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
COMPUTE = "https://compute.googleapis.com"


def request_id(zone: str, name: str, number: str) -> str:
    """Return the request's id, by which the operation shows that the machine ended itself."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"cloudspot/self-end/{zone}/{name}/{number}"))


def release() -> None:
    """Ask Compute Engine to delete the machine; raise OSError if it refuses."""
    project, name, number = (read(key) for key in ("project/project-id", "instance/name", "instance/id"))
    zone = read("instance/zone").rpartition("/")[2]
    token = json.loads(read("instance/service-accounts/default/token"))["access_token"]
    where = urlsplit(os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE") or COMPUTE)
    path = f"/compute/v1/projects/{project}/zones/{zone}/instances/{name}"
    url = f"{where.scheme}://{where.netloc}{path}?requestId={request_id(zone, name, number)}"
    ask(url, {"Authorization": f"Bearer {token}"}, "DELETE")


def read(key: str) -> str:
    """Return the metadata server's value."""
    return ask(f"http://{METADATA}/computeMetadata/v1/{key}", {"Metadata-Flavor": "Google"})


class NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, whose target would receive the machine's credentials."""

    def redirect_request(self, *_: object) -> None:
        """Return no request."""


def ask(url: str, headers: dict[str, str], method: str = "GET") -> str:
    """Return the answer. The environment's proxies are not used."""
    request = Request(url, headers=headers, method=method)  # noqa: S310
    try:
        with build_opener(ProxyHandler({}), NoRedirects).open(request, timeout=15) as answer:
            return str(answer.read(1 << 20).decode())
    except HTTPError as error:
        body = " ".join(error.read(300).decode("utf-8", "replace").split())
        raise OSError(f"{method} {urlsplit(url).path}: HTTP {error.code} {body}") from None


if __name__ == "__main__":
    release()
