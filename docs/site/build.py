"""Builds the site from docs/: no warning, no dead link, and the search finds what newcomers look for.

    python docs/site/build.py [FOLDER]     # into build/site; open its index.html

The pages stay where they are, as plain Markdown that a forge shows. They are copied with their links
changed: those to other pages lead to these, and those to files of the repository to the forge. Needs what
`tox -e docs` installs.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import tomllib
from py_mini_racer import MiniRacer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "release"))

from distributions import addresses  # noqa: E402 - beside the other scripts

FRONT = "docs/site/front.md"
_LINK = re.compile(r"(?P<before>\]\(|^\[[^\]^][^\]]*\]: +)(?P<target>[^)\s]+)", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


class SiteError(Exception):
    """The site is not as it should be; the message has a line for each fault."""


class Page(HTMLParser):
    """The links and anchors of a page that was built."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the element links to, and its id."""
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.links.add(value)
            elif name == "id" and value:
                self.anchors.add(value)


def main() -> int:
    """Build the site; return the exit status."""
    out = Path(*sys.argv[1:] or [str(ROOT / "build" / "site")])
    settings = tomllib.loads((HERE / "pages.toml").read_text(encoding="utf-8"))
    search = settings.pop("search")
    try:
        with tempfile.TemporaryDirectory() as source:
            stage(Path(source), settings)
            shutil.rmtree(out, ignore_errors=True)
            words = ("-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", source, out)
            if subprocess.run([sys.executable, *map(str, words)], check=False).returncode:
                raise SiteError("Sphinx warns")
        shutil.rmtree(out / ".doctrees", ignore_errors=True)
        pages = {
            path.relative_to(out).as_posix(): Page(path.read_text(encoding="utf-8"))
            for path in out.glob("*.html")
        }
        faults = [*dead_links(out, pages), *not_found(out, search)]
        if faults:
            raise SiteError("\n".join(faults))
    except SiteError as error:
        print(f"docs/site/build.py: {error}", file=sys.stderr)
        return 1
    links = sum(len(page.links) for page in pages.values())
    print(f"{len(pages)} pages, {links} links, {len(search)} searches: {out / 'index.html'}")
    return 0


def names(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the name on the site of each page, by its path in the repository.

    Raises:
        SiteError: a page of docs/ is not sorted into a section, or one is there twice or is none.
    """
    sorted_in = [page for section in sections.values() for page in section["pages"]]
    wanted = {f"docs/{path.name}" for path in ROOT.glob("docs/*.md")}
    faults = [f"pages.toml does not name {page}" for page in sorted(wanted - set(sorted_in))]
    faults += [
        f"pages.toml names {page}, which is no file" for page in sorted_in if not (ROOT / page).is_file()
    ]
    faults += [
        f"pages.toml names {page} twice"
        for page in sorted({page for page in sorted_in if sorted_in.count(page) > 1})
    ]
    own = {page: Path(page).name.removesuffix(".md").lower() for page in sorted_in}
    own |= {"plugins/README.md": "plugins", "SECURITY.md": "report-a-vulnerability", FRONT: "index"}
    if faults or len(set(own.values())) != len(own):
        raise SiteError("\n".join(faults) or "two pages have the same name")
    return own


def stage(source: Path, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what Sphinx reads."""
    named = names(sections)
    covers = dict(
        re.findall(
            r"^\| \[[^\]]*\]\(([^)]+)\).* \| (.*) \|$",
            (ROOT / "README.md").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    for path, name in named.items():
        text = with_links((ROOT / path).read_text(encoding="utf-8"), path, named)
        if path == FRONT:
            text += f"\n{toctree(sections, 'hidden')}"
        (source / f"{name}.md").write_text(text, encoding="utf-8")
    for section, about in sections.items():
        rows = [
            f"- [](./{named[page]}.md){': ' if page in covers else ''}{covers.get(page, '')}"
            for page in about["pages"]
        ]
        text = "\n".join(
            (
                f"# {about['title']}",
                "",
                about["text"],
                "",
                *rows,
                "",
                toctree([named[page] for page in about["pages"]], "hidden"),
            )
        )
        (source / f"{section}.md").write_text(text, encoding="utf-8")
    (source / "_static").mkdir()
    shutil.copy(HERE / "style.css", source / "_static")
    shutil.copytree(
        ROOT / "docs" / "screens", source / "screens", ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    weights = {named[page]: about["weight"] for about in sections.values() for page in about["pages"]} | {
        "changelog": 0
    }
    scorer = (HERE / "scorer.js").read_text(encoding="utf-8")
    (source / "scorer.js").write_text(
        f"const PAGE_WEIGHTS = {json.dumps(weights)};\n{scorer}", encoding="utf-8"
    )
    shutil.copy(HERE / "conf.py", source)
    settings = (
        (source / "conf.py")
        .read_text()
        .replace("Path(__file__).resolve().parents[2]", f"Path({str(ROOT)!r})")
    )
    (source / "conf.py").write_text(settings)


def toctree(entries: Sequence[str] | Mapping[str, Any], option: str) -> str:
    """Return the directive that lists pages in the navigation."""
    return "\n".join(("```{toctree}", f":{option}:", "", *entries, "```", ""))


def with_links(text: str, path: str, named: Mapping[str, str]) -> str:
    """Return a page whose links lead to pages of the site or to the forge.

    Raises:
        SiteError: one leads to no file.
    """

    def changed(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        hash_ = f"#{anchor}" if anchor else ""
        if place == "README.md":
            place = FRONT if not anchor else place
        if place in named:
            return f"{found['before']}./{named[place]}.md{hash_}"
        if place.startswith("docs/screens/") and place.endswith((".svg", ".png")):
            return f"{found['before']}{place.removeprefix('docs/')}"
        if not (ROOT / place).exists():
            raise SiteError(f"{path}: {target} is no file")
        kind = "tree" if (ROOT / place).is_dir() else "blob"
        return f"{found['before']}{addresses().repository}/{kind}/main/{place}{hash_}"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(changed, part) for part in parts)


def dead_links(out: Path, pages: Mapping[str, Page]) -> list[str]:
    """Return the internal links that lead nowhere."""
    faults = []
    for name, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = (
                unquote(posixpath.normpath(posixpath.join(posixpath.dirname(name), parts.path)))
                if parts.path
                else name
            )
            if not (out / path).exists():
                faults.append(f"{name}: {link} is no file")
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
                faults.append(f"{name}: {link} is no place on the page")
    return faults


def not_found(out: Path, search: Mapping[str, str]) -> list[str]:
    """Return the searches whose page is not among the first three that the site's own search finds."""
    engine = MiniRacer()
    engine.eval(
        "var window = this, document = {documentElement: {dataset: {content_root: './'}}, "
        "addEventListener: () => {}, readyState: 'loading', "
        "getElementById: () => null, querySelector: () => null};"
        "var DOCUMENTATION_OPTIONS = {FILE_SUFFIX: '.html', LINK_SUFFIX: '.html', BUILDER: 'html'};"
        "var console = {log: () => {}}, _ = text => text, _ready = () => {};"
        "var SPHINX_HIGHLIGHT_ENABLED = false;"
    )
    for script in ("language_data.js", "searchtools.js"):
        engine.eval((out / "_static" / script).read_text(encoding="utf-8"))
    engine.eval((out / "searchindex.js").read_text(encoding="utf-8"))
    faults = []
    for query, page in search.items():
        found = json.loads(
            engine.eval(
                f"(() => {{const parsed = Search._parseQuery({json.dumps(query)});"
                "return JSON.stringify(Search._performSearch(...parsed)"
                ".reverse().map(result => result[0]))})()"
            )
        )
        best = list(dict.fromkeys(found))[:3]
        if page not in best:
            faults.append(f'the search for "{query}" finds {best}, not {page}')
    return faults


if __name__ == "__main__":
    sys.exit(main())
