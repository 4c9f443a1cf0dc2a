"""The commands with which a cloud's page has a user set up an account, as a shell reads them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]


def filled(text: str, words: Mapping[str, str]) -> str:
    """Return the text with what a user writes in place of the page's own words."""
    for word, value in words.items():
        text = re.sub(rf"\b{word}\b", value, text)
    return text


def documented_commands(page: str, program: str, words: Mapping[str, str]) -> list[list[str]]:
    """Return the arguments of each call of a cloud's command line that stands in a page, in its order.

    All blocks of the page in which the program is called are run by a shell, in which a function of that name only
    reports its arguments; ``cloudspot`` does nothing there, and any other program is an error.
    """
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    called = [one for one in blocks if re.search(rf"^{program} ", one, re.MULTILINE)]
    functions = f"{program}() {{ printf '%s\\0' \"$@\" $'\\n'; }}\ncloudspot() {{ :; }}\n"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", functions + "".join(called)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    commands = [one.split("\0")[:-1] for one in done.stdout.split("\n\0")[:-1]]
    assert commands, f"{page} calls no {program}"
    return [[filled(argument, words) for argument in one] for one in commands]


def options_of(arguments: list[str], *, flags: Collection[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Return the words of a command and its options, written as ``--name value`` or ``--name=value``.

    ``flags`` are those that take no value.
    """
    words: list[str] = []
    options: dict[str, str] = {}
    rest = iter(arguments)
    for one in rest:
        if one.startswith("--"):
            name, has_value, value = one[2:].partition("=")
            assert name not in options, f"--{name} is given twice"
            options[name] = "" if name in flags else value if has_value else next(rest)
        else:
            words.append(one)
    return words, options
