"""A job's page in an emulated cloud's store, opened by a browser that has the link and no credentials."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloudspot.cli.main import program
from cloudspot.emulation.api_faults import Faults
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.spec import load_job
from cloudspot.jobstore.jobs.submission import submit

JOB = "digits-7k3f"
SECONDS = 40
"""How long the link works: a browser may take its time to start."""


@contextmanager
def browser(arguments: Sequence[str] = ()) -> Iterator[Any]:
    """Yield Debian's Chromium."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright drives the browser", exc_type=ImportError
    )
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("this needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *arguments])
        yield found
        found.close()


def run(store: ObjectStore, *words: str, status: int = 0) -> Any:
    """Run a command on the store."""
    done = CliRunner().invoke(program, [*words], env={"CLOUDSPOT_STORE": store.url})
    assert done.exit_code == status, done.output
    return done


def submit_job(store: ObjectStore, directory: Path) -> None:
    """Submit a job of which nothing runs yet."""
    (directory / "train.py").write_text("print('hello')")
    (directory / "job.toml").write_text('name = "digits"\n[run]\nentrypoint = "train.py"\n')
    store.establish()
    submit(
        store,
        spec=load_job(directory / "job.toml"),
        provider="local",
        workdir=directory,
        environ={},
        job_id=JOB,
    )


def check_shared_page(
    store: ObjectStore, directory: Path, faults: Faults, *, arguments: Sequence[str] = ()
) -> None:
    """A link shows the page for one request, and nothing else, until the time that was stated; not after it.

    ``faults`` has what the store was asked.
    """
    submit_job(store, directory)
    with browser(arguments) as chromium:
        shared = json.loads(run(store, "share", JOB, "--for", f"{SECONDS}s", "--json").stdout)
        ends = datetime.fromisoformat(shared["ends"])
        assert shared["note"] == ""
        assert timedelta(0) < ends - datetime.now(timezone.utc) <= timedelta(seconds=SECONDS)
        page = chromium.new_context().new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        before = len(faults.actions())
        answer = page.goto(shared["url"])
        shown_at = datetime.now(timezone.utc)
        assert (answer.status, shown_at < ends) == (200, True)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert page.locator("h1").inner_text() == JOB  # shown, not downloaded
        assert (asked, len(faults.actions()) - before, problems) == ([shared["url"]], 1, []), faults.actions()
        while (answer := page.goto(shared["url"])).status == 200:
            assert datetime.now(timezone.utc) < ends + timedelta(seconds=5)
            page.wait_for_timeout(1_000)
        assert answer.status in {400, 403}  # Google: 400, ExpiredToken
        assert datetime.now(timezone.utc) > ends - timedelta(seconds=2)
        assert JOB not in page.locator("h1").all_inner_texts()
        # A longer one ends when it is taken back.
        again = json.loads(run(store, "share", JOB, "--json").stdout)["url"]
        assert page.goto(again).status == 200
        run(store, "unshare", JOB)
        assert page.goto(again).status in {403, 404}
