"""``cloudspot share`` and ``unshare``; the links of each cloud are tested with its store."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore

from cloudspot import registry
from cloudspot.calls import LinkResult, TaskRequest
from cloudspot.errors import CapacityError, CorruptData
from cloudspot.hookspecs import TASK_GROUP
from cloudspot.jobstore.layout import keys
from cloudspot.local.filestore import FileStore
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.plugin import installed
from cloudspot_ui.shared_page import LiveShares, SharedPage

from .pagereading import Page

ROOT = Path(__file__).parents[3]
MOST_OF_A_REFRESH, MOST_OF_THE_FIRST = 20, 30


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
    assert "the link ends at" in done.stderr
    assert "the link ends earlier than --for: it ends with a key" in done.stderr
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


def page_at(url):
    return Page(Path(url.removeprefix("file://")).read_text(encoding="utf-8"))


@pytest.fixture
def going(jobs, linking, monkeypatch):
    """A job that runs and is shared live, of whose driver no machine can be bought: the id and the URL."""

    def refuse(*_args, **_options):
        raise CapacityError("no capacity today")

    monkeypatch.setattr(LocalProvisioner, "create", refuse)
    job_id = jobs.running()
    return job_id, jobs.run_json("share", job_id, "--live")["url"]


def test_a_live_page_is_refreshed_by_each_driver_that_comes_by_until_it_is_unshared(jobs, going):
    job_id, url = going
    assert page_at(url).by_id("step") == "17 of 100"
    assert "Refreshed every minute or two" in "".join(page_at(url).texts("p"))
    jobs.add_heartbeat(job_id, 1, step=30, minutes=103)
    jobs.run("reconcile", "--job", job_id)
    assert page_at(url).by_id("step") == "30 of 100"
    assert jobs.run_json("show", job_id)["driven"]["undone"] == ""
    jobs.add_heartbeat(job_id, 1, step=31, minutes=103)
    jobs.run("reconcile", "--job", job_id)  # too soon
    assert page_at(url).by_id("step") == "30 of 100"
    assert "deleted 1 page " in jobs.run("unshare", job_id).stdout
    jobs.run("reconcile", "--job", job_id)
    assert not Path(url.removeprefix("file://")).exists()
    assert [one.key for one in jobs.store.list_objects(keys.nodes_prefix(job_id)) if "tasks" in one.key] == []


def test_a_driver_without_the_page_says_so_in_show(jobs, going, monkeypatch):
    job_id, url = going
    found = installed.from_distributions
    monkeypatch.setattr(
        registry, "from_distributions", lambda group: () if group == TASK_GROUP else found(group)
    )
    jobs.add_heartbeat(job_id, 1, step=30, minutes=103)
    jobs.run("reconcile", "--job", job_id)
    assert page_at(url).by_id("step") == "17 of 100"
    assert (
        "it does not do what it is asked for: shared-page: no driver task "
        '"shared-page" is installed; run, in a copy of cloudspot\'s source: pip install plugins/ui'
    ) in " ".join(jobs.run("show", job_id).stdout.split())


def test_a_refresh_asks_the_store_for_little(jobs, going, tmp_path):
    job_id, _ = going
    counted = FaultyStore(jobs.store, FaultPlan(), tmp_path / "faults")
    task = SharedPage()
    request = TaskRequest(
        job_id=job_id, asked=jobs.store.get(keys.task(job_id, SharedPage.name)), is_over=False
    )
    jobs.add_log(job_id, "1-0", ["step 1"], minutes=103)
    for most in (MOST_OF_THE_FIRST, MOST_OF_A_REFRESH):
        counted.calls.clear()
        task.run(counted, request)
        # The driver gets the record, and puts a mark.
        assert sum(counted.calls.values()) + 2 <= most, counted.calls
    told = " ".join((ROOT / "docs" / "pages.md").read_text().split())
    assert f"at most {MOST_OF_A_REFRESH} requests to the store, {MOST_OF_THE_FIRST} where" in told


def test_a_refresh_after_the_last_link_has_ended_ends_the_refreshing(jobs, going):
    job_id, _ = going
    over = LiveShares({"word": datetime(2026, 1, 1, tzinfo=timezone.utc)}).to_bytes()
    request = TaskRequest(job_id=job_id, asked=over, is_over=False)
    assert SharedPage().run(jobs.store, request).is_finished


@pytest.mark.parametrize("data", [b"", b"[]", b'{"pages": {"../../x": "2027-01-01T00:00:00+00:00"}}'])
def test_a_record_that_names_no_page_puts_none(jobs, going, data):
    job_id, _ = going
    before = {one.key for one in jobs.store.list_objects("")}
    with pytest.raises(CorruptData, match="the record of the shared page is malformed"):
        SharedPage().run(jobs.store, TaskRequest(job_id=job_id, asked=data, is_over=False))
    assert {one.key for one in jobs.store.list_objects("")} == before


def test_a_refresh_that_was_under_way_when_the_page_was_unshared_leaves_no_page(jobs, going):
    job_id, _ = going
    request = TaskRequest(
        job_id=job_id, asked=jobs.store.get(keys.task(job_id, SharedPage.name)), is_over=False
    )
    jobs.run("unshare", job_id)
    SharedPage().run(jobs.store, request)
    assert list(jobs.store.list_objects(keys.shared_pages_prefix(job_id))) == []
