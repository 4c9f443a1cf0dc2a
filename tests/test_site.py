"""The documentation as a site: it is built strictly, in an environment of its own, and holds every page."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from cloudspot import hookspecs

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "docs" / "site" / "pages.toml").read_text())


def shown(page):
    """Return the text of a page that was built, without spaces."""
    text = re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
    return re.sub(r"\s+", "", html.unescape(text))


def named_on(page):
    """Return what a page names in code spans and headings, without spaces."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    spans = {one.replace("\\|", "|") for one in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)}
    spans |= {re.sub(r"[`*]", "", one) for one in re.findall(r"^#+ ([^\[\n]*)$", text, re.MULTILINE)}
    return {re.sub(r"\s+", "", one) for one in spans}


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning_or_a_dead_link_and_has_all_that_the_pages_name(tmp_path):
    """Other tests hold the pages to the code: each command, option, field, hook and key that there is."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "tox", "-q", "-e", "docs", "--", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ pages, \d+ links, \d+ searches: ", done.stdout, re.MULTILINE)
    assert {"index.html", "search.html"} <= {path.name for path in site.iterdir()}
    everything, num_named = "", 0
    for page in (page for name in SETTINGS if name != "search" for page in SETTINGS[name]["pages"]):
        stem = {"plugins/README.md": "plugins", "SECURITY.md": "report-a-vulnerability"}.get(
            page, Path(page).stem.lower()
        )
        text, named = shown(site / f"{stem}.html"), named_on(ROOT / page)
        assert [one for one in sorted(named) if one not in text] == [], page
        everything += text
        num_named += len(named)
    assert num_named > 3000
    hooks = [name for name, one in vars(hookspecs).items() if hasattr(one, f"{hookspecs.PROJECT_NAME}_spec")]
    assert len(hooks) > 4
    assert [name for name in hooks if name not in everything] == []


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
