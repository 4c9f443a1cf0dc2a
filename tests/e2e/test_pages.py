"""A running job as a person at a browser sees it: headless Chromium on the local site, and on a page in a file."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from support.jobs.acting_user import wait_for

pytestmark = pytest.mark.full

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright drives the browser", exc_type=ImportError
)
WIDTHS = (1280, 800, 390)
SLOW = ("run.env.TINY_EPOCHS=20", "run.env.TINY_STEP_SECONDS=0.25")


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium, without a display."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("these tests need Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page that fails the test if its console says that something went wrong."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(30_000)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert problems == []


@pytest.fixture
def site(user):
    """``site(*options)``: the URL that ``cloudspot ui`` prints."""

    def start(*options):
        process = user.start("ui", *options)
        found = wait_for("the site", lambda: re.search(r"open (http://\S+)", user.output(process)))
        return found[1]

    return start


def spent(user, name):
    """Return the job's cost as ``show --json`` tells it now, as a page writes it."""
    return f"{user.show(name)['cost']['spent']:.4f} USD"


def until(page, condition, *, seconds=60):
    """Wait for something on the page; its policy lets nobody run a script in it, a test either."""
    for _ in range(10 * seconds):
        if condition():
            return
        page.wait_for_timeout(100)
    pytest.fail(f"it did not come within {seconds} s")


def step(page):
    return int(page.locator("#step").inner_text().split()[0])


def serious(page):
    """Return what axe-core finds that keeps someone from using the page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


def look_at(page, name, pictures: Path | None):
    """Check a page at each width, in light and in dark: it fits, and nobody is kept out of it."""
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert serious(page) == []
            if pictures is not None:
                pictures.mkdir(parents=True, exist_ok=True)
                page.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.timeout(1200)
def test_a_person_sees_a_job_live_its_reclaim_and_its_end(user, site, page, tmp_path, pictures):
    for name in ("before-1", "before-2"):
        user.run_tiny(name, sets=("run.env.TINY_EPOCHS=1",), timeout=400)
    user.start_tiny("watched", sets=SLOW)
    wait_for("the job", lambda: user.cloudspot("show", "watched", status=None).returncode == 0)
    page.goto(site("--write"))
    page.get_by_role("link", name="watched").click()
    until(page, lambda: step(page) > 3, seconds=120)
    first = step(page)
    until(page, lambda: step(page) > first)

    # What the reader has chosen stays when a part of the page is replaced.
    page.locator("#axis-time").check()
    page.locator("summary", has_text="loss as a table").click()
    now = step(page)
    until(page, lambda: step(page) > now)
    assert page.locator("#axis-time").is_checked()
    assert page.locator(".over-time svg").first.is_visible()
    assert page.locator("details[open] summary", has_text="loss as a table").is_visible()

    # A line that the script prints comes to the page of the log by itself.
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Log and search").click(modifiers=["Control"])
    log = opened.value
    lines = log.locator("#log")
    until(log, lambda: "step" in lines.inner_text())
    seen = lines.inner_text()
    until(log, lambda: lines.inner_text() != seen and lines.inner_text().startswith(seen[:200]))
    log.close()

    # The machine is taken, by a page; the notice and the next machine are seen.
    page.get_by_role("link", name="Preempt").click()
    page.get_by_role("button", name="Preempt").click()
    page.get_by_text("The command has ended with status 0").wait_for(timeout=60_000)
    page.get_by_role("link", name="Back to the job").click()
    page.locator(".m-notice >> nth=1").wait_for(state="attached")  # beside that of the legend
    page.locator(".lane-name", has_text="2.0").wait_for()
    page.locator("#limited-by").wait_for(timeout=90_000)
    look_at(page, "job", pictures)

    page.get_by_role("link", name="Stop").click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("asked job watched to save a checkpoint and stop").wait_for(timeout=60_000)
    page.get_by_role("link", name="Back to the job").click()
    page.locator(".badge", has_text="stopped").wait_for(timeout=90_000)
    shown = user.show("watched")
    assert page.locator("#step").inner_text().split()[0] == str(shown["step"])
    # The bill grows until it is known that the machine has ended.
    until(page, lambda: page.locator("#spent").inner_text() == spent(user, "watched"), seconds=60)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the log").click()
    text = Path(download.value.path()).read_text()
    assert "step" in text

    page.get_by_role("link", name="All jobs").click()
    for name in ("before-1", "before-2", "watched"):
        page.get_by_label(f"Compare {name}").check()
    look_at(page, "jobs", pictures)
    page.get_by_role("button", name="Compare").click()
    assert page.locator("#curves .over-steps svg").first.locator("path[stroke^='var']").count() == 3
    look_at(page, "compare", pictures)


def test_a_page_in_a_file_is_read_by_everyone_and_runs_nothing(user, page, tmp_path):
    user.run_tiny("done", timeout=400)
    user.cloudspot("report", "done", "-o", str(tmp_path / "page.html"))
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "page.html").as_uri())
    # With the keyboard alone: the first stop leads to the content.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    look_at(page, "file", None)
    page.locator("#axis-money").check()
    assert page.locator(".over-money svg").first.is_visible()
    assert not page.locator(".over-steps svg").first.is_visible()
    assert requests == [(tmp_path / "page.html").as_uri()]


@pytest.fixture
def pictures(request):
    """Where the pictures are kept, by ``--basetemp``'s neighbour ``CLOUDSPOT_PICTURES``; None: they are not."""
    chosen = os.environ.get("CLOUDSPOT_PICTURES")
    return None if chosen is None else Path(chosen)
