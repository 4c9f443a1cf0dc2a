"""docs/cli.md names every command, option, exit status and JSON key."""

import re
from pathlib import Path

import click
import pytest

from cloudspot import errors
from cloudspot.cli import exit_codes
from cloudspot.cli.main import SHORT_HELPS, program
from cloudspot.jobstore.layout import keys
from cloudspot.model import MachineImage

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
GROUPS = {
    "cloudspot artifacts",
    "cloudspot checkpoints",
    "cloudspot driver",
    "cloudspot notify",
    "cloudspot image",
    "cloudspot plugin",
    "cloudspot providers",
}


def section(title):
    """Return the text under a heading, to the next one of its level or above."""
    match = re.search(rf"^(#+) {re.escape(title)}$(.*?)(?=^#{{1,3}} |\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no section {title!r}"
    return match[2]


def commands(group, path=("cloudspot",)):
    # What plugins bring is not on our page.
    for name in SHORT_HELPS if group is program else group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def words_in_backquotes(text):
    return set(re.findall(r"[A-Za-z_][\w-]*", " ".join(re.findall(r"`([^`]*)`", text))))


def keys_of(value):
    """Return the keys of a JSON value at all depths, but for those that are data (metrics, requests)."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    inner = [keys_of(each) for key, each in value.items() if key not in {"metrics", "request"}]
    return set(value).union(*inner)


def test_every_command_and_option_is_documented():
    for path, command in commands(program):
        text = section(path)
        assert f"    {path}" in text or f"    {path.rpartition(' ')[0]} [list]" in text, path
        options = [param for param in command.params if isinstance(param, click.Option)]
        for name in [name for option in options for name in option.opts]:
            assert name in text, f"{path} {name}"
        for argument in [param for param in command.params if isinstance(param, click.Argument)]:
            assert argument.make_metavar(click.Context(command)).strip("[]") in text, path


def test_no_command_is_documented_that_is_not_there():
    documented = set(re.findall(r"^##+ (cloudspot .*)$", DOCS, re.MULTILINE))
    assert documented - {path for path, _ in commands(program)} == GROUPS
    assert set(re.findall(r"^\| \[`(\w+)`\]", DOCS, re.MULTILINE)) == set(SHORT_HELPS)


def test_the_commands_lines_are_those_of_help():
    for option in program.params:
        assert option.opts[0] in DOCS


def test_every_exit_status_is_documented():
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    ours = {each.exit_code for each in classes if issubclass(each, errors.CloudspotError)}
    ours |= {exit_codes.SUCCEEDED, exit_codes.FAILED, exit_codes.STOPPED, exit_codes.INTERRUPTED}
    ours |= {exit_codes.PIPE_CLOSED, exit_codes.SUSPENDED}
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", section("Exit status"), re.MULTILINE)}
    assert documented == ours


READING = [
    ("cloudspot ps", ["ps"]),
    ("cloudspot cost", ["cost"]),
    ("cloudspot show", ["show", "digits-7k3f"]),
    ("cloudspot show", ["show", "broken-abcd"]),
    ("cloudspot compare", ["compare", "digits-7k3f", "broken-abcd"]),
    ("cloudspot checkpoints ls", ["checkpoints", "ls", "digits-7k3f"]),
    ("cloudspot checkpoints ls", ["checkpoints", "verify", "digits-7k3f"]),
    ("cloudspot checkpoints export", ["checkpoints", "export", "digits-7k3f", "--to", "TARGET"]),
    ("cloudspot logs", ["logs", "digits-7k3f", "--download", "TARGET"]),
    ("cloudspot logs", ["logs", "digits-7k3f", "--list"]),
    ("cloudspot logs", ["logs", "digits-7k3f", "--prune", "1d", "--yes"]),
    ("cloudspot artifacts ls", ["artifacts", "ls", "digits-7k3f"]),
    ("cloudspot artifacts download", ["artifacts", "download", "digits-7k3f", "--to", "TARGET"]),
    ("cloudspot providers list", ["providers"]),
    ("cloudspot providers list", ["providers", "list"]),
    ("cloudspot providers check", ["providers", "check", "local"]),
    ("cloudspot plan", ["run", "JOB_FILE", "--dry-run"]),
    ("cloudspot plan", ["plan", "JOB_FILE"]),
    ("cloudspot offers", ["offers", "JOB_FILE"]),
    ("cloudspot simulate", ["simulate", "--length", "1h", "--deadline", "2h", "--starts", "2"]),
    ("cloudspot reap", ["reap", "--dry-run"]),
    ("cloudspot run", ["run", "JOB_FILE", "--detach"]),
    ("cloudspot resume", ["resume", "broken-abcd", "--detach"]),
    ("cloudspot fork", ["fork", "digits-7k3f", "--detach"]),
]
"""Where the keys are described, and the command that prints them."""


@pytest.mark.parametrize(("title", "arguments"), READING)
def test_every_json_key_is_documented(jobs, title, arguments):
    jobs.reclaimed_and_finished()
    jobs.store.put(keys.artifacts_prefix("digits-7k3f") + "confusion.json", b"[]")
    jobs.failed()
    paths = {"JOB_FILE": jobs.job_file, "TARGET": jobs.scratch / "target"}
    value = jobs.run_json(*[str(paths.get(each, each)) for each in arguments])
    assert keys_of(value) - words_in_backquotes(section(title)) == set()


def test_the_json_of_every_command_that_prints_some_is_looked_at():
    with_json = {path for path, command in commands(program) if "as_json" in [p.name for p in command.params]}
    looked_at = {
        path
        for path in with_json
        for _, arguments in READING
        if arguments[: path.count(" ")] == path.split()[1:]
    }
    # It takes a provider that keeps images: tests/cli/commands/test_image.py.
    assert with_json == looked_at | {"cloudspot image ls"}
    assert set(MachineImage.__struct_fields__) <= words_in_backquotes(section("cloudspot image ls"))


def test_every_key_of_a_log_line_is_documented(jobs):
    first = jobs.run("logs", jobs.reclaimed_and_finished(), "--json").stdout.splitlines()[0]
    found = set(re.findall(r'"(\w+)": ', first))
    assert found - words_in_backquotes(section("cloudspot logs")) == set()
    assert len(found) == 7


def test_every_state_is_documented():
    source = (Path(__file__).parents[2] / "cloudspot" / "story" / "states.py").read_text()
    states = set(re.findall(r"``(\w+)``", source)) | {"failed", "stopped", "succeeded"}
    assert states - words_in_backquotes(section("cloudspot ps")) == set()
    assert len(states) == 11
