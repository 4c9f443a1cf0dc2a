"""The scripts that make a release: versions in step, sources with their addresses, and refusals."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUM_DISTRIBUTIONS = 13
"""The core and the plugins."""
RELEASE = ROOT / "release"


@pytest.fixture(scope="module")
def scripts():
    """The modules of release/ by name."""
    sys.path.insert(0, str(RELEASE))
    try:
        yield {name: importlib.import_module(name) for name in ("distributions", "build", "try_wheels")}
    finally:
        sys.path.remove(str(RELEASE))
        for name in ("distributions", "build", "try_wheels"):
            sys.modules.pop(name, None)


@pytest.fixture
def copy(tmp_path):
    """What the versions of a repository stand in."""
    for path in (
        ROOT / "pyproject.toml",
        ROOT / "cloudspot" / "__init__.py",
        *ROOT.glob("plugins/*/pyproject.toml"),
    ):
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    return tmp_path


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_wheels_and_sdists_of_all_are_built_and_checked(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tox",
        "-q",
        "-e",
        "release-build",
        "--",
        "--out",
        str(tmp_path / "dist"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    built = [path.name for path in (tmp_path / "dist").iterdir()]
    assert len([name for name in built if name.endswith(".whl")]) == NUM_DISTRIBUTIONS
    assert len([name for name in built if name.endswith(".tar.gz")]) == NUM_DISTRIBUTIONS


def test_core_and_plugins_are_in_step(scripts):
    assert scripts["distributions"].misfits() == ()


def test_a_new_version_is_written_wherever_one_stands(scripts, copy):
    module = scripts["distributions"]
    module.set_version("7.8.9", copy)
    assert module.version(copy) == "7.8.9"
    assert module.misfits(copy) == ()
    texts = [path.read_text() for path in copy.rglob("pyproject.toml")]
    assert len(texts) == NUM_DISTRIBUTIONS
    assert [text for text in texts if re.search(r'"cloudspot[\w-]*==(?!7\.8\.9")', text)] == []
    with pytest.raises(module.ReleaseError, match=r"^7\.8 is no version; expected one such as 0\.2\.0"):
        module.set_version("7.8", copy)


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        (
            "plugins/aws",
            'version = "0.1.0"',
            'version = "0.2.0"',
            "version 0.2.0 is not that of the core, 0.1.0",
        ),
        ("plugins/aws", '"cloudspot==0.1.0"', '"cloudspot"', "cloudspot must be cloudspot==0.1.0"),
        ("plugins/gcp", '"cloudspot==0.1.0"', '"cloudspot>=0.1"', "cloudspot>=0.1 must be cloudspot==0.1.0"),
        (
            ".",
            "cloudspot-aws==0.1.0",
            "cloudspot-asw==0.1.0",
            "cloudspot-asw==0.1.0 is no distribution of this repository",
        ),
        (
            ".",
            'kubernetes = ["cloudspot-kubernetes==0.1.0"]\n',
            "",
            "there is no extra kubernetes for cloudspot-kubernetes",
        ),
    ],
)
def test_what_is_out_of_step_is_named(scripts, copy, file, old, new, fault):
    module = scripts["distributions"]
    module.set_version("0.1.0", copy)
    path = copy / file / "pyproject.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    named = "pyproject.toml" if file == "." else f"{file}/pyproject.toml"
    assert module.misfits(copy) == (f"{named}: {fault}",)


def test_links_of_a_readme_lead_to_the_forge_at_the_tag(scripts):
    text = "[a](../../docs/aws.md#x) [b](https://x.y) [c](#z) ![d](../../docs/screens/ps-80.svg) [e](../gcp) `[f](g)`x"
    absolute = scripts["distributions"].absolute_links(
        text.removesuffix(" `[f](g)`x"), Path("plugins/aws"), "https://forge/p", "v1.2.3"
    )
    assert absolute == (
        "[a](https://forge/p/blob/v1.2.3/docs/aws.md#x) [b](https://x.y) [c](#z) "
        "![d](https://forge/p/raw/v1.2.3/docs/screens/ps-80.svg) [e](https://forge/p/tree/v1.2.3/plugins/gcp)"
    )


def test_nothing_is_published_under_placeholders_or_another_tag(scripts):
    build = scripts["build"]
    where = scripts["distributions"].Addresses("https://x.invalid/p", "https://y.invalid")
    build.ready(None, where)
    with pytest.raises(scripts["distributions"].ReleaseError) as error:
        build.ready("v99.0.0", where)
    version = scripts["distributions"].version()
    faults = str(error.value).splitlines()
    assert f"the tag is v99.0.0, and the version {version}; run: python release/set_version.py" in faults
    assert "release/project.toml has placeholders for addresses" in faults


def test_the_addresses_stand_in_one_place(scripts):
    where = scripts["distributions"].addresses()
    tracked = subprocess.run(
        ["git", "grep", "-lF", "-e", where.repository, "-e", where.documentation],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert tracked.stdout.split() == ["release/project.toml"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            ("METADATA", "Requires-Dist: msgspec>=0.19\n", "Requires-Dist: torch\n"),
            "torch comes without an extra",
        ),
        (("METADATA", "Author: ", "X-Author: "), "it names no author"),
        (
            ("METADATA", "Project-URL: Source", "Project-URL: Sauce"),
            "its project URLs are not those of release/project.toml",
        ),
        (
            ("METADATA", "\n\n# x", "\n\n# x [y](docs/aws.md)"),
            "links of its README lead nowhere on an index: ['docs/aws.md']",
        ),
        (("METADATA", ":: 3.13", ":: 3.99"), "it lacks classifiers: of Python ['3.13'], or that it is typed"),
        (("METADATA", "cloudspot-aws==", "cloudspot-aws>="), None),
        (("licenses/LICENSE", "MIT", "BSD"), "the licence file is missing, or is not that of the repository"),
        (None, ""),
    ],
)
def test_a_wheel_that_lacks_something_is_refused(scripts, tmp_path, change, fault):
    urls = scripts["distributions"].addresses().urls(scripts["distributions"].version())
    version = scripts["distributions"].version()
    lines = [
        "Metadata-Version: 2.4",
        "Name: cloudspot",
        "Author: us",
        *(f"Project-URL: {name}, {url}" for name, url in urls.items()),
        *(f"Classifier: Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Classifier: Typing :: Typed",
        "Requires-Dist: msgspec>=0.19",
        f"Requires-Dist: cloudspot-aws=={version}; extra == 'aws'",
        "Requires-Dist: cloudspot[plot]; extra == 'tests'",
        "Requires-Dist: torch>=2; extra == 'torch'",
        "",
        "# x",
    ]
    files = {"METADATA": "\n".join(lines), "licenses/LICENSE": (ROOT / "LICENSE").read_text()}
    if change is not None:
        name, old, new = change
        assert old in files[name]
        files[name] = files[name].replace(old, new)
    wheel = tmp_path / "cloudspot-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"cloudspot-0.dist-info/{name}", text)
    if fault is None:
        fault = f"cloudspot-aws>={version}; extra == 'aws' is not in step with version {version}"
    assert scripts["build"].faults_of(wheel) == ([fault] if fault else [])


def test_each_extra_is_tried_and_shown_to_bring_what_it_should(scripts):
    project = scripts["distributions"].distributions()[0].project()
    assert scripts["try_wheels"].SHOWS.keys() == project["optional-dependencies"].keys()
    assert set(scripts["try_wheels"].SHOWS) >= scripts["try_wheels"].NEED_TORCH


@pytest.mark.parametrize("extra", ["aliyun", "apprise", "aws", "gcp", "kubernetes"])
def test_what_shows_that_an_extra_brings_its_plugin_runs_where_it_is(scripts, extra):
    exec(scripts["try_wheels"].SHOWS[extra], {})


def test_the_pythons_are_the_same_everywhere(scripts):
    classifiers = scripts["distributions"].distributions()[0].project()["classifiers"]
    pythons = tuple(re.findall(r"(?m)Python :: (3\.\d+)$", "\n".join(classifiers)))
    assert pythons == scripts["try_wheels"].PYTHONS == scripts["build"].PYTHONS
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert re.search(r"python: \[(.*)\]", workflow)[1] == ", ".join(f'"{python}"' for python in pythons)


def test_what_the_sdist_leaves_out_exists_here():
    lines = (ROOT / "tests" / "core-only.txt").read_text().splitlines()
    assert len(lines) == len(set(lines)) > 20
    for line in lines:
        _, _, where = line.partition("=")
        path, _, test = where.partition("::")
        assert (ROOT / path).exists(), line
        assert not test or f"def {test}(" in (ROOT / path).read_text(), line


# --- the workflows ------------------------------------------------------------------------------

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_step_of_a_workflow_is_a_script_that_also_runs_here(path):
    environments = set(re.findall(r"(?m)^\[testenv:([^\]]+)\]", (ROOT / "tox.ini").read_text()))
    known = {"py${PYTHON//./}", "release", "release-build", "release-wheels", "release-sdist"} | environments
    steps = re.findall(r"(?m)^\s*- run: (.*)$", path.read_text())
    assert steps != []
    for step in steps:
        words = step.removeprefix('sudo --preserve-env env "PATH=$PATH" ').split()
        if words[:2] == ["tox", "-e"]:
            assert words[2] in known, step
        else:
            assert words in (
                [".ci/run"],
                ["pip", "install", "-c", "constraints.txt", "tox"],
                ["pip", "install", "tox"],
            )


def test_the_forges_actions_come_with_a_version():
    used = [line for path in WORKFLOWS for line in re.findall(r"uses: (\S+)", path.read_text())]
    assert len(used) > 10
    assert [line for line in used if re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", line) is None] == []


def test_a_first_real_run_is_asked_for_as_its_page_says():
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / "first-real-run.yml").read_text()
    page = (ROOT / "docs" / "first-real-run.md").read_text()
    assert "cloudspot show JOB --json" in form
    table = page.partition("| step | what happens | takes |")[2].partition("\n\n")[0]
    steps = re.findall(r"(?m)^\| `([a-z-]+)` \| ", table)
    assert len(steps) > 5
    assert re.findall(r"(?m)^ +- label: ([a-z-]+)$", form) == steps
    assert "`cloudspot prove`" in form
