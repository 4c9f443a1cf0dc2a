"""The documentation as a site: it is built strictly, in an environment of its own, and holds every page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "docs" / "site" / "pages.toml").read_text())


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning_and_each_link_and_search_leads_somewhere(tmp_path):
    command = [sys.executable, "-m", "tox", "-q", "-e", "docs", "--", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ pages, \d+ links, \d+ searches: ", done.stdout, re.MULTILINE)
    assert {"index.html", "search.html", "cli.html", "aliyun.zh.html"} <= {
        path.name for path in (tmp_path / "site").iterdir()
    }


def test_each_page_is_sorted_into_one_of_four_sections():
    sections = [name for name in SETTINGS if name != "search"]
    assert sections == ["tutorial", "how-to", "reference", "explanation"]
    pages = [page for name in sections for page in SETTINGS[name]["pages"]]
    assert len(pages) == len(set(pages))
    assert {f"docs/{path.name}" for path in ROOT.glob("docs/*.md")} <= set(pages)
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_a_page_in_another_language_stands_beside_its_english_one():
    pages = SETTINGS["how-to"]["pages"]
    others = [page for page in pages if re.search(r"\.\w+\.md$", page)]
    assert others == ["docs/aliyun.zh.md"]
    assert pages[pages.index(others[0]) - 1] == "docs/aliyun.md"
    assert "](aliyun.zh.md)" in (ROOT / "docs" / "aliyun.md").read_text()
    assert "](aliyun.md)" in (ROOT / others[0]).read_text()


def test_ten_things_that_a_newcomer_looks_for_are_searched_for():
    assert len(SETTINGS["search"]) >= 10


def test_the_front_page_begins_with_the_readmes_first_command():
    def block(path):
        return re.search(r"^```sh\n(.*?)^```", (ROOT / path).read_text(), re.DOTALL | re.MULTILINE)[1]

    assert block("docs/site/front.md") == block("README.md")
