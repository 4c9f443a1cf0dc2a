"""The digest of a tag, asked of a real registry and of one that asks who is there."""

import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from support.jobs.real_registry import pushed, real_registry
from support.jobs.small_image import small_image, why_no_containers

from cloudspot.cli.preparing import image_digest
from cloudspot.cli.preparing.image_digest import with_digest
from cloudspot.errors import AuthError, SpecError
from cloudspot.host import public_addresses
from cloudspot.jobfile.spec import load_job
from cloudspot.model import RegistryLogin

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
        if server.location:
            self.answer(307, b"", location=server.location)
            return
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

    def answer(self, status, data, *, challenge=None, digest=None, location=None):
        self.send_response(status)
        headers = {"WWW-Authenticate": challenge, "Docker-Content-Digest": digest, "Location": location}
        for name, value in headers.items():
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
    server = ThreadingHTTPServer(("", 0), Registry)
    server.name = f"127.0.0.1:{server.server_port}"
    server.location = ""
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


def log_in(registry, home, *, auth=LOGIN, **more):
    (home / ".docker").mkdir()
    auths = {registry.name: {"auth": auth}}
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": auths, **more}))


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """``helper(says, status=0)``: the credential helper ``kept``, which notes what it is asked."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def make(says, *, status=0):
        path = programs / "docker-credential-kept"
        path.write_text(
            f"#!/bin/sh\necho $1 > {tmp_path}/asked\ncat >> {tmp_path}/asked\necho '{says}'\nexit {status}\n"
        )
        path.chmod(0o755)
        return tmp_path / "asked"

    return make


MINE = json.dumps({"ServerURL": "here", "Username": "me", "Secret": "secret"})
OTHER = base64.b64encode(b"other:wrong").decode()


def mine(_registry):
    return RegistryLogin(user="me", password="secret", origin="the user me of run.image_login")


def test_a_registry_that_wants_a_token_gets_one(registry):
    assert with_digest(f"{registry.name}/team/train:7") == f"{registry.name}/team/train:7@{DIGEST}"
    assert [path for path, _ in registry.seen] == [
        "/v2/team/train/manifests/7",
        "/token",
        "/v2/team/train/manifests/7",
    ]


@pytest.mark.parametrize("says", ["realm", "redirect"])
@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.169.254", "10.0.0.1"])
def test_a_registry_of_the_internet_sends_nobody_to_an_address_of_their_network(
    registry, monkeypatch, says, host
):
    """The registry here stands for one, since a record may name any."""
    monkeypatch.setattr(public_addresses, "is_public", lambda address: address == "127.0.0.2")
    public, _, port = registry.name.replace("127.0.0.1", "127.0.0.2").partition(":")
    monkeypatch.setattr(image_digest, "_IN_CLEAR", {("http", one) for one in (public, host)})
    target = f"http://{host}:{port}/token"
    if says == "realm":
        registry.challenge = f'Bearer realm="{target}",service="here"'
    else:
        registry.location = target
    with pytest.raises(SpecError, match=f"{host} is not an address on the internet"):
        with_digest(f"{public}:{port}/team/train:7", mine)
    assert [path for path, _ in registry.seen] == ["/v2/team/train/manifests/7"]


@pytest.mark.full
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
    with pytest.raises(SpecError, match="the tag does not exist or is private"):
        with_digest(f"{registry.name}/team/train:7")
    log_in(registry, tmp_path)
    registry.seen.clear()
    assert with_digest(f"{registry.name}/team/train:7").endswith(DIGEST)
    assert [given for _, given in registry.seen] == [None, f"Basic {LOGIN}", "Bearer t0"]


def test_a_registry_may_ask_for_the_log_in_itself(registry, tmp_path):
    registry.challenge, registry.expected = 'Basic realm="here"', f"Basic {LOGIN}"
    log_in(registry, tmp_path)
    assert with_digest(f"{registry.name}/team/train:7").endswith(DIGEST)


@pytest.mark.parametrize("setting", ["credHelpers", "credsStore"])
def test_a_credential_helper_is_asked_as_docker_asks_it(registry, tmp_path, helper, setting):
    registry.is_private = True
    asked = helper(MINE)
    log_in(
        registry,
        tmp_path,
        auth=OTHER,
        **{setting: {registry.name: "kept"} if setting == "credHelpers" else "kept"},
    )
    assert with_digest(f"{registry.name}/team/train:7").endswith(DIGEST)
    assert asked.read_text() == f"get\n{registry.name}"


def test_a_helper_of_one_registry_goes_before_the_store_of_all(registry, tmp_path, helper):
    registry.is_private = True
    helper(MINE)
    log_in(registry, tmp_path, credHelpers={registry.name: "kept"}, credsStore="not-there")
    assert with_digest(f"{registry.name}/team/train:7").endswith(DIGEST)


@pytest.mark.parametrize("says", ["credentials not found in native keychain", "no keychain here"])
def test_a_helper_that_has_no_log_in_hides_none_that_is_written_down(registry, tmp_path, helper, says):
    registry.is_private = True
    helper(says, status=1)
    log_in(registry, tmp_path, credsStore="kept")
    assert with_digest(f"{registry.name}/team/train:7").endswith(DIGEST)


@pytest.mark.parametrize(
    ("says", "status", "told"),
    [
        ("credentials not found in native keychain", 1, "or is private; set run.image_login, or write"),
        ("the keychain is locked", 1, "or is private; docker-credential-kept does not answer: the keychain is locked"),
        ("{}", 0, "docker-credential-kept does not answer: "),
        ("not JSON", 0, "docker-credential-kept does not answer: "),
        (MINE.replace('"me"', '"<token>"'), 0, "docker-credential-kept has an identity token, which cannot be used"),
        (MINE.replace('"secret"', '"wrong"'), 0, "the registry refuses the user me of docker-credential-kept$"),
    ],
)  # fmt: skip
def test_what_a_helper_does_not_have_is_told_and_no_secret(registry, tmp_path, helper, says, status, told):
    registry.is_private = True
    helper(says, status=status)
    log_in(registry, tmp_path, auth="", credsStore="kept")
    with pytest.raises((AuthError, SpecError), match=f"the tag does not exist.*{told}") as refused:
        with_digest(f"{registry.name}/team/train:7")
    assert "secret" not in str(refused.value).replace("run.image_login", "")
    registry.is_private = False
    if "Secret" not in says:
        assert with_digest(f"{registry.name}/team/train:7").endswith(DIGEST), "it lets everyone in"


def test_the_jobs_log_in_goes_before_dockers_and_is_not_asked_for_in_vain(registry, tmp_path):
    log_in(registry, tmp_path, auth=OTHER)
    registry.is_private = True
    assert with_digest(f"{registry.name}/team/train:7", mine).endswith(DIGEST)
    registry.expected, asked = None, []
    assert with_digest(f"{registry.name}/team/train:7", asked.append).endswith(DIGEST)
    assert asked == []


def test_a_log_in_that_is_refused_is_named_by_whose_it_is(registry, tmp_path):
    registry.is_private = True
    wrong = RegistryLogin(user="me", password="hush", origin="the user me of run.image_login")
    with pytest.raises(AuthError, match=r"the registry refuses the user me of run\.image_login$"):
        with_digest(f"{registry.name}/team/train:7", lambda _: wrong)
    assert "hush" not in repr(wrong)


def test_what_is_sent_in_clear_goes_through_no_proxy(registry, monkeypatch):
    registry.is_private = True
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert with_digest(f"{registry.name}/team/train:7", mine).endswith(DIGEST)


@pytest.mark.parametrize("answer", ['{"token": "TOP\\nSECRET"}', "[1]", '{"token":' + "[" * 200_000])
def test_an_answer_that_holds_no_token_is_told_without_it(registry, monkeypatch, answer):
    monkeypatch.setattr(json, "loads", lambda _data, loads=json.loads: loads(answer))
    with pytest.raises(SpecError) as refused:
        with_digest(f"{registry.name}/team/train:7")
    assert "SECRET" not in str(refused.value)


def test_a_cloud_that_gives_no_log_in_is_told_unless_dockers_will_do(registry, tmp_path):
    registry.is_private = True

    def refuse(_registry):
        raise AuthError("logging in takes cloud:LogIn")

    with pytest.raises(AuthError, match=r"or is private; logging in takes cloud:LogIn; set run\.image_login"):
        with_digest(f"{registry.name}/team/train:7", refuse)
    log_in(registry, tmp_path)
    assert with_digest(f"{registry.name}/team/train:7", refuse).endswith(DIGEST)


@pytest.mark.full
def test_the_jobs_secret_opens_the_registry_and_has_to_be_set(registry, local_home, tmp_path):
    registry.is_private = True
    (tmp_path / "job.toml").write_text(
        f'name = "j"\n[run]\nentrypoint = "train.py"\nimage = "{registry.name}/team/train:7"\n'
        'image_login = { user = "me", secret = "REGISTRY_KEY" }\nsecrets = ["REGISTRY_KEY"]\n'
    )
    (tmp_path / "train.py").write_text("")

    def offers(**more):
        return subprocess.run(
            [sys.executable, "-m", "cloudspot", "offers", "--provider", "local", str(tmp_path / "job.toml")],
            env={**os.environ, "CLOUDSPOT_LOCAL_HOME": str(local_home), **more},
            capture_output=True,
            text=True,
            check=False,
        )

    assert offers(REGISTRY_KEY="secret").returncode == 0
    refused = offers()
    assert refused.returncode == 2
    assert "REGISTRY_KEY is not set in the environment" in refused.stderr


@pytest.mark.parametrize("realm", ["http://example.org/token", "file://localhost/etc/passwd"])
def test_a_log_in_is_not_sent_in_clear_to_a_stranger_and_no_file_read(registry, tmp_path, realm):
    registry.is_private = True
    registry.challenge = f'Bearer realm="{realm}",service="here"'
    log_in(registry, tmp_path)
    with pytest.raises(SpecError, match="the tag does not exist or is private"):
        with_digest(f"{registry.name}/team/train:7")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"digest": f"sha256:{'0' * 64}"}, f"it states sha256:0+, but the content has {DIGEST}"),
        ({"challenge": "Negotiate"}, "the tag does not exist or is private"),
        ({"manifest": b"x" * (image_digest._MAX_BYTES + 1)}, "its answer is longer than 8388608 bytes"),
    ],
)
def test_what_is_no_digest_is_refused_with_the_reason(registry, changes, says):
    vars(registry).update(changes)
    with pytest.raises(SpecError, match=f"run.image: {registry.name} does not return the digest .*{says}"):
        with_digest(f"{registry.name}/team/train:7")


def test_what_a_registry_says_at_length_is_cut_short(registry):
    registry.digest = "sha256:" + "0" * 60_000
    with pytest.raises(SpecError, match=r"it states sha256:0+") as refused:
        with_digest(f"{registry.name}/team/train:7")
    assert len(str(refused.value)) < 1000


def test_a_registry_that_does_not_answer_is_named_with_the_way_out():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        image = f"127.0.0.1:{taken.getsockname()[1]}/it:7"
        with pytest.raises(SpecError, match=rf"Connection refused.*; write {image}@sha256:\.\.\."):
            with_digest(image)


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


@pytest.mark.full
def test_a_real_registry_tells_the_digest_by_which_the_engine_finds_the_image(tmp_path):
    if why := why_no_containers():
        pytest.skip(why)
    with (
        real_registry(tmp_path) as address,
        small_image(tmp_path) as image,
        pushed(image, address, tmp_path) as name,
    ):
        assert with_digest(name.partition("@")[0]) == name
        words = ["podman", "pull", "--quiet", "--tls-verify=false", name.replace(":7@", "@")]
        subprocess.run(words, check=True, timeout=60)
