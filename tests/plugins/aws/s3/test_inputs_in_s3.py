"""Inputs of [data] in a bucket of S3: listed, read, told apart by their etags."""

import time
from contextlib import contextmanager

import pytest

from cloudspot.errors import AuthError, CloudspotError
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.inputs.input_cache import InputCache, Staging
from cloudspot.jobstore.inputs.inputs import BLOCK_BYTES, InputMissing, open_input
from cloudspot.registry import open_store


@contextmanager
def no_progress(_total, _here):
    yield lambda _count: None


STAGING = Staging(lambda request: request(), time.sleep, no_progress)


@pytest.mark.full
@pytest.mark.parametrize("below", ["", "/some/prefix"])
def test_all_below_a_url_is_staged_and_a_change_is_seen(bucket, cloud, tmp_path, below):
    store, cache = open_store(f"s3://{bucket}{below}"), InputCache(tmp_path)
    given = {"a/one": b"1", "b": bytes(range(256)) * (BLOCK_BYTES // 128)}
    for key, data in given.items():
        store.put(key, data)
    cloud.put_raw(bucket, f"{below}/folder/".lstrip("/"))
    source = open_input(DataSpec(url=f"s3://{bucket}{below}/"))

    def staged():
        found = cache.stage(source, STAGING)
        return {
            file.name: cache.path_of(source, file).read_bytes() for file in found.files
        }, found.fetched_bytes

    assert staged() == (given, sum(map(len, given.values())))
    assert staged() == (given, 0)
    store.put("a/one", b"2")
    assert staged() == ({**given, "a/one": b"2"}, 1)
    single = open_input(DataSpec(url=f"s3://{bucket}{below}/a/one"))
    (file,) = cache.stage(single, STAGING).files
    assert cache.path_of(single, file).read_bytes() == b"2"


@pytest.mark.full
def test_what_is_not_a_key_is_told_and_not_left_out(bucket, cloud, store, tmp_path):
    store.put("a", b"1")
    cloud.put_raw(bucket, f"{store.bucket.prefix}d\u00e9j\u00e0")
    with pytest.raises(
        CloudspotError, match=r"it contains 1 name\(s\) that cannot be staged, such as 'd\u00e9j\u00e0'"
    ):
        InputCache(tmp_path).stage(open_input(DataSpec(url=f"{store.url}/")), STAGING)


@pytest.mark.full
def test_what_is_missing_and_what_is_denied_are_told_apart(aws, bucket, tmp_path):
    with pytest.raises(InputMissing):
        InputCache(tmp_path).stage(open_input(DataSpec(url=f"s3://{bucket}/none/")), STAGING)
    aws.faults.denied.add("s3:ListBucket")
    with pytest.raises(AuthError, match="s3:ListBucket"):
        InputCache(tmp_path).stage(open_input(DataSpec(url=f"s3://{bucket}/none/")), STAGING)
