"""A shared page in a browser that has nothing but the link."""

from urllib.parse import urlsplit

import pytest
from support.clouds.sharedpages import JOB, check_shared_page, run, submit_job


@pytest.mark.full
def test_a_shared_page_is_shown_without_credentials_until_its_stated_end_and_not_after(
    oss, domain, bucket, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("CLOUDSPOT_OSS_DOMAINS", f"{bucket}={domain}")
    here = f"--host-resolver-rules=MAP {urlsplit(domain).hostname} 127.0.0.1"
    check_shared_page(store, tmp_path, oss.faults, arguments=[here])


@pytest.mark.full
def test_at_the_default_domain_nothing_is_shared_and_nothing_put(oss, store, tmp_path):
    submit_job(store, tmp_path)
    before = {one.key for one in store.list_objects("")}
    told = run(store, "share", JOB, status=1).output
    assert "browsers download pages from OSS's default domain and do not show them" in told
    assert {one.key for one in store.list_objects("")} == before
