"""The pods, nodes and rights of a cluster's API over HTTP, for what needs no scheduler and no kubelet.

Stricter than an API server: it answers what the plugin is known to ask, and anything else is an error of the
test. Each pod has a node as soon as it is made, unless ``schedules`` says otherwise.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

NAMESPACE = "jobs"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Refused(Exception):
    """The API server refuses a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class PodApi:
    """One namespace of a cluster, and who may do what in it."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.nodes: list[dict[str, Any]] = []
        self.denied: set[tuple[str, str]] = set()
        """Verbs and resources that the user has no right to."""
        self.admission: list[Refused | None] = []
        """What becomes of the next pods that are made; after these, all are admitted."""
        self.schedules = True
        self.calls: list[tuple[str, str]] = []
        """The verb and the resource of each request."""
        self.made = 0
        api = self

        class Handler(_Handler):
            pass

        Handler.api = api
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write what leads to this server, as the SDK reads it."""
        named = {
            "clusters": {"cluster": {"server": self.url}},
            "users": {"user": {"token": "t"}},
            "contexts": {"context": {"cluster": "fake", "user": "fake"}},
        }
        content: dict[str, Any] = {name: [{"name": "fake", **entry}] for name, entry in named.items()}
        path.write_text(
            json.dumps({**content, "apiVersion": "v1", "kind": "Config", "current-context": "fake"})
        )
        return path

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        """Return the answer's JSON."""
        if (method, path) == ("POST", _REVIEWS):
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            return {"status": {"allowed": (asked["verb"], resource) not in self.denied}}
        if (method, path) == ("GET", "/api/v1/nodes"):
            self._authorize("list", "nodes")
            return {"items": self.nodes, "metadata": {}}
        if (method, path) == ("GET", _PODS):
            self._authorize("list", "pods")
            return {"items": self._selected(query["labelSelector"]), "metadata": {}}
        if (method, path) == ("POST", _PODS):
            self._authorize("create", "pods")
            return self._create(body, is_trial=query.get("dryRun") == "All")
        name = path.removeprefix(f"{_PODS}/")
        assert method in {"PATCH", "DELETE"}, f"{method} {path}"
        assert re.fullmatch(r"[a-z0-9-]+", name), path
        self._authorize(_VERBS[method], "pods")
        if name not in self.pods:
            raise Refused(404, "NotFound", f'pods "{name}" not found')
        return self._patch(name, body) if method == "PATCH" else self._delete(name, body)

    def _authorize(self, verb: str, resource: str) -> None:
        self.calls.append((verb, resource))
        if (verb, resource) in self.denied:
            message = (
                f'{resource} is forbidden: User "me" cannot {verb} resource "{resource}" in API group ""'
            )
            raise Refused(403, "Forbidden", message)

    def _selected(self, selector: str) -> list[dict[str, Any]]:
        name, equals, value = selector.partition("=")
        labels = ((pod, pod["metadata"]["labels"]) for pod in self.pods.values())
        return [pod for pod, one in labels if name in one and (not equals or one[name] == value)]

    def _create(self, body: Any, *, is_trial: bool) -> Any:
        refused = self.admission.pop(0) if self.admission else None
        if refused is not None:
            raise refused
        name = body["metadata"]["name"]
        if name in self.pods:
            raise Refused(409, "AlreadyExists", f'pods "{name}" already exists')
        pod = json.loads(json.dumps(body))
        self.made += 1
        pod["metadata"] |= {
            "uid": f"{self.made:08}-uid",
            "resourceVersion": str(self.made),
            "creationTimestamp": "2030-01-01T00:00:00Z",
        }
        pod["status"] = {"phase": "Pending"}
        if self.schedules:
            pod["spec"]["nodeName"] = "node-1"
        if not is_trial:
            self.pods[name] = pod
        return pod

    def _patch(self, name: str, body: Any) -> Any:
        metadata = self.pods[name]["metadata"]
        assert body.keys() == {"metadata"}, body
        assert body["metadata"].keys() == {"uid", "annotations"}, body
        if body["metadata"]["uid"] != metadata["uid"]:
            raise Refused(409, "Conflict", "the UID in the request differs")
        metadata.setdefault("annotations", {}).update(body["metadata"]["annotations"])
        return self.pods[name]

    def _delete(self, name: str, body: Any) -> Any:
        if body["preconditions"]["uid"] != self.pods[name]["metadata"]["uid"]:
            raise Refused(409, "Conflict", "the UID in the precondition differs")
        return self.pods.pop(name)


class _Handler(BaseHTTPRequestHandler):
    api: PodApi

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        assert self.headers["Authorization"] == "Bearer t", "the kubeconfig's token is sent with each request"
        kind = "application/merge-patch+json" if self.command == "PATCH" else "application/json"
        assert self.headers["Content-Type"] == kind
        status = 200
        try:
            answer = self.api.answer(
                self.command, parts.path, dict(parse_qsl(parts.query)), json.loads(data) if data else None
            )
        except Refused as refused:
            status = refused.status
            answer = {"kind": "Status", "reason": refused.reason, "message": str(refused), "code": status}
        said = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 # the base class's names

    def log_message(self, *_: object) -> None:
        return
