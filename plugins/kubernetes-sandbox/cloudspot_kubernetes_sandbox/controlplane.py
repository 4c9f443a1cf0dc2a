"""A real Kubernetes control plane as four processes: etcd, API server, controller manager and scheduler."""

from __future__ import annotations

import base64
import json
import secrets
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cloudspot.errors import CloudspotError
from cloudspot.local import namespaces

ADMIN: Final = "admin"
SUBMITTER: Final = "submitter"
"""The user that runs cloudspot, with the permissions of the plugin's role."""
_MANAGER, _SCHEDULER = "system:kube-controller-manager", "system:kube-scheduler"
_GROUPS: Final = {ADMIN: "system:masters", SUBMITTER: "", _MANAGER: "", _SCHEDULER: ""}
_CONTROLLERS: Final = (
    "disruption,garbagecollector,namespace,nodelifecycle,persistentvolume-binder,podgc,resourcequota,"
    "root-ca-cert-publisher,serviceaccount,serviceaccount-token"
)
"""The controllers that a job's pods need."""
_START_SECONDS: Final = 120.0
_OPENSSL: Final = """\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = IP:127.0.0.1, IP:{address}, DNS:localhost
"""


class ControlPlane:
    """One cluster's servers, with their keys, tokens, data and logs in one directory."""

    def __init__(self, binaries: Path, directory: Path, *, address: str = "127.0.0.1") -> None:
        """Make the keys and tokens; ``start`` starts the servers. The API server listens on ``address``."""
        self.directory = directory
        self._binaries = binaries
        self._address = address
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._etcd, self._peer, self._api, self._manage, self._schedule = _free_ports(address, 5)
        self.url = f"https://{address}:{self._api}"
        self.tokens = {name: secrets.token_hex(24) for name in _GROUPS}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._make_keys()

    @property
    def address(self) -> str:
        """Return the API server's address."""
        return self._address

    @property
    def port(self) -> int:
        """Return the API server's port."""
        return self._api

    def start(self) -> None:
        """Start the servers, and return when a pod can be made.

        Raises:
            CloudspotError: a server does not start; the message names the directory with its log.
        """
        self._start_etcd()
        self.start_api()
        for name in (_MANAGER, _SCHEDULER):
            self.write_kubeconfig(self._at(f"{name}.conf"), name)
        shared = ("--bind-address", "127.0.0.1", "--port", "0", "--leader-elect=false", *self._tls)
        manager = self._configured(_MANAGER)
        self._run(
            "kube-controller-manager",
            *(*shared, *manager, "--secure-port", str(self._manage), "--controllers", _CONTROLLERS),
            *("--use-service-account-credentials", "--root-ca-file", self._path("ca.crt")),
            *("--service-account-private-key-file", self._path("accounts.key")),
            # After half a minute, a silent node counts as lost, and so do its pods.
            *("--node-monitor-grace-period", "20s", "--pod-eviction-timeout", "10s"),
            # A claim that is made before its volume is known waits for the next sync, which by default comes
            # every 15 s.
            *("--pvclaimbinder-sync-period", "1s"),
        )
        scheduler = self._configured(_SCHEDULER)
        self._run("kube-scheduler", *shared, *scheduler, "--secure-port", str(self._schedule))
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._await("a token of the default service account", lambda: "secrets" in self.get(account))

    def start_api(self) -> None:
        """Start the API server, or restart it after ``stop_api``, and return when it is ready."""
        self._run(
            "kube-apiserver",
            *("--bind-address", self._address, "--advertise-address", self._address),
            *("--endpoint-reconciler-type", "none", "--secure-port", str(self._api), "--insecure-port", "0"),
            *(*self._tls, "--etcd-servers", f"https://127.0.0.1:{self._etcd}"),
            *("--etcd-cafile", self._path("ca.crt")),
            *("--etcd-certfile", self._path("server.crt"), "--etcd-keyfile", self._path("server.key")),
            *("--kubelet-client-certificate", self._path("server.crt")),
            *("--kubelet-client-key", self._path("server.key")),
            *("--anonymous-auth=false", "--token-auth-file", self._path("tokens.csv")),
            *("--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", self._path("accounts.key")),
            *("--service-account-signing-key-file", self._path("accounts.key")),
        )
        self._await("the API server", lambda: self.get("/readyz") is not None)

    def stop_api(self) -> None:
        """Kill the API server, as if its machine failed."""
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop the servers; safe to repeat."""
        for name in reversed(tuple(self._processes)):
            process = self._processes.pop(name)
            # The data are thrown away, so the server may be killed.
            process.kill()
            process.wait()

    def write_kubeconfig(self, path: Path, user: str, *, url: str = "") -> Path:
        """Write a kubeconfig with which kubectl and the SDKs act as this user, at ``url`` if it is given."""
        authority = base64.b64encode(self._at("ca.crt").read_bytes()).decode()
        named = {
            "clusters": {"cluster": {"server": url or self.url, "certificate-authority-data": authority}},
            "users": {"user": {"token": self.tokens[user]}},
            "contexts": {"context": {"cluster": "sandbox", "user": "sandbox"}},
        }
        content: dict[str, Any] = {name: [{"name": "sandbox", **entry}] for name, entry in named.items()}
        content |= {"apiVersion": "v1", "kind": "Config", "current-context": "sandbox"}
        path.touch(mode=0o600)
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context with which a kubelet serves only the API server."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._path("ca.crt"))
        context.load_cert_chain(self._path("server.crt"), self._path("server.key"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def request(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        """Make a request to the API server as the admin; return the response's JSON, else its text.

        Raises:
            OSError: there is no response, or a refusal.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.tokens[ADMIN]}", "Content-Type": kind}
        asked = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)  # noqa: S310
        handlers = (
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self._path("ca.crt"))),
        )
        with urllib.request.build_opener(*handlers).open(asked, timeout=10.0) as answer:
            content = answer.read()
        try:
            return json.loads(content)
        except ValueError:
            return content.decode()

    def get(self, path: str) -> Any:
        """Return the object at the path; see ``request``."""
        return self.request("GET", path)

    def patch(self, path: str, body: Any) -> Any:
        """Merge the body into the object at the path; see ``request``."""
        return self.request("PATCH", path, body, kind="application/merge-patch+json")

    @property
    def _tls(self) -> tuple[str, ...]:
        return (
            "--tls-cert-file",
            self._path("server.crt"),
            "--tls-private-key-file",
            self._path("server.key"),
        )

    def _start_etcd(self) -> None:
        client, peer = f"https://127.0.0.1:{self._etcd}", f"https://127.0.0.1:{self._peer}"
        options = ["--name", "sandbox", "--data-dir", self._path("etcd"), "--log-level", "warn"]
        options += ["--logger", "zap", "--initial-cluster", f"sandbox={peer}"]
        for kind, url, initial in (("client", client, ""), ("peer", peer, "initial-")):
            prefix = "peer-" if kind == "peer" else ""
            options += [f"--listen-{kind}-urls", url, f"--{initial}advertise-{kind}-urls", url]
            options += [f"--{prefix}client-cert-auth", f"--{prefix}trusted-ca-file", self._path("ca.crt")]
            options += [f"--{prefix}cert-file", self._path("server.crt")]
            options += [f"--{prefix}key-file", self._path("server.key")]
        self._run("etcd", *options)

    def _make_keys(self) -> None:
        self._at("openssl.cnf").write_text(_OPENSSL.format(address=self._address), encoding="ascii")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
        request = ("req", "-x509", "-config", self._path("openssl.cnf"), *curve)
        authority = ("-CA", self._path("ca.crt"), "-CAkey", self._path("ca.key"))
        for extensions, name, issuer in (("authority", "ca", ()), ("server", "server", authority)):
            written = ("-keyout", self._path(f"{name}.key"), "-out", self._path(f"{name}.crt"))
            _openssl(*request, "-extensions", extensions, "-subj", f"/CN={name}", *issuer, *written)
        _openssl("genpkey", "-algorithm", "RSA", "-out", self._path("accounts.key"))
        lines = [f'{self.tokens[name]},{name},{name},"{group}"\n' for name, group in _GROUPS.items()]
        self._at("tokens.csv").write_text("".join(lines), encoding="ascii")

    def _configured(self, name: str) -> tuple[str, ...]:
        options = ("--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig")
        return tuple(part for option in options for part in (option, self._path(f"{name}.conf")))

    def _run(self, name: str, *arguments: str) -> None:
        with self._at(f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(self._binaries / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=namespaces.die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )

    def _await(self, what: str, is_there: Callable[[], bool]) -> None:
        end = time.monotonic() + _START_SECONDS
        while True:
            with suppress(OSError):
                if is_there():
                    return
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > end:
                reason = f"{dead[0]} has ended" if dead else f"{what} is not there in time"
                raise CloudspotError(f"the control plane did not start: {reason}; see {self.directory}")
            time.sleep(0.1)

    def _at(self, name: str) -> Path:
        return self.directory / name

    def _path(self, name: str) -> str:
        return str(self._at(name))


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise CloudspotError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")


def _free_ports(address: str, number: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for listener in sockets:
            listener.bind((address, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for listener in sockets:
            listener.close()
