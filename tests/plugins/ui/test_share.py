"""``cloudspot share`` and ``unshare``; the links of each cloud are tested with its store."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from cloudspot.calls import LinkResult
from cloudspot.jobstore.layout import keys
from cloudspot.local.filestore import FileStore

from .pagereading import Page


@pytest.fixture
def linking(monkeypatch):
    """A store in a directory that makes links: a file's own URL. Holds what was asked for."""
    asked = []

    def link(self, request):
        asked.append(request)
        ends = datetime.now(timezone.utc) + timedelta(seconds=60)
        return LinkResult(url=self._path(request.key).as_uri(), ends_at=ends, note="it ends with a key")

    monkeypatch.setattr(FileStore, "link", link)
    return asked


def test_the_link_leads_to_the_jobs_page_and_says_when_it_really_ends(jobs, linking):
    job_id = jobs.reclaimed_and_finished()
    done = jobs.run("share", job_id, "--for", "2h")
    [url] = done.stdout.split()
    page = Page(Path(url.removeprefix("file://")).read_text(encoding="utf-8"))
    assert page.by_id("step") == "100 of 100"
    assert not page.named("script")
    assert {one.seconds for one in linking} == {7200.0}
    assert {one.media_type for one in linking} == {"text/html; charset=utf-8"}
    assert "it ends at" in done.stderr
    assert "does not last for as long as was asked: it ends with a key" in done.stderr
    value = jobs.run_json("share", job_id)
    assert value["url"] != url
    assert value["note"] == "it ends with a key"


def test_unshare_ends_all_links_and_no_later_link_brings_one_back(jobs, linking):
    job_id = jobs.reclaimed_and_finished()
    first = jobs.run_json("share", job_id)["url"]
    jobs.run_json("share", job_id)
    assert "deleted 2 pages" in jobs.run("unshare", job_id).stdout
    assert "deleted 0 pages" in jobs.run("unshare", job_id).stdout
    assert jobs.run_json("share", job_id)["url"] != first
    assert len(list(jobs.store.list_objects(keys.shared_pages_prefix(job_id)))) == 1
    jobs.run("rm", job_id, "--yes")
    assert list(jobs.store.list_objects(keys.job_prefix(job_id))) == []


def test_a_store_without_links_says_so_and_is_left_as_it_was(jobs):
    job_id = jobs.reclaimed_and_finished()
    result = jobs.run("share", job_id, status=1)
    assert (
        "is a directory, for which there are no links; send the file that `cloudspot report`" in result.stderr
    )
    assert list(jobs.store.list_objects(keys.shared_pages_prefix(job_id))) == []


@pytest.mark.parametrize("duration", ["8d", "0s", "a week"])
def test_a_time_for_which_no_cloud_signs_is_refused(jobs, duration):
    job_id = jobs.reclaimed_and_finished()
    assert "--for" in jobs.run("share", job_id, "--for", duration, status=2).stderr
