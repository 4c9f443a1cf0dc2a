"""The program itself: instant help, and one place that turns errors into lines and exit codes."""

import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import click
import pytest
from click.testing import CliRunner

from cloudspot import __version__
from cloudspot.cli.main import OTHER_NAMES, SHORT_HELPS, Program, program
from cloudspot.cli.sharedoptions import debug_option
from cloudspot.errors import AuthError, CloudspotError, CorruptData, JobNotFound, SpecError, TransientError
from cloudspot.registry import COMMAND


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.full
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_neither_commands_nor_anything_heavy(arguments):
    done = run_python(
        "import sys\n"
        "from cloudspot.cli.main import program\n"
        "try:\n"
        f"    program.main({arguments!r}, prog_name='cloudspot')\n"
        "finally:\n"
        "    heavy = {'rich', 'msgspec', 'torch', 'numpy', 'pluggy', 'xxhash', 'zstandard'}\n"
        # To list what plugins bring, the help asks what is installed.
        f"    heavy |= {set() if arguments != ['--version'] else {'importlib.metadata'}}\n"
        "    ours = {name for name in sys.modules if name.startswith('cloudspot')}\n"
        "    print(sorted(heavy & set(sys.modules)), sorted(ours), file=sys.stderr)\n"
    )
    heavy, ours = done.stderr.splitlines()[-1].split("] [")
    assert heavy == "["
    assert ours.rstrip("]").replace("'", "").split(", ") == [
        "cloudspot",
        "cloudspot.cli",
        "cloudspot.cli.completers",
        "cloudspot.cli.exit_codes",
        "cloudspot.cli.invocation",
        "cloudspot.cli.main",
        "cloudspot.cli.screen",
        "cloudspot.cli.screen.output",
        "cloudspot.cli.screen.printable",
        "cloudspot.cli.screen.stdstreams",
        "cloudspot.cli.sharedoptions",
        "cloudspot.errors",
        "cloudspot.host",
        "cloudspot.host.left_calls",
        "cloudspot.host.size_text",
        "cloudspot.plugin",
        "cloudspot.plugin.installed",
    ]


def test_python_m_cloudspot_is_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "cloudspot", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"cloudspot {__version__}\n")


@pytest.mark.parametrize("name", SHORT_HELPS)
def test_each_line_of_help_is_the_commands_own(name):
    command = program.get_command(click.Context(program), name)
    assert command.name == name
    assert command.help.split("\n\n")[0].replace("\n", " ") == SHORT_HELPS[name]


def _commands(group, path=()):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


def test_each_command_takes_debug_and_explains_its_options():
    for path, command in _commands(program):
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert "--debug" in [name for option in options for name in option.opts], path
        assert [option.opts for option in options if not option.help] == [], path


def test_an_unknown_command_is_one_line_with_exit_code_2():
    result = CliRunner().invoke(program, ["fly"], prog_name="cloudspot")
    assert result.exit_code == 2
    assert result.stderr == "error: No such command 'fly'. (see: cloudspot --help)\n"


def test_a_missing_argument_names_the_commands_help():
    result = CliRunner().invoke(program, ["show"], prog_name="cloudspot")
    assert result.exit_code == 2
    assert result.stderr == "error: Missing argument 'ID'. (see: cloudspot show --help)\n"


def make_failing(error):
    @click.group(cls=Program)
    @debug_option
    def failing():
        pass

    @click.command("ps")
    @debug_option
    def ps():
        raise error

    failing.get_command = lambda ctx, name: ps
    return failing


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CloudspotError("it broke"), 1),
        (SpecError("it broke"), 2),
        (AuthError("it broke"), 4),
        (JobNotFound("it broke"), 5),
        (TransientError("it broke"), 7),
        (CorruptData("it broke"), 8),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_expected_error_is_one_line_and_its_own_exit_code(error, code):
    result = CliRunner().invoke(make_failing(error), ["ps"])
    assert result.exit_code == code
    expected = "" if code == 130 else "error: it broke"
    assert result.stderr.strip() == expected
    assert result.stdout == ""


def test_an_error_of_several_lines_is_still_one_line():
    result = CliRunner().invoke(make_failing(CloudspotError("it\n  broke")), ["ps"])
    assert result.stderr == "error: it broke\n"


@pytest.mark.parametrize("arguments", [["--debug", "ps"], ["ps", "--debug"]])
def test_debug_shows_the_traceback_too(arguments):
    result = CliRunner().invoke(make_failing(SpecError("it broke")), arguments)
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1] == "error: it broke"


def test_a_bug_of_ours_keeps_its_traceback():
    result = CliRunner().invoke(make_failing(ZeroDivisionError("oops")), ["ps"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_terminal_without_utf_8_ends_no_command():
    code = """
import click
from cloudspot.cli.main import program
program.get_command = lambda ctx, name: click.Command("ps", callback=lambda: click.echo("loss \u2193"))
program.main(["ps"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "loss v\n")


def test_a_command_that_is_nearly_right_is_answered_with_the_right_one():
    result = CliRunner().invoke(program, ["shwo"], prog_name="cloudspot")
    assert result.stderr == "error: No such command 'shwo'. Did you mean 'show'? (see: cloudspot --help)\n"


@pytest.mark.parametrize("arguments", [[], ["checkpoints"]])
def test_a_group_alone_shows_its_help_as_it_is_laid_out(arguments):
    alone = CliRunner().invoke(program, arguments, prog_name="cloudspot")
    asked = CliRunner().invoke(program, [*arguments, "--help"], prog_name="cloudspot")
    assert (alone.stderr, alone.stdout, alone.exit_code) == (asked.stdout, "", 2)


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("launch", "run"),
        ("status", "ps"),
        ("down", "stop"),
        ("delete", "rm"),
        ("tail", "logs"),
        ("queue", "ps"),
    ],
)
def test_what_other_programs_call_a_command_is_suggested_by_its_name_here(typed, ours):
    """`launch` suggested `plan`, and `status` and `down` nothing."""
    said = CliRunner().invoke(program, [typed], prog_name="cloudspot").stderr
    assert said == (f"error: No such command {typed!r}. Did you mean {ours!r}? (see: cloudspot --help)\n")


def test_a_command_of_a_distribution_that_is_not_installed_says_what_to_install(monkeypatch):
    """`report` suggested `preempt`, which takes a machine away."""
    monkeypatch.setattr("cloudspot.cli.main.from_distributions", lambda group: ())
    monkeypatch.setattr("cloudspot.registry.from_distributions", lambda group: ())
    result = CliRunner().invoke(program, ["report", "digits-7k3f"], prog_name="cloudspot")
    assert result.stderr == (
        'error: no command "report" is installed; run, in a copy of cloudspot\'s source: pip install plugins/ui\n'
    )


def test_it_is_known_which_distribution_brings_each_command():
    plugins = Path(__file__).parents[2] / "plugins"
    brought = {
        name: path.parent.name
        for path in plugins.glob("*/pyproject.toml")
        for name in tomllib.loads(path.read_text())["project"]
        .get("entry-points", {})
        .get("cloudspot.commands", {})
    }
    assert COMMAND.together == brought


def test_each_suggested_command_is_there():
    assert {ours.split()[0] for ours in OTHER_NAMES.values()} <= set(SHORT_HELPS)
    assert not OTHER_NAMES.keys() & SHORT_HELPS.keys()
