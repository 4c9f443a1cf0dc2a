"""``cloudspot report``: a page in one file."""

import json
import re
from datetime import timedelta

import pytest
from support.records.jobclock import at

from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord

from .pagereading import Page

HOSTILE = (
    """</title></pre><script>alert(1)</script><img src=x onerror=alert(1)>" onload='alert(1)' {{ 7 * 7 }}"""
)


def metrics(job, stream, values, *, first_step, minutes):
    """Write what ``run.log()`` writes: a line a second."""
    lines = [
        json.dumps({"step": first_step + number, "time": (at(minutes)).timestamp() + number, "values": one})
        for number, one in enumerate(values)
    ]
    records = [
        LogRecord(
            stream=stream, seq=1000 + n, time=at(minutes) + timedelta(seconds=n), text=text, source="metrics"
        )
        for n, text in enumerate(lines)
    ]
    ObjectStoreLogSink(job[0].store, job[1]).write(records)


@pytest.fixture
def report(jobs, tmp_path):
    """``report(*arguments)``: the page that the command writes."""

    def write(*arguments, status=0):
        path = tmp_path / "report.html"
        jobs.run("report", *arguments, "-o", str(path), status=status)
        html = path.read_text()
        return html, Page(html)

    return write


def test_a_jobs_page_says_what_show_says(jobs, report):
    job_id = jobs.reclaimed_and_finished()
    shown = jobs.run_json("show", job_id)
    _, page = report(job_id)
    assert page.texts("h1") == [job_id]
    assert page.by_id("step") == f"{shown['step']} of {shown['steps_total']}" == "100 of 100"
    assert page.by_id("spent") == f"{shown['cost']['spent']:.4f} USD"
    titles = page.texts("title")
    assert f"{job_id}: succeeded" in titles
    assert "training for 3m 54s, generation 1" in titles
    assert "notice from metadata: 30s to the end of the machine" in titles
    assert "checkpoint at step 40" in titles
    assert any("step 100" in text for text in page.texts("pre"))


def test_a_metric_is_drawn_over_steps_time_and_money_and_what_was_made_again_apart(jobs, report):
    job_id = jobs.reclaimed_and_finished()
    metrics((jobs, job_id), "1-0", [{"loss": 3.0 - n / 40} for n in range(45)], first_step=0, minutes=2)
    metrics((jobs, job_id), "2-0", [{"loss": 2.0 - n / 60} for n in range(60)], first_step=40, minutes=8)
    html, page = report(job_id)
    labels = [attributes.get("aria-label") for _, attributes, _ in page.named("svg")]
    assert [label for label in labels if label and label.startswith("loss")] == [
        "loss over step",
        "loss over minutes since the submission",
        "loss over USD spent",
    ]
    lines = [attributes for _, attributes, _ in page.named("path") if "stroke" in attributes]
    assert {one["stroke"] for one in lines} == {"var(--curve-0)", "var(--lost-curve)"}
    # A point for each step, and apart those of the five that were made twice.
    assert [one["d"].count("L") for one in lines] == [4, 99] * 3
    assert "1.01667 at step 99" in html


def test_a_long_curve_keeps_its_extremes_in_few_points(jobs, report):
    job_id = jobs.running()
    values = [{"loss": 900.0 if n == 4321 else float("nan") if n == 7 else 1.0} for n in range(6000)]
    metrics((jobs, job_id), "1-0", values, first_step=1, minutes=101)
    html, page = report(job_id)
    paths = [one["d"] for _, one, _ in page.named("path") if one.get("stroke") == "var(--curve-0)"]
    assert all(path.count("L") < 400 for path in paths)
    assert "750" in page.texts("text")
    assert len(html) < 100_000


def test_what_a_script_names_and_prints_is_text_and_nothing_else(jobs, report):
    job_id = jobs.running()
    metrics((jobs, job_id), "1-0", [{HOSTILE: 1.0}, {HOSTILE: 2.0}], first_step=1, minutes=101)
    jobs.add_log(
        job_id,
        "1-0",
        [HOSTILE, "\x1b]52;c;aGk=\x07\x1b[31mred\x1b[0m\u202egnp.exe", "x" * 900_000],
        minutes=101,
    )
    html, page = report(job_id)
    assert {tag for tag, _, _ in page.elements}.isdisjoint({"script", "img", "iframe", "object"})
    assert not [name for _, attributes, _ in page.elements for name in attributes if name.startswith("on")]
    assert "<script" not in html
    assert "49" not in "".join(page.texts("figcaption"))
    assert HOSTILE in "".join(page.texts("pre"))
    assert "redgnp.exe" in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert len(html) < 100_000
    assert "898000 more characters" in html


def test_the_page_loads_nothing_and_forbids_it(jobs, report):
    html, page = report(jobs.reclaimed_and_finished())
    (policy,) = [one["content"] for _, one, _ in page.named("meta") if one.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    sources = [one[name] for _, one, _ in page.elements for name in ("src", "href", "action") if name in one]
    assert sources == ["data:,", "#main"]
    assert "http://" not in re.sub(r'xmlns="[^"]*"', "", html)
    assert not re.search(r"url\(|@import", html)


def test_the_stores_page_lists_what_ps_lists(jobs, report):
    jobs.reclaimed_and_finished()
    jobs.failed()
    jobs.running()
    listed = jobs.run_json("ps", "--all")
    _, page = report("--index")
    rows = [
        text
        for text, (_, one, _) in zip(page.texts("th"), page.named("th"), strict=True)
        if one["scope"] == "row"
    ]
    assert rows == [one["id"] for one in listed] == ["going-abcd", "broken-abcd", "digits-7k3f"]
    assert "train.py ended with 3" in page.texts("td")


def test_a_job_that_cannot_be_read_is_named_and_the_others_are_listed(jobs, report):
    jobs.reclaimed_and_finished()
    jobs.running()
    jobs.store.put(keys.journal("going-abcd", 1), b"not json")
    _, page = report("--index", status=8)
    assert "digits-7k3f" in page.texts("th")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [([], "neither ID nor --index"), (["some-job", "--index"], "both ID and --index")],
)
def test_it_wants_a_job_or_the_store(jobs, arguments, found, tmp_path):
    jobs.running("some-job")
    result = jobs.run("report", *arguments, "-o", str(tmp_path / "x.html"), status=2)
    assert f"give either ID or --index: got {found}" in result.stderr


def test_a_page_that_cannot_be_written_is_one_line(jobs, tmp_path):
    jobs.running("some-job")
    result = jobs.run("report", "some-job", "-o", str(tmp_path / "no" / "x.html"), status=2)
    assert "there is no directory" in result.stderr
