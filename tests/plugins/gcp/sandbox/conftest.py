"""Raw requests to the fakes, with a good token."""

from __future__ import annotations

import itertools

import pytest
import requests

_numbers = itertools.count()


@pytest.fixture
def call(gcp):
    """``call(method, path, **options)``: the answer of the emulated Google Cloud; ``token=None``: none."""
    good = gcp.identities.issue(gcp.account.email)

    def request(method, path, *, token=good, headers=None, **options):
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        url = path if "://" in path else gcp.url + path
        return requests.request(method, url, headers=sent, timeout=30, **options)

    return request


@pytest.fixture
def bucket(gcp):
    """An empty bucket's name."""
    name = f"raw-{next(_numbers)}"
    gcp.storage.buckets.make(name, project=gcp.account.project)
    return name


def reason_of(answer):
    """Return the status and the reason of a refusal, which must have Google's form."""
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert error["errors"][0]["message"] == error["message"]
    return answer.status_code, error["errors"][0]["reason"]
