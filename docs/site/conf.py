"""Settings of Sphinx for the site; `tox -e docs` builds it by docs/site/build.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "release"))

import distributions

_ADDRESSES = distributions.addresses()

project = "cloudspot"
author = "the cloudspot authors"
copyright = "2026, the cloudspot authors"  # noqa: A001 - Sphinx's name
release = version = distributions.version()
extensions = ["myst_parser", "sphinx_copybutton"]
nitpicky = True
smartquotes = False  # or --json becomes a dash and json
highlight_language = "none"

myst_heading_anchors = 6
myst_fence_as_directive = ["toctree"]

html_theme = "pydata_sphinx_theme"
html_title = "cloudspot"
html_baseurl = f"{_ADDRESSES.documentation}/"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": []}
html_theme_options = {
    "show_prev_next": False,
    "show_toc_level": 2,
    "navigation_depth": 2,
    "header_links_before_dropdown": 6,
    "external_links": [{"name": "Source", "url": _ADDRESSES.repository}],
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_align": "left",
}
