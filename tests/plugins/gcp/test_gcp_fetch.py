"""What an image without cloudspot fetches its agent by: the machine's own token, checked by a strict Storage."""

import json
from urllib.parse import urlsplit

import pytest

from cloudspot.emulation.wsgi_server import Server
from cloudspot_gcp import fetch as fetching


@pytest.fixture
def metadata(gcp, monkeypatch):
    """A metadata server that gives tokens of the node's account to who asks as one must."""
    asked = []

    def app(environ, start_response):
        asked.append(environ["PATH_INFO"])
        if environ.get("HTTP_METADATA_FLAVOR") != "Google":
            start_response("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        body = json.dumps(
            {"access_token": gcp.identities.issue(gcp.account.email), "expires_in": 3599}
        ).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    server = Server(app)
    monkeypatch.setattr(fetching, "METADATA", urlsplit(server.url).netloc)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcp.url)
    yield asked
    server.close()


@pytest.fixture
def bucket(gcp):
    gcp.storage.buckets.make("fetched-from", project=gcp.account.project)
    yield "fetched-from"
    for stored in list(gcp.storage.buckets.names("fetched-from")):
        gcp.storage.buckets.delete("fetched-from", stored.name, {})
    gcp.storage.buckets.remove("fetched-from")


def test_it_writes_the_object_to_the_file(gcp, metadata, bucket, tmp_path):
    gcp.storage.buckets.put(bucket, "some/prefix/agents/a b+c", b"wheels", fields={}, conditions={})
    fetching.fetch(f"gs://{bucket}/some/prefix/", "agents/a b+c", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"wheels"
    assert metadata == ["/computeMetadata/v1/instance/service-accounts/default/token"]


def test_what_storage_refuses_is_told_in_its_words(metadata, bucket, tmp_path):
    with pytest.raises(OSError, match="Cloud Storage answered 404 No such object") as caught:
        fetching.fetch(f"gs://{bucket}", "agents/none", tmp_path / "file")
    assert "ya29." not in str(caught.value)
    assert not (tmp_path / "file").exists()
