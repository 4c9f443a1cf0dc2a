"""A pod under the kits of notices and identity, before an API server that knows one pod and its node."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType

import pytest

from cloudspot.model import Instance, InstanceState, Market
from cloudspot.testing.machine import Machine, OtherEvent
from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests
from cloudspot_kubernetes import notice
from cloudspot_kubernetes.notice import NODE, POD, TERMINATING, instance_id
from cloudspot_kubernetes.options import KubernetesOptions
from cloudspot_kubernetes.provider import KubernetesProvider

NAME, UID, NAMESPACE, NODE_NAME, TOKEN = "kit-1-1-0", "0123abcd-45", "kit", "node-1", "the-pods-own"


class PodMachine(Machine):
    instance = Instance(
        id=instance_id(NAME, UID),
        state=InstanceState.RUNNING,
        job_id="kit-1",
        launch=1,
        rank=3,
        address="10.88.0.7",
        zone="zone-a",
        instance_type="small",
        market=Market.SPOT,
    )

    notice_seconds = 120.0

    def __init__(self, directory, objects, stop):
        self.directory, self.objects, self._stop = directory, objects, stop

    def provider(self):
        return KubernetesProvider(KubernetesOptions(watch_taints=True))

    def give_notice(self, deadline):
        """As an eviction: the API server notes it, and the kubelet tells process 1."""
        if deadline is None:
            raise NotImplementedError
        now = datetime.now(timezone.utc)
        metadata = self.objects[f"/api/v1/namespaces/{NAMESPACE}/pods/{NAME}"]["metadata"]
        metadata["deletionTimestamp"] = deadline.isoformat()
        metadata["deletionGracePeriodSeconds"] = round((deadline - now).total_seconds())
        path = self.directory / TERMINATING
        made = path.with_suffix(".new")
        made.write_text(notice.UPTIME.read_text().split()[0] + "\n")
        os.utime(made, (now.timestamp(), now.timestamp()))
        made.rename(path)

    def give_other_event(self, event):
        """Another pod of the node is evicted."""
        if event is not OtherEvent.ANOTHER_MACHINE:
            raise NotImplementedError
        name = f"/api/v1/namespaces/{NAMESPACE}/pods/kit-1-1-1"
        now = datetime.now(timezone.utc).isoformat()
        self.objects[name] = {"metadata": {"name": "kit-1-1-1", "deletionTimestamp": now}}

    def silence(self):
        self._stop()
        # Its node's taints are read every few seconds.
        time.sleep(notice.TAINT_SECONDS)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", "key.pem", "-out", "ca.crt"),
        ],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    return directory


@pytest.fixture
def machine(certificate, tmp_path, monkeypatch):
    objects = {
        f"/api/v1/namespaces/{NAMESPACE}/pods/{NAME}": {"metadata": {"name": NAME}},
        f"/api/v1/nodes/{NODE_NAME}": {"spec": {}},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = objects.get(self.path) if self.headers["Authorization"] == f"Bearer {TOKEN}" else None
            self.send_response(403 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found or {"kind": "Status"}).encode())

        def log_message(self, *_):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "ca.crt", certificate / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop():
        server.shutdown()
        server.server_close()

    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(TOKEN)
    (account / "ca.crt").write_bytes((certificate / "ca.crt").read_bytes())
    monkeypatch.setattr(notice, "SERVICE_ACCOUNT", account)
    one = PodMachine.instance
    for name, value in {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_port),
        "CLOUDSPOT_NODE_DIR": str(tmp_path),
        NODE: NODE_NAME,
        POD.name: NAME,
        POD.uid: UID,
        POD.namespace: NAMESPACE,
        POD.rank: str(one.rank),
        POD.address: one.address,
        POD.zone: one.zone,
        POD.type: one.instance_type,
        POD.market: one.market.value,
    }.items():
        monkeypatch.setenv(name, value)
    yield PodMachine(tmp_path, objects, stop)
    stop()


@pytest.mark.full
class TestPod(PreemptionSourceTests, NodeIdentityTests):
    deviations = MappingProxyType(
        {
            "test_who_is_not_answered_has_to_ask_again": "a pod's identity is in its environment: it asks nobody",
            "test_who_meets_trouble_has_to_ask_again": "a pod's identity is in its environment: it asks nobody",
            "test_trouble_is_no_absence_of_a_notice": "the kubelet's notice is a file: nobody has to answer",
            "test_a_notice_without_a_time_is_heard_without_one": "the grace period of a pod is always known",
            "test_what_does_not_take_the_machine_is_no_notice[freeze]": "pods are not frozen",
            "test_what_does_not_take_the_machine_is_no_notice[reboot]": "pods are not booted again",
            "test_a_notice_is_heard_behind_what_does_not_take_the_machine[freeze]": "pods are not frozen",
            "test_a_notice_is_heard_behind_what_does_not_take_the_machine[reboot]": "pods are not booted again",
        }
    )
