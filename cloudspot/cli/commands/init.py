"""``cloudspot init``: write a job file to start from, and a script if there is none."""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path

import click

from cloudspot.cli.commands.schema import shipped_schema_url
from cloudspot.cli.preparing.imported_trackers import imported_trackers
from cloudspot.cli.preparing.preparedjob import opens_session
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.jobstore.code.bundle import code_files

JOB_FILE = "job.toml"
SCRIPT = "train.py"
_MEASURE = """
import json, sys
from cloudspot.train.fork_server.fork_server import measure
print(json.dumps(measure(sys.argv[1:])))
"""
_MEASURE_SECONDS = 60.0
_WORTH_SECONDS = 1.0
"""The minimum import time for which ``run.preload`` is suggested."""
MAX_NAMED = 5
"""The maximum number of candidates for the script that are listed."""
_FRAMEWORK = re.compile(r"\b(torch|lightning|pytorch_lightning|transformers|accelerate)\b")
"""A script that mentions none of these does not train with a framework that cloudspot knows."""
_FOR_A_SHELL = re.compile(r"[$`|&;<>*?~]")
"""Characters that only a shell interprets. In quotes they need no shell, but using one does no harm."""
_WITH_SESSION = 'interval = "auto"  # balances the cost of saves against the cost of losses'
_TRACKERS = "# trackers = {}  # keeps one run in each across reclaims, moves and resumes\n"
_WITHOUT_SESSION = """\
# The script opens no session (cloudspot.train.session), so name its own checkpoints here, directories or
# files, and it resumes from the newest one. Without this, it starts over after each reclaim.
# directory = @PATTERN@\
"""
_DIRECTORIES = '"output/checkpoint-*"'
_SAVED = re.compile(r"[^\s\"]*\.(pt|pth|pth\.tar|ckpt|safetensors|zip|keras|h5)")
"""Names of files that look like checkpoints."""


@click.command("init")
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--entrypoint",
    metavar="FILE",
    help="The training script, inside DIR. Default: the one found there, or a small new one.",
)
@click.option(
    "--command",
    "command_line",
    metavar="LINE",
    help="A command that trains, as typed in a shell, instead of a script.",
)
@click.option("--force", is_flag=True, help="Replace an existing job.toml.")
def init(directory: Path, entrypoint: str | None, command_line: str | None, force: bool) -> None:
    """Write a job file to start from.

    The file is written to DIR, by default the current directory, for the training script found in DIR or
    below. If there is no script, a small working script is written too. An existing script is never replaced.
    """
    if entrypoint is not None and command_line is not None:
        raise SpecError("give --entrypoint or --command, not both")
    job_file = directory / JOB_FILE
    if job_file.exists() and not force:
        raise SpecError(f"{job_file} already exists; to replace it, add --force")
    command = None if command_line is None else split_command(command_line)
    script = find_script(directory, entrypoint) if command is None else None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if script is None and command is None:
            script = SCRIPT
            with (directory / SCRIPT).open("x", encoding="utf-8") as file:
                file.write(_template("train.py.txt"))
            output.echo(f"wrote {directory / SCRIPT}, a small working training script")
        has_session = script is not None and opens_session(directory / script)
        slow = slow_imports(directory / script) if script is not None else {}
        saved = () if script is None else saved_files(directory / script)
        text = job_file_text(
            _job_name(directory),
            script or command or (),
            has_session=has_session,
            slow=slow,
            saved=saved,
            trackers=() if script is None else imported_trackers([directory / script]),
        )
        with job_file.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CloudspotError(f"{error.filename} cannot be written: {error.strerror}") from error
    program = script or (command or ())[0]
    output.echo(f"wrote {job_file} for {program}")
    if not has_session:
        output.warn(
            f"{program} opens no session, so it starts over after a reclaim; see [checkpoint] in {job_file}"
        )
    named = "" if directory == Path() else f" {job_file}"
    output.echo(f"see what it would launch: cloudspot plan{named}; start it: cloudspot run{named}")


def find_script(directory: Path, entrypoint: str | None) -> str | None:
    """Return the training script, relative to the directory, or None if there is none.

    Without ``entrypoint``, the script is train.py or, failing that, the only Python file that mentions a
    framework: a file in the directory itself or, if it has none, anywhere in the code that ``run`` would
    send.

    Raises:
        SpecError: ``entrypoint`` is not a file inside the directory, or several files could be the script.
        BundleError: the directory cannot be read.
    """
    if entrypoint is not None:
        root = directory.resolve()
        path = (root / entrypoint).resolve()
        if not path.is_file() or root not in path.parents:
            raise SpecError(f'--entrypoint: "{entrypoint}" is not a file inside {root}')
        return path.relative_to(root).as_posix()
    if not directory.is_dir():
        return None
    if (directory / SCRIPT).is_file():
        return SCRIPT
    here = [path.name for path in sorted(directory.glob("*.py")) if _FRAMEWORK.search(_read(path))]
    if not here:
        below = [Path(name) for name in code_files(directory) if name.endswith(".py")]
        below = [path for path in below if not any(_is_apart(directory / one) for one in path.parents)]
        named = [path.as_posix() for path in below if path.name == SCRIPT]
        here = named or [one.as_posix() for one in below if _FRAMEWORK.search(_read(directory / one))]
    if len(here) > 1:
        more = f" and {len(here) - MAX_NAMED} more" if len(here) > MAX_NAMED else ""
        raise SpecError(
            f"{directory.resolve()}: {', '.join(here[:MAX_NAMED])}{more} could each be the training script; "
            "name it with --entrypoint"
        )
    return here[0] if here else None


def _is_apart(directory: Path) -> bool:
    """Return whether the directory is hidden or a virtual environment, and so holds programs of others."""
    return directory.name.startswith(".") or (directory / "pyvenv.cfg").is_file()


def slow_imports(script: Path) -> dict[str, float]:
    """Return the script's top-level imports, except torch and its own modules, with their import times.

    The times are measured with this Python. The result is empty if there are no such imports or the
    measurement fails.
    """
    names = []
    with suppress(SyntaxError, ValueError):
        for statement in ast.parse(_read(script)).body:
            if isinstance(statement, ast.Import):
                names += [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
                names += [f"{statement.module}.{alias.name}".removesuffix(".*") for alias in statement.names]
    known = {*sys.stdlib_module_names, "torch", "cloudspot", *(path.stem for path in script.parent.iterdir())}
    names = [name for name in names if name.partition(".")[0] not in known]
    if not names:
        return {}
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        arguments = [sys.executable, "-c", _MEASURE, *names]
        done = subprocess.run(arguments, capture_output=True, timeout=_MEASURE_SECONDS, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found
    return {}


def saved_files(script: Path) -> tuple[str, ...]:
    """Return the file names in the script that look like checkpoints, with ``*`` for formatted parts."""
    found: dict[str, None] = {}
    with suppress(SyntaxError, ValueError):
        tree = ast.parse(_read(script))
        parts = {
            id(value) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for value in one.values
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                values = [one.value if isinstance(one, ast.Constant) else "*" for one in node.values]
                found["".join(map(str, values))] = None
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                found[node.value] = None
    return tuple(name for name in found if _SAVED.fullmatch(name))[:MAX_NAMED]


def split_command(line: str) -> tuple[str, ...]:
    """Split a command into words, as a shell does.

    Raises:
        SpecError: the command is malformed or empty.
    """
    try:
        arguments = shlex.split(line, comments=True)
    except ValueError as error:
        raise SpecError(f"--command: {line!r} is not a command: {error}") from None
    if not arguments:
        raise SpecError("--command is empty; name a program")
    if _FOR_A_SHELL.search(line) or "=" in arguments[0]:
        return ("bash", "-c", line)
    return tuple(arguments)


def job_file_text(
    name: str,
    runs: str | Sequence[str],
    *,
    has_session: bool,
    slow: Mapping[str, float] | None = None,
    saved: Sequence[str] = (),
    trackers: Sequence[str] = (),
) -> str:
    """Return a commented job file for a script, or for a command given as its words.

    ``slow`` are the script's slow imports, ``saved`` the files that it appears to save, and ``trackers`` the
    experiment trackers that it imports.
    """
    slow = slow or {}
    preload = f"# preload = {json.dumps([*slow])}  # would save {sum(slow.values()):.1f} s of each restart\n"
    if isinstance(runs, str):
        program, field, why = runs, "entrypoint", "torchrun starts it, procs_per_node times on each machine"
    else:
        program, field, why = shlex.join(runs), "command", "started once on each machine"
        runs = list(runs)
    values = {
        "SCHEMA": shipped_schema_url(),
        "WHAT": " ".join(program.split()),
        "RUN": f"{field} = {json.dumps(runs, ensure_ascii=False)}  # {why}",
        "NAME": json.dumps(name),
        "PRELOAD": preload if sum(slow.values()) >= _WORTH_SECONDS else "",
        "TRACKERS": _TRACKERS.format(json.dumps([*trackers])) if trackers else "",
        "CHECKPOINT": _WITH_SESSION if has_session else _without_session(saved),
    }
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], _template("job.toml.txt"))


def _without_session(saved: Sequence[str]) -> str:
    if not saved:
        return _WITHOUT_SESSION.replace("@PATTERN@", f'{_DIRECTORIES}  # or a file: "checkpoint.pt"')
    patterns = json.dumps(list(saved) if saved[1:] else saved[0], ensure_ascii=False)
    return _WITHOUT_SESSION.replace(
        "@PATTERN@", f"{patterns}  # as in the script; add the directory if needed"
    )


@functools.cache
def _template(name: str) -> str:
    return (resources.files("cloudspot.cli") / "templates" / name).read_text(encoding="utf-8")


def _job_name(directory: Path) -> str:
    """Return a job name derived from the name of the directory."""
    near = re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower())[:40].strip("-")
    return near or "job"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
