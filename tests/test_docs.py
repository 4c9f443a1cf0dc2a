"""What in the documentation follows from the code is up to date: `python docs/generate.py` brings it there."""

from __future__ import annotations

import ast
import importlib.util
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cloudspot.agent.delivery import courier
from cloudspot.cli.config import UserConfig
from cloudspot.cli.main import program
from cloudspot.jobfile.spec import JobSpec, RunSpec, load_job
from cloudspot.jobfile.tables import convert
from cloudspot.jobfile.toml import read_toml

ROOT = Path(__file__).parents[1]
GENERATE = ROOT / "docs" / "generate.py"
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docs/site/*.md", "examples/*/README.md")
    for path in ROOT.glob(pattern)
)


@pytest.fixture(scope="module")
def generate():
    """docs/generate.py as a module."""
    found = importlib.util.spec_from_file_location("generate", GENERATE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.full
def test_what_is_generated_is_up_to_date(generate):
    stale = [name for name, text in generate.generated().items() if (ROOT / name).read_text() != text]
    assert stale == [], "run: python docs/generate.py"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 writes code in another style")
def test_what_plugins_build_on_changes_only_on_purpose(generate):
    """A change that a plugin would notice raises the version of the interfaces."""
    shown = "\n".join(generate.surface()) + "\n"
    assert (ROOT / generate.SURFACE).read_text() == shown, "run python docs/generate.py, and look at the diff"
    assert "    class Provisioner(Guarded, ABC)\n        token_seconds: float\n" in shown


NOT_COVERED = {
    "cloudspot.jobstore.layout",
    "cloudspot.host.public_addresses",
    "cloudspot.jobstore.access.parallel",
    "cloudspot.jobstore.access.retrying_store",
    "cloudspot.jobstore.logs.objectlog",
}
"""Modules that plugins of this repository use all the same: no promise is made of them."""


def test_plugins_build_on_what_the_version_of_the_interfaces_covers(generate):
    used = set()
    for path in ROOT.glob("plugins/*/cloudspot_*/**/*.py"):
        name = path.parts[len(ROOT.parts) + 1]
        if name.endswith("-sandbox") or name in {"prove", "ui"}:
            continue  # They are of one version with the core; pages tell what the core's commands tell.
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "cloudspot":
                used.add(node.module)
    covered = {
        name for name in used if any(f"{name}.".startswith(f"cloudspot.{one}.") for one in generate.COVERED)
    }
    assert used - covered - {"cloudspot"} == NOT_COVERED


@pytest.mark.full
def test_the_generator_names_what_is_out_of_date_and_mends_it(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "cloudspot").mkdir()
    for name in ("stores", "worlds"):
        (tmp_path / "tests" / "support" / name).mkdir(parents=True)
    for name in (
        "README.md",
        "docs/generate.py",
        "pyproject.toml",
        "docs/aliyun.md",
        "docs/architecture.md",
        "docs/aws.md",
        "docs/cli.md",
        "docs/gcp.md",
        "docs/job-file.md",
        "docs/kubernetes.md",
        "docs/first-real-run.md",
        "docs/outputs.md",
        "docs/plugin-api.txt",
        "docs/plugin-kits.md",
        "docs/sandbox.md",
        *(
            f"tests/support/worlds/broken_{name}.py"
            for name in ("machines", "notices", "offers", "providers", "purchases", "stores")
        ),
        "tests/support/worlds/memorycloud.py",
        "tests/support/stores/memorybucket.py",
        "cloudspot/job.schema.json",
    ):
        (tmp_path / name).write_text((ROOT / name).read_text())
    reference = tmp_path / "docs" / "job-file.md"
    reference.write_text(reference.read_text().replace("| `run.python` |", "| `run.pithon` |"))
    (tmp_path / "cloudspot" / "job.schema.json").unlink()

    def run(*arguments):
        command = [sys.executable, str(tmp_path / "docs" / "generate.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    names = ["docs/job-file.md", "cloudspot/job.schema.json"]
    assert run("--check") == (1, [f"{name} is out of date; run: python docs/generate.py" for name in names])
    assert run() == (0, [f"{name} was rewritten" for name in names])
    assert run("--check") == (0, [])
    assert reference.read_text() == (ROOT / "docs" / "job-file.md").read_text()


def test_a_region_that_nothing_fills_is_refused(generate):
    text = "<!-- generated: one -->\nold\n<!-- end -->\n"
    assert generate._with_regions(text, {"one": "new\n"}) == text.replace("old", "new")
    with pytest.raises(SystemExit, match=r"\['one', 'two'\]"):
        generate._with_regions(text, {"two": ""})


FIGURES = (
    "agent.ending.final_delivery:EXIT_RECORD_SECONDS",
    "agent.ending.final_delivery:UPLOAD_SECONDS",
    "agent.main:START_SECONDS",
    "agent.membership.peers:SUSPECT_SECONDS",
    "agent.notices.notice_pipe:STOP_SECONDS",
    "agent.store_retry:DENIED_SECONDS",
    "agent.training.watching.drain_schedule:STOP_GUARD_SECONDS",
    "boot.script:LAST_SECONDS",
    "controller.act:REPEAT_SECONDS",
    "controller.assess.observed_duration:MAX_PASS_GAP_SECONDS",
    "controller.decide:BOOT_LIMIT_SECONDS",
    "controller.launchrequest:MAX_LIFE_SECONDS",
    "controller.loop:MAX_BACKOFF_SECONDS",
    "controller.supply.refusals:MAX_CAPACITY_COOL_SECONDS",
    "controller.supply.refusals:MAX_QUOTA_COOL_SECONDS",
    "controller.supply.restarts:FIRST_DELAY_SECONDS",
    "controller.supply.restarts:MAX_DELAY_SECONDS",
    "jobstore.nodes.delivering:DELIVERY_GRACE_SECONDS",
    "jobstore.nodes.delivering:END_GRACE_SECONDS",
    "jobstore.nodes.delivering:EXIT_GRACE_SECONDS",
    "jobstore.nodes.delivering:SILENT_LIMIT_SECONDS",
    "jobstore.nodes.delivering:SILENT_NEWCOMER_SECONDS",
    "jobstore.nodes.delivering:STOP_GRACE_SECONDS",
    "plugin.cloudprovider:NEW_ROLE_SECONDS",
)
"""The constants that bound how long a machine waits, or is billed for nothing."""


def test_what_is_said_of_failures_has_the_codes_own_figures(generate):
    prose = " ".join((ROOT / "docs" / "failure-modes.md").read_text().split())
    said = [generate.in_words(pkgutil.resolve_name(f"cloudspot.{figure}")) for figure in FIGURES]
    left_out = [text for text in said if re.search(rf"\b{text}\b", prose) is None]
    assert left_out == []
    assert len(set(said)) > 5
    spec = JobSpec(name="a", run=RunSpec(entrypoint="a.py"))
    assert (spec.limits.stuck_after, spec.limits.max_restarts) == (1800.0, 3)
    assert courier.WARN_SHARE == 0.7


def test_every_page_is_found_from_the_readme():
    linked = set(re.findall(r"\]\((docs/[^)#]*)", (ROOT / "README.md").read_text()))
    assert {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md")} - linked == set()


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_a_page_says_in_its_first_words_which_question_it_answers(page):
    title, _, first, *_ = page.read_text().splitlines()
    assert title.startswith("# ")
    assert first.startswith(("This page ", "本页")), page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{page.name}: {link}"


def test_the_files_of_code_that_pages_name_by_their_paths_exist():
    roots = (ROOT, ROOT / "cloudspot", ROOT / "tests")
    missing = [
        f"{page.name}: {path}"
        for page in PAGES
        if page.name != "CHANGELOG.md"  # which tells of files that are gone
        for path in re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|sh))`", page.read_text())
        if not any((root / path).is_file() for root in roots)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_row_of_a_table_has_the_cells_of_its_head(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        counts = {row: len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        odd = [row for row, count in counts.items() if count != next(iter(counts.values()))]
        assert odd == [], page.name


def test_the_table_of_libraries_has_the_lines_of_their_job_files():
    page = (ROOT / "docs" / "frameworks.md").read_text()
    rows = re.findall(r"(?m)^\|[^|]*\]\(\.\./tests/e2e/libraries/(\w+)\)[^|]*\|[^|]*\|([^|]*)\|", page)
    jobs = ROOT.glob("tests/e2e/libraries/*/job.toml")
    lines = {job.parent.name: job.read_text().partition("[checkpoint]\n")[2].splitlines() for job in jobs}
    assert len(lines) == len(rows) == 11
    assert {name: re.findall(r"`([^`]+)`", cell) for name, cell in rows} == lines


# --- the code blocks ----------------------------------------------------------------------------

TOOLS = {"aliyun", "aws", "gcloud", "python3", ".", "mkdir", "cd", "git", "tox", "pip", "pytest"}
TOOLS |= {"kubectl", "python", "torchrun"}
"""What a shell block may use beside cloudspot."""


def blocks_of(*languages):
    """Return (page, text) of all blocks of these languages."""
    params = []
    for page in PAGES:
        found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        for number, (language, text) in enumerate(found, start=1):
            if language in languages:
                params.append(pytest.param(page, text, id=f"{page.relative_to(ROOT)}-{number}"))
    return params


def shell_commands(text):
    """Yield the commands of a shell script as words."""
    for line in re.sub(r"\\\n|(?<=&&)\n", " ", text).splitlines():
        for command in re.split(r"&&|\||;", f" {line}".partition(" #")[0]):
            words = shlex.split(command)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                del words[0]
            if words:
                yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


def check_cloudspot(arguments):
    """Refuse a command line that the program would not understand."""
    command, rest = program, list(arguments)
    context = click.Context(program, info_name="cloudspot")
    while isinstance(command, click.Group):
        rest = command.make_parser(context).parse_args(rest)[1]
        if not rest:
            return
        _, command, rest = command.resolve_command(context, rest)
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(rest)


@pytest.mark.parametrize(("page", "text"), blocks_of("sh", "bash"))
def test_the_commands_of_shell_blocks_exist_and_their_options_parse(page, text):
    for name, *arguments in shell_commands(text):
        if name == "cloudspot":
            check_cloudspot(arguments)
        else:
            assert name in TOOLS, f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_that_prose_names_exist_and_their_options_parse(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`(cloudspot [^`\[]*)`", re.sub(r"\n", " ", text)):
        (_, *arguments), *_ = shell_commands(span.replace("\\|", "|").partition(">")[0])
        if arguments and arguments[0].islower():
            check_cloudspot(arguments)


def test_a_command_that_is_not_there_is_found():
    for arguments in (["shwo"], ["show", "--wrong"], ["providers", "chekc", "x"], ["run", "--name"]):
        with pytest.raises(click.UsageError):
            check_cloudspot(arguments)


@pytest.mark.parametrize(("page", "text"), blocks_of("toml"))
def test_toml_blocks_are_valid_files_of_their_kind(page, text, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(text)
    raw = read_toml(path)
    if "run" in raw:
        assert load_job(path).name == raw["name"]
    elif "stores" in raw:
        assert convert(raw, UserConfig).stores == raw["stores"]
    elif "project" not in raw:
        # A part of a job file: each table of it belongs there.
        path.write_text(f'name = "a"\n{text}\n[run]\nentrypoint = "a.py"\n')
        load_job(path)


@pytest.mark.parametrize(("page", "text"), blocks_of("python"))
def test_python_blocks_compile(page, text):
    compile(text, str(page), "exec")


# --- the words of docs/architecture.md ----------------------------------------------------------

WORDS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| ([^|]*)\|$",
    (ROOT / "docs" / "architecture.md").read_text().partition("\n## Words\n")[2],
    re.MULTILINE,
)[1:]
"""Each row: the words, their meaning, and the words that are not used instead."""
SECOND_WORDS = [word for _, _, others in WORDS for word in others.strip().split(", ") if word]
THEIR_OWN_TERMS = {
    "aliyun.md",
    "aws.md",
    "first-real-run.md",
    "gcp.md",
    "images.md",
    "kubernetes.md",
    "sandbox.md",
}
"""Pages that speak of a cloud in the cloud's terms."""


def uses(word, text):
    """Return whether a text has the word, or its plural, outside of code."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.search(rf"\b{word}s?\b", prose, re.IGNORECASE) is not None


def test_each_word_has_one_meaning():
    words = [word for words, _, _ in WORDS for word in words.split(", ")]
    assert len(words) > 50
    assert len(SECOND_WORDS) > 15
    assert sorted(words) == sorted(set(words))
    assert set(words) & set(SECOND_WORDS) == set()


def test_code_and_pages_use_no_second_word():
    pages = [page for page in PAGES if page.name not in {"CHANGELOG.md", *THEIR_OWN_TERMS}]
    texts = {page: page.read_text().partition("\n## Words\n")[0] for page in pages}
    texts |= {path: path.read_text() for path in ROOT.glob("cloudspot/**/*.py")}
    a_second_word = re.compile(rf"\b({'|'.join(SECOND_WORDS)})s?\b", re.IGNORECASE)
    suspects = {path: text for path, text in texts.items() if a_second_word.search(text)}
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path, text in suspects.items()
        for word in SECOND_WORDS
        if uses(word, text)
    ]
    assert found == []


def test_a_second_word_is_found():
    assert uses("eviction", "Evictions cost steps.")
    assert not uses("eviction", "The field `eviction` is Kubernetes's.")


# --- docs/security.md ---------------------------------------------------------------------------

SECURITY = (ROOT / "docs" / "security.md").read_text()
NOTES = dict(re.findall(r"^\[\^([\w-]+)\]: (.*)$", SECURITY, re.MULTILINE))
"""What the page's footnotes say."""


def defined_in(path):
    """Return the tests that a file defines, a method as ``Class::test``; nothing is imported."""
    tree = ast.parse((ROOT / path).read_text())
    scopes = [("", tree), *((f"{one.name}::", one) for one in tree.body if isinstance(one, ast.ClassDef))]
    return {
        f"{path}::{prefix}{one.name}"
        for prefix, scope in scopes
        for one in scope.body
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
    }


@pytest.mark.parametrize("note", NOTES)
def test_the_tests_that_hold_what_is_said_of_security_exist(note):
    path = ""
    for one in NOTES[note].split(", "):
        assert re.fullmatch(r"`(tests/[\w/]+\.py)?::(\w+::)?test_\w+`", one)
        file, _, test = one.strip("`").partition("::")
        path = file or path  # a test without a file is in the file before it
        assert f"{path}::{test}" in defined_in(path)


def test_each_row_about_security_names_its_tests():
    prose = SECURITY.partition("## The tests")[0]
    rows = [row for row in re.findall(r"^\|.*\|$", prose, re.MULTILINE) if not row.startswith("|---")]
    heads = re.findall(r"^(\|.*\|)\n\|---", prose, re.MULTILINE)
    assert [row for row in rows if row not in heads and re.search(r"(\[\^[\w-]+\])+ \|$", row) is None] == []
    assert set(re.findall(r"\[\^([\w-]+)\]", prose)) == set(NOTES)


def rights_granted(path):
    """Return the rights that a policy or a role grants."""
    if path.suffix == ".yaml":
        return re.findall(r"^- ([\w.]+)$", path.read_text(), re.MULTILINE)
    actions = [one["Action"] for one in json.loads(path.read_text())["Statement"]]
    return [right for action in actions for right in ([action] if isinstance(action, str) else action)]


def test_each_right_of_each_policy_is_explained_and_no_other():
    section = SECURITY.partition("## Permissions")[2].partition("\n## ")[0]
    right = r"`([a-z0-9]+:[A-Z]\w+|(?:compute|logging|storage)\.\w+\.\w+)`"
    yours, others = (set(re.findall(right, part)) for part in section.split("For the machines"))
    plugins = ROOT / "plugins"
    kept_in = (
        plugins / "aliyun" / "cloudspot_aliyun" / "policies",
        plugins / "aws" / "cloudspot_aws" / "policies",
        plugins / "gcp" / "cloudspot_gcp" / "roles",
    )
    # A driver's rights, and those of whoever deploys one, are told on the clouds' pages.
    files = [
        path
        for directory in kept_in
        for path in directory.iterdir()
        if re.search("deploy|driver|reap", path.name) is None
    ]
    assert len(files) == 18
    granted = {str(path): set(rights_granted(path)) for path in files}
    by_submitters = set().union(
        *(granted[name] for name in granted if re.search("submitter|role-bucket", name))
    )
    by_others = set().union(*(granted[name] for name in granted if "submitter" not in name))
    assert yours | others == by_submitters | by_others
    assert yours <= by_submitters
    assert others == by_others - {"storage.buckets.get"}  # which the check alone takes


# --- the tours of docs/architecture.md ----------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
TOURS = ARCHITECTURE.partition("\n## Five tours\n")[2].partition("\n## ")[0]
NAMED = dict(re.findall(r"^\[`(.+?)`\]: \.\./(\S+)$", ARCHITECTURE, re.MULTILINE))
"""The files to which the names in the tours lead, by name."""


def is_in(name, path):
    """Return whether a file has the name: ``Class.method``, perhaps with the end of its module before it.

    It goes by the lines that begin a definition: to parse sixty files takes ten times as long.
    """
    if not (ROOT / path).is_file():
        return False
    if not path.endswith(".py"):
        return name == Path(path).name
    words, module = name.split("."), path.removesuffix(".py").removesuffix("/__init__").split("/")
    within = next(
        words[count:] for count in range(len(words), -1, -1) if words[:count] == module[len(module) - count :]
    )
    text = (ROOT / path).read_text()
    for depth, word in enumerate(within):
        found = re.search(rf"^{'    ' * depth}(?:async )?(?:def|class) {word}\b", text, re.MULTILINE)
        if found is None:
            return False
        after = rf"^ {{0,{4 * depth}}}(?:async )?(?:def|class) "
        text = re.split(after, text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    return True


def test_the_names_in_the_tours_are_in_the_files_to_which_they_lead():
    assert len(re.findall("^### ", TOURS, re.MULTILINE)) == 5
    assert [f"{name} in {path}" for name, path in NAMED.items() if not is_in(name, path)] == []


def test_each_name_in_the_tours_leads_to_a_file_or_stands_in_one():
    linked = set(re.findall(r"\[`([^`]+)`\]", TOURS))
    assert linked == NAMED.keys()
    assert len({one.casefold() for one in linked}) == len(linked)  # as Markdown compares them
    paths = {ROOT / path for path in ("docs/job-file.md", "docs/aws.md", *NAMED.values())}
    texts = [path.read_text() for path in paths if path.is_file()]
    others = set(re.findall(r"`([^`]+)`", TOURS)) - linked
    unknown = [
        one for one in others if not one.startswith("cloudspot ") and not any(one in text for text in texts)
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("decide.decided", "cloudspot/controller/decide.py"),
        ("decide.decide", "cloudspot/controller/deciding.py"),
        ("deciding.decide", "cloudspot/controller/decide.py"),
        ("Courier.send", "cloudspot/agent/delivery/courier.py"),
        ("Courier.start", "cloudspot/agent/delivery/log_pump.py"),
        ("Courier.parse_seal", "cloudspot/agent/delivery/courier.py"),
        ("BillingTerms", "cloudspot/model.py"),
        ("LedgerLine.by_launch", "cloudspot/story/ledger.py"),
        ("boot.sh", "cloudspot/boot/install.sh"),
    ],
)
def test_a_name_that_was_changed_or_moved_is_found(name, path):
    assert not is_in(name, path)


def test_a_name_is_found_with_as_much_of_its_module_as_is_given():
    for name in ("Courier.start", "courier.Courier", "agent.delivery.courier.Courier.start", "courier"):
        assert is_in(name, "cloudspot/agent/delivery/courier.py")
