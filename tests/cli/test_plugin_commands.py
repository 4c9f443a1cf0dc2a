"""Commands that plugins bring."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cloudspot.cli.main import program
from cloudspot.errors import PluginError, SpecError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return what installs a distribution with one command, whose module has the code."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, code, *, distribution="sky"):
        module = f"{distribution}_commands"
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{distribution}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[cloudspot.commands]\n{name} = {module}\n")

    yield install
    for name in [name for name in sys.modules if name.endswith("_commands") and name.startswith("sky")]:
        del sys.modules[name]


def command(body, *, name="sky"):
    return f"""
import click
from cloudspot.errors import SpecError
from cloudspot.hookspecs import hookimpl
@click.command("{name}")
def sky():
    {body}
@hookimpl
def cloudspot_command(name):
    return sky if name == "{name}" else None
"""


def run(*arguments):
    return CliRunner().invoke(program, arguments, prog_name="cloudspot")


def test_the_page_shows_the_command_that_is_tested_here():
    page = (ROOT / "docs" / "plugin-kits.md").read_text()
    (shown,) = re.findall(r"```python\n(import click.*?)```", page, re.DOTALL)
    module = (ROOT / "tests" / "plugins" / "toy" / "cloudspot_step.py").read_text()
    assert module.partition('"""\n\n')[2] == shown


def test_it_runs_as_one_of_ours_and_reads_the_store_as_they_do(jobs):
    jobs.running("going-1")
    before, after = jobs.run("toy-step", "goi"), jobs.run_json("show", "going-1")
    assert before.stdout == f"going-1 {after['step']}\n"
    assert after["step"] > 0
    assert run("toy-step", "going-1", "--store", "file:///nowhere/at/all").exit_code == 7


def test_help_names_it_with_its_distribution_and_imports_nothing(install):
    install("sky", "raise AssertionError('imported')")
    shown = run("--help")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"^  sky +From sky 1\.2\.$", shown.stdout, re.MULTILINE)
    assert shown.stdout.index("  sky ") > shown.stdout.index("  completion ")


def test_it_is_offered_by_the_shell_and_in_advice(install):
    install("sky", "raise AssertionError('imported')")
    offered = program.shell_complete(click.Context(program), "sk")
    assert [(one.value, one.help) for one in offered] == [("sky", "From sky 1.2.")]
    assert "Did you mean 'sky'?" in run("skyy").stderr


def test_an_expected_error_of_it_is_one_line_and_a_traceback_on_demand(install):
    install("sky", command("raise SpecError('the sky is wrong')"))
    plain, debug = run("sky"), run("sky", "--debug")
    assert (plain.exit_code, plain.stderr) == (SpecError.exit_code, "error: the sky is wrong\n")
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nothing_like_this", "No module named"),
        (
            "from cloudspot.hookspecs import hookimpl\n@hookimpl\ndef cloudspot_command(name): ...",
            "returned None",
        ),
        ("cloudspot_api_version = 99", "upgrade cloudspot"),
    ],
)
def test_a_broken_one_is_named(install, code, said):
    install("sky", code)
    result = run("sky")
    assert result.exit_code == PluginError.exit_code
    assert '"sky" of sky 1.2' in result.stderr
    assert said in result.stderr


def test_two_of_one_name_are_both_refused(install):
    install("sky", command("click.echo('first')"))
    install("sky", command("click.echo('second')"), distribution="sky-too")
    result = run("sky")
    assert result.exit_code == PluginError.exit_code
    assert 'sky and sky-too both provide "sky"' in result.stderr


def test_none_takes_the_place_of_one_of_ours(install, jobs):
    install("ps", command("click.echo('mine')", name="ps"))
    assert "mine" not in jobs.run("ps").stdout
    assert "From sky" not in run("--help").stdout
