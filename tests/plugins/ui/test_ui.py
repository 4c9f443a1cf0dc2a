"""``cloudspot ui``: who gets in, and what the pages show."""

import itertools
import json
from datetime import timedelta

import pytest
from support.records.jobclock import at

from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord

from .localsite import TOKEN, served
from .pagereading import Page


@pytest.fixture
def site(jobs):
    """A browser at the site of the jobs' store, which has not opened the first URL yet."""
    with served(jobs.store) as browser:
        yield browser


# --- who gets in ----------------------------------------------------------------------------------


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_gets(jobs, site):
    jobs.running()
    answer = site.ask(f"/?token={TOKEN}")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    site.cookie = cookie.partition(";")[0]
    assert "going-abcd" in site.text("/")


@pytest.mark.parametrize(
    "path", ["/", "/?token=", "/?token=wrong", f"/events?token={TOKEN}", f"/live.js?token={TOKEN}"]
)
def test_without_it_nothing_is_shown(jobs, site, path):
    jobs.running()
    answer = site.ask(path)
    assert answer.status == 403
    assert b"going" not in answer.data
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    "cookie",
    ["cloudspot-ui-{port}=wrong", "cloudspot-ui-{port}=", "a=b; =;;", 'cloudspot-ui-{port}="\\777"', "\x01"],
)
def test_a_made_up_cookie_opens_nothing(site, cookie):
    assert site.ask("/", cookie=cookie.format(port=site.port)).status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""]
)
def test_another_name_of_this_computer_is_refused_with_the_cookie_and_the_token(site, host):
    site.log_in()
    assert site.ask("/", host=host.format(port=site.port)).status in {400, 421}
    assert site.ask(f"/?token={TOKEN}", cookie="", host=host.format(port=site.port)).status in {400, 421}


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
def test_a_foreign_origin_is_refused_with_the_cookie(site, origin):
    site.log_in()
    assert site.ask("/", origin=origin).status == 403
    assert site.ask("/", method="POST", origin=origin).status == 403


def test_what_changes_something_needs_an_origin(jobs):
    jobs.running()
    with served(jobs.store, may_write=True) as site:
        site.log_in()
        assert site.ask("/jobs/going-abcd/stop", method="POST", origin=None).status == 403
        assert site.ask("/jobs/going-abcd/stop").status == 200
    assert not jobs.run_json("show", "going-abcd")["stop_requested"]


def test_without_write_no_page_offers_or_takes_a_command(jobs, site):
    jobs.running()
    site.log_in()
    page = Page(site.text("/jobs/going-abcd"))
    assert not {"Stop", "Move", "Resume", "Preempt"} & set(page.texts("a"))
    for method in ("GET", "POST"):
        assert site.ask("/jobs/going-abcd/stop", method=method).status == 404


def test_pages_run_no_script_but_the_sites_and_stay_in_no_cache(jobs, site):
    jobs.running()
    site.log_in()
    answer = site.ask("/jobs/going-abcd")
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "unsafe-inline" not in answer.headers["Content-Security-Policy"].partition("script-src")[2]
    assert answer.headers["Cache-Control"] == "no-store"
    scripts = Page(answer.data.decode()).named("script")
    assert [one["src"] for _, one, _ in scripts] == ["/live.js"]


# --- what the pages show --------------------------------------------------------------------------


def test_a_jobs_page_has_the_figures_of_show_and_gets_new_ones(jobs, site):
    jobs.running()
    site.log_in()
    shown = jobs.run_json("show", "going-abcd")
    assert Page(site.text("/jobs/going-abcd")).by_id("step") == f"{shown['step']} of {shown['steps_total']}"
    with site.events("/jobs/going-abcd/events") as events:
        name, parts = next(events)
        assert name == "parts"
        assert set(parts) >= {"summary", "curves", "timeline", "bill", "log"}
        jobs.add_heartbeat("going-abcd", 1, step=18, minutes=103)
        _, parts = next(one for one in events if "summary" in one[1])
        assert Page(parts["summary"]).by_id("step") == "18 of 100"
        assert "curves" not in parts


def test_the_list_is_filtered_as_ps_does_and_says_what_is_wrong(jobs, site):
    jobs.running()
    jobs.failed()
    site.log_in()
    assert "broken-abcd" in site.text("/")
    filtered = site.text("/?filter=state%3Drunning+step%3E%3D17")
    assert "going-abcd" in filtered
    assert "broken-abcd" not in filtered
    with site.events("/events?filter=state%3Dfailed") as events:
        _, parts = next(events)
        assert "broken-abcd" in parts["jobs"]
        assert "going-abcd" not in parts["jobs"]
    assert "unknown field" in site.text("/?filter=colour%3Dred")


def test_a_job_that_ends_and_one_that_comes_are_seen(jobs, site, monkeypatch):
    monkeypatch.setattr("cloudspot_ui.live.watching.LIST_SECONDS", 0.0)
    jobs.running()
    site.log_in()
    assert "badge state-failed" not in site.text("/")
    jobs.add_certificate("going-abcd", 1, started=100, ended=104)
    jobs.add_finished("going-abcd", "failed", minutes=104)
    jobs.reclaimed_and_finished()
    text = site.text("/")
    assert "digits-7k3f" in text
    assert "badge state-failed" in text


def test_an_artifact_is_saved_and_never_shown(jobs, site):
    jobs.running()
    site.log_in()
    names = ["page.html", "deep/down/ü %2f?.bin"]
    for name in names:
        jobs.store.put(keys.artifact("going-abcd", name), b"<script>alert(1)</script>" * 100_000)
    page = Page(site.text("/jobs/going-abcd"))
    links = [one["href"] for _, one, _ in page.named("a") if "/artifacts/" in one["href"]]
    assert len(links) == 2
    for link in links:
        answer = site.ask(link)
        assert answer.data == b"<script>alert(1)</script>" * 100_000
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/going-abcd/artifacts/../../../../etc/passwd",
        "/jobs/going-abcd/artifacts/..%2f..%2fspec",
        "/jobs/going-abcd/artifacts/%2e%2e/%2e%2e/spec",
        "/jobs/going-abcd/artifacts//etc/passwd",
        "/jobs/..%2f..%2fetc",
        "/jobs/going-abcd/../../etc/passwd",
        "/jobs/%00",
        "/live/../../pyproject.toml",
        "/static/live.js",
    ],
)
def test_no_name_leads_out_of_the_job(jobs, site, path):
    jobs.running()
    site.log_in()
    assert site.ask(path).status == 404


def test_a_log_is_searched_followed_and_saved(jobs, site):
    jobs.running()
    lines = [f"line {number}" for number in range(900)] + ["\x1b[2J\x1b]0;title\x07Needle <b>"]
    jobs.add_log("going-abcd", "1-0", lines, minutes=101)
    site.log_in()
    with site.events("/jobs/going-abcd/log/events") as events:
        assert next(events) == ("begin", None)
        _, first = next(events)
        assert (len(first), first[-1]["text"]) == (500, "Needle <b>")
    with site.events("/jobs/going-abcd/log/events?search=needle") as events:
        _, (_, found) = next(events), next(events)
        assert [one["text"] for one in found] == ["Needle <b>"]
        new = [
            LogRecord(
                stream="1-0", seq=901 + n, time=at(102) + timedelta(seconds=n), text=text, source="train"
            )
            for n, text in enumerate(["nothing", "a needle again"])
        ]
        ObjectStoreLogSink(jobs.store, "going-abcd").write(new)
        _, found = next(one for one in events if one[0] == "lines")
        assert [(one["text"], one["head"].split()[1:]) for one in found] == [
            ("a needle again", ["1.0", "train"])
        ]
    with site.events("/jobs/going-abcd/log/events?node=7") as events:
        told = dict(itertools.islice(events, 3))
        assert "not a node" in told["problem"]
    saved = site.ask("/jobs/going-abcd/log.txt")
    assert saved.data.count(b"\n") == 903
    assert "attachment" in saved.headers["Content-Disposition"]


def test_jobs_are_compared_side_by_side(jobs, site):
    jobs.reclaimed_and_finished("digits-a")
    jobs.job_file.write_text(jobs.job_file.read_text() + '[run.env]\nLR = "0.1"\n')
    jobs.failed("digits-b")
    jobs.running("digits-c")
    for job_id, first in (("digits-a", 2.0), ("digits-c", 3.0)):
        records = [
            LogRecord(stream="1-0", seq=500 + n, time=at(101), source="metrics",
                      text=json.dumps({"step": n, "time": at(1.5 if first == 2.0 else 101).timestamp() + n, "values": {"loss": first / (n + 1)}}))
            for n in range(9)
        ]  # fmt: skip
        ObjectStoreLogSink(jobs.store, job_id).write(records)
    site.log_in()
    page = Page(site.text("/compare?job=digits-a&job=digits-b&job=digits-c"))
    colours = [
        one["stroke"] for _, one, _ in page.named("path") if one.get("stroke", "").startswith("var(--curve")
    ]
    assert set(colours) == {"var(--curve-0)", "var(--curve-2)"}
    assert "run.env.LR" in page.texts("th")
    assert {"succeeded", "failed", "running"} <= set(page.texts("td"))
    assert site.ask("/compare?job=digits-a").status == 400
    assert site.ask("/compare?" + "&".join(f"job=digits-{n}" for n in range(11))).status == 400


def test_a_job_that_is_not_there_or_cannot_be_read_is_one_line(jobs, site):
    jobs.running()
    site.log_in()
    assert site.ask("/jobs/nothing").status == 404
    jobs.store.put(keys.journal("going-abcd", 1), b"no json")
    answer = site.ask("/jobs/going-abcd")
    assert (answer.status, answer.data.count(b"\n")) == (502, 0)


def test_a_long_log_holds_up_no_page_and_is_read_bit_by_bit(jobs, site, monkeypatch):
    monkeypatch.setattr("cloudspot_ui.live.watching.FIRST_LOG_SECONDS", 0.0)
    monkeypatch.setattr("cloudspot_ui.live.watching.LOG_SECONDS", 0.0)
    monkeypatch.setattr("cloudspot_ui.live.watching.FRESH_SECONDS", 0.0)
    jobs.running()
    jobs.add_log("going-abcd", "1-0", [f"line {number}" for number in range(350)], minutes=101)
    site.log_in()
    seen = [site.text("/jobs/going-abcd") for _ in range(5)]
    assert [("still being read" in text) for text in seen] == [True, True, True, False, False]
    assert all("line 349" in text for text in seen)


@pytest.mark.full
def test_a_command_asks_on_its_page_what_it_asks_in_a_terminal(jobs, monkeypatch):
    jobs.running()
    monkeypatch.setenv("CLOUDSPOT_STORE", jobs.store.url)
    with served(jobs.store, may_write=True) as site:
        site.log_in()
        started = site.ask("/jobs/going-abcd/stop", method="POST", body="")
        assert started.status == 303
        with site.events(f"{started.headers['Location']}/events") as events:
            texts = (Page(parts["output"]) for name, parts in events if name == "parts")
            over = next(page for page in texts if "The command has ended" in "".join(page.texts("p")))
        assert "asked job going-abcd" in "".join(over.texts("pre"))
    assert jobs.run_json("show", "going-abcd")["stop_requested"] == "user"
