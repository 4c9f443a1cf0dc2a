"""Completion in the shells themselves: commands, options, job ids; quick, and silent where something is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from cloudspot.cli.completers import (
    complete_generations,
    complete_jobs,
    complete_nodes,
    complete_providers,
    complete_stores,
)
from cloudspot.cli.invocation import DEFAULT_PROVIDER
from cloudspot.cli.main import SHORT_HELPS, program
from cloudspot.jobstore.jobs.reader import HistoryReader, write_summary
from cloudspot.story.report import summarise

BASH = """
source <(cloudspot completion bash)
COMP_WORDS=({words})
COMP_CWORD={last}
_cloudspot_completion cloudspot
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# A shell that nobody sits at has no completion of its own: what it would show is caught where it is handed over.
ZSH = """
autoload -Uz compinit && compinit -u -d {dump}
_describe() {{ print -rl -- "${{(@P)3}}" }}
compadd() {{ local name=${{@[-1]}}; print -rl -- "${{(@P)name}}" }}
source <(cloudspot completion zsh)
words=({words})
CURRENT={count}
_cloudspot_completion cloudspot
"""
FISH = """
cloudspot completion fish | source
complete -C "{line}"
"""


def quoted(words):
    return " ".join(f"'{word}'" for word in words)


class Shells:
    """Real shells, that find the program on their path."""

    def __init__(self, scratch: Path, environ) -> None:
        self._scratch = scratch
        program = scratch / "bin" / "cloudspot"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cloudspot "$@"\n')
        program.chmod(0o755)
        self.environ = {**environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def complete(self, shell, *words):
        """Return what the shell offers for the last of the words, and what went to standard error."""
        texts = {
            "bash": BASH.format(words=quoted(words), last=len(words) - 1),
            "zsh": ZSH.format(words=quoted(words), count=len(words), dump=self._scratch / "zdump"),
            "fish": FISH.format(line=" ".join(words)),
        }
        arguments = {"bash": ["--norc", "-c"], "zsh": ["-f", "-c"], "fish": ["--no-config", "-c"]}
        done = subprocess.run(
            [shell, *arguments[shell], texts[shell]],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        # zsh and fish show a description beside each.
        offered = [line.replace("\t", ":").partition(":")[0] for line in done.stdout.splitlines() if line]
        return offered, done.stderr


@pytest.fixture
def shells(tmp_path, jobs, monkeypatch):
    """Shells of someone whose store holds two jobs."""
    jobs.submit("digits-7k3f")
    jobs.submit("other-abcd")
    environ = {
        "CLOUDSPOT_STORE": jobs.store.url,
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return Shells(tmp_path, environ)


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request):
    """Each shell that is installed here."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["cloudspot", "sho"], ["show"]),
        (["cloudspot", "show", "dig"], ["digits-7k3f"]),
        (["cloudspot", "reconcile", "--job", "o"], ["other-abcd"]),
        (["cloudspot", "logs", "digits-7k3f", "--fol"], ["--follow"]),
        (["cloudspot", "providers", "check", "lo"], ["local"]),
        (["cloudspot", "run", "--provider", "lo"], ["local"]),
    ],
)
def test_a_shell_completes_commands_options_and_job_ids(shells, shell, words, offered):
    assert shells.complete(shell, *words) == (offered, "")


@pytest.mark.full
def test_all_commands_are_offered_and_all_jobs(shells, shell):
    offered, complaints = shells.complete(shell, "cloudspot", "co")
    commands = sorted(name for name in SHORT_HELPS if name.startswith("co"))
    assert (sorted(offered), complaints) == (commands, "")
    assert "completion" in commands
    offered, complaints = shells.complete(shell, "cloudspot", "stop", "")
    assert (offered, complaints) == (["digits-7k3f", "other-abcd"], "")


@pytest.mark.full
def test_the_store_on_the_line_is_the_one_that_is_asked(shells, shell, tmp_path):
    line = ["cloudspot", "show", "--store", f"file://{tmp_path}/empty", ""]
    assert shells.complete(shell, *line)[0] == []
    config = tmp_path / "config.toml"
    config.write_text(f'[stores]\nmine = "{shells.environ.pop("CLOUDSPOT_STORE")}"\n')
    shells.environ["CLOUDSPOT_CONFIG"] = str(config)
    assert shells.complete(shell, "cloudspot", "show", "--store", "m") == (["mine"], "")
    assert shells.complete(shell, "cloudspot", "show", "--store", "mine", "d") == (["digits-7k3f"], "")
    assert shells.complete(shell, "cloudspot", "--store", "mine", "show", "d") == (["digits-7k3f"], "")


@pytest.mark.full
@pytest.mark.parametrize("store", ["moon://x/y", "file:///dev/null/store", "nowhere", ""])
def test_a_store_that_does_not_answer_offers_nothing_and_says_nothing(shells, store):
    shells.environ["CLOUDSPOT_STORE"] = store
    shells.environ["CLOUDSPOT_LOCAL_HOME"] = "not absolute"
    assert shells.complete("bash", "cloudspot", "show", "d") == ([], "")


@pytest.mark.full
def test_a_broken_config_file_offers_nothing_and_says_nothing(shells, tmp_path):
    (tmp_path / "config.toml").write_text("[[[")
    shells.environ["CLOUDSPOT_CONFIG"] = str(tmp_path / "config.toml")
    assert shells.complete("bash", "cloudspot", "show", "--store", "m") == ([], "")


def offered_here(*words):
    """Return what is offered for the last word, by this very process."""
    found = ShellComplete(program, {}, "cloudspot", "_C").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def test_the_numbers_of_the_generations_are_offered(jobs, monkeypatch):
    monkeypatch.setenv("CLOUDSPOT_STORE", jobs.store.url)
    job_id = jobs.reclaimed_and_finished()
    assert offered_here("logs", job_id, "--generation", "") == []
    write_summary(jobs.store, summarise(HistoryReader(jobs.store, job_id).read(), datetime.now(timezone.utc)))
    assert offered_here("logs", job_id, "--generation", "") == ["1", "2"]
    assert offered_here("logs", "digits", "--generation", "2") == ["2"]


def test_the_names_of_the_nodes_are_offered_from_a_listing(jobs, monkeypatch):
    monkeypatch.setenv("CLOUDSPOT_STORE", jobs.store.url)
    job_id = jobs.reclaimed_and_finished()
    monkeypatch.setattr("cloudspot.local.filestore.FileStore.get", None)
    assert offered_here("logs", job_id, "--node", "") == ["1.0", "2.0"]
    assert offered_here("preempt", "digits", "--node", "2") == ["2.0"]


def test_completing_a_job_reads_a_listing_and_no_object(jobs, monkeypatch):
    monkeypatch.setenv("CLOUDSPOT_STORE", jobs.store.url)
    jobs.reclaimed_and_finished()
    reads = []
    monkeypatch.setattr("cloudspot.local.filestore.FileStore.get", lambda store, key: reads.append(key))
    assert offered_here("show", "d") == ["digits-7k3f"]
    assert reads == []


def test_completers_are_wired_where_a_name_is_asked_for():
    from cloudspot.cli.commands import logs, providers

    wired = {
        param._custom_shell_complete for command in (logs.logs, providers.check) for param in command.params
    }
    assert {complete_jobs, complete_generations, complete_nodes, complete_stores, complete_providers} <= wired
    assert DEFAULT_PROVIDER == "local"
