"""The digest of a tag, asked of a real registry and of one that asks who is there."""

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from small_image import small_image, why_no_containers

from cloudspot.cli import image_digest
from cloudspot.cli.image_digest import with_digest
from cloudspot.errors import SpecError
from cloudspot.jobfile.spec import load_job

MANIFEST = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
LOGIN = base64.b64encode(b"me:secret").decode()


class Registry(BaseHTTPRequestHandler):
    """Gives tokens to whom it lets in; stricter than a real one in that it refuses what it did not ask for."""

    def do_GET(self):
        where, server = urlsplit(self.path), self.server
        query = {name: values[0] for name, values in parse_qs(where.query).items()}
        given = self.headers.get("Authorization")
        server.seen.append((where.path, given))
        if where.path == "/token":
            wanted = {"scope": "repository:team/train:pull", "service": "here"}
            is_known = given == (f"Basic {LOGIN}" if server.is_private else None)
            self.answer(200 if query == wanted and is_known else 401, json.dumps({"token": "t0"}).encode())
        elif given != server.expected:
            self.answer(401, b"", challenge=server.challenge)
        elif where.path != "/v2/team/train/manifests/7" or "oci.image.index" not in self.headers["Accept"]:
            self.answer(404, b"")
        else:
            self.answer(200, server.manifest, digest=server.digest)

    def answer(self, status, data, *, challenge=None, digest=None):
        self.send_response(status)
        for name, value in (("WWW-Authenticate", challenge), ("Docker-Content-Digest", digest)):
            if value is not None:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args):
        pass


@pytest.fixture
def registry(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    server.name = f"127.0.0.1:{server.server_port}"
    server.seen, server.is_private, server.expected = [], False, "Bearer t0"
    server.challenge = (
        f'Bearer realm="http://{server.name}/token",service="here",scope="repository:team/train:pull"'
    )
    server.manifest, server.digest = MANIFEST, DIGEST
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def log_in(registry, home):
    (home / ".docker").mkdir()
    auths = {registry.name: {"auth": LOGIN}}
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": auths}))


def test_a_registry_that_wants_a_token_gets_one(registry):
    assert with_digest(f"{registry.name}/team/train:7") == f"{registry.name}/team/train:7@{DIGEST}"
    assert [path for path, _ in registry.seen] == [
        "/v2/team/train/manifests/7",
        "/token",
        "/v2/team/train/manifests/7",
    ]


@pytest.mark.parametrize("command", ["plan", "offers"])
def test_what_is_only_looked_at_has_its_tag_looked_up_once(registry, local_home, tmp_path, command):
    image = f"{registry.name}/team/train:7"
    (tmp_path / "job.toml").write_text(f'name = "j"\n[run]\nentrypoint = "train.py"\nimage = "{image}"\n')
    (tmp_path / "train.py").write_text("")
    subprocess.run(
        [sys.executable, "-m", "cloudspot", command, "--provider", "local", str(tmp_path / "job.toml")],
        env={**os.environ, "CLOUDSPOT_LOCAL_HOME": str(local_home)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    assert [path for path, _ in registry.seen] == [
        "/v2/team/train/manifests/7",
        "/token",
        "/v2/team/train/manifests/7",
    ]


def test_a_log_in_goes_to_whoever_gives_tokens_and_nowhere_else(registry, tmp_path):
    registry.is_private = True
    with pytest.raises(SpecError, match="no such tag, or it is private"):
        with_digest(f"{registry.name}/team/train:7")
    log_in(registry, tmp_path)
    registry.seen.clear()
    assert with_digest(f"{registry.name}/team/train:7").endswith(DIGEST)
    assert [given for _, given in registry.seen] == [None, f"Basic {LOGIN}", "Bearer t0"]


def test_a_registry_may_ask_for_the_log_in_itself(registry, tmp_path):
    registry.challenge, registry.expected = 'Basic realm="here"', f"Basic {LOGIN}"
    log_in(registry, tmp_path)
    assert with_digest(f"{registry.name}/team/train:7").endswith(DIGEST)


@pytest.mark.parametrize("realm", ["http://example.org/token", "file://localhost/etc/passwd"])
def test_a_log_in_is_not_sent_in_clear_to_a_stranger_and_no_file_read(registry, tmp_path, realm):
    registry.is_private = True
    registry.challenge = f'Bearer realm="{realm}",service="here"'
    log_in(registry, tmp_path)
    with pytest.raises(SpecError, match="no such tag, or it is private"):
        with_digest(f"{registry.name}/team/train:7")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"digest": f"sha256:{'0' * 64}"}, f"it says sha256:0+, and what it sends has {DIGEST}"),
        ({"challenge": "Negotiate"}, "no such tag, or it is private"),
        ({"manifest": b"x" * (image_digest._MAX_BYTES + 1)}, "its answer is too large"),
    ],
)
def test_what_is_no_digest_is_refused_with_the_reason(registry, changes, says):
    vars(registry).update(changes)
    with pytest.raises(SpecError, match=f"run.image: {registry.name} does not tell the digest .*{says}"):
        with_digest(f"{registry.name}/team/train:7")


def test_a_registry_that_does_not_answer_is_named_with_the_way_out():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        image = f"127.0.0.1:{taken.getsockname()[1]}/it:7"
        with pytest.raises(SpecError, match=rf"Connection refused.*; write {image}@sha256:\.\.\."):
            with_digest(image)


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("python", ("registry-1.docker.io", "library/python", "latest")),
        ("python:3.13", ("registry-1.docker.io", "library/python", "3.13")),
        ("pytorch/pytorch:2", ("registry-1.docker.io", "pytorch/pytorch", "2")),
        ("docker.io/pytorch/pytorch", ("registry-1.docker.io", "pytorch/pytorch", "latest")),
        ("ghcr.io/team/deep/train:7", ("ghcr.io", "team/deep/train", "7")),
        ("localhost:5000/it", ("localhost:5000", "it", "latest")),
        ("localhost/it:1", ("localhost", "it", "1")),
    ],
)
def test_names_mean_what_they_mean_to_docker(image, parts):
    assert image_digest._parts(image) == parts


def test_a_digest_is_kept_and_nobody_asked():
    assert with_digest(f"nowhere.invalid/it:1@{DIGEST}") == f"nowhere.invalid/it:1@{DIGEST}"


def test_a_job_file_may_hold_a_tag_and_nothing_that_an_engine_takes_for_an_option(tmp_path):
    job = tmp_path / "job.toml"
    for image, is_good in (("it:7", True), (f"it@{DIGEST}", True), ("-v", False), ("it 7", False)):
        job.write_text(f'name = "boxed"\n[run]\ncommand = ["true"]\nimage = "{image}"\n')
        if is_good:
            assert load_job(job).run.image == image
        else:
            with pytest.raises(SpecError, match=r"run\.image: expected NAME:TAG or NAME@sha256:"):
                load_job(job)


def test_a_real_registry_tells_the_digest_by_which_the_engine_finds_the_image(tmp_path):
    if why := why_no_containers():
        pytest.skip(why)
    if shutil.which("docker-registry") is None:
        pytest.skip("needs Debian's docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (tmp_path / "config.yml").write_text(json.dumps(config))
    log = (tmp_path / "registry.log").open("w")
    with (
        log,
        subprocess.Popen(
            ["docker-registry", "serve", str(tmp_path / "config.yml")], stdout=log, stderr=log
        ) as server,
        small_image(tmp_path) as image,
    ):
        try:
            pushed, podman = f"127.0.0.1:{port}/team/train:7", ("podman", "--log-level=error")
            options = ("--tls-verify=false", "--digestfile", str(tmp_path / "digest"))
            local = image.partition("@")[0]
            subprocess.run([*podman, "push", "--quiet", *options, local, pushed], check=True, timeout=60)
            found = with_digest(pushed)
            assert found == f"{pushed}@{(tmp_path / 'digest').read_text()}"
            by_digest = found.replace(":7@", "@")
            subprocess.run(
                [*podman, "pull", "--quiet", "--tls-verify=false", by_digest], check=True, timeout=60
            )
            subprocess.run([*podman, "rmi", "--force", by_digest], check=True, timeout=60)
        finally:
            server.terminate()
