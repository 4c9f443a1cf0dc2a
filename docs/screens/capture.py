"""Shows what cloudspot looks like: the real program in a pseudo-terminal, its screen kept as text and SVG.

    python docs/screens/capture.py            # rewrite all screens
    python docs/screens/capture.py live       # only those whose name begins so

The jobs are those of fixed_job.py, and the clock stands, so that the same code gives the same screens;
tests/cli/test_screens.py compares them. Needs what the tests need (pyte).
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]

import fixed_job  # noqa: E402 - beside this file

from cloudspot.interfaces import ObjectStore  # noqa: E402
from cloudspot.jobstore.access import store_clock  # noqa: E402
from cloudspot.jobstore.access.store_clock import StoreClock  # noqa: E402

if TYPE_CHECKING:
    from support.jobs.pseudo_terminal import Terminal

WIDTHS = (80, 200)
LINES = 60
LIVE_LINES = 24
WRONG_JOB_FILE = """\
name = "digits"

[run]
entrypoint = "train.py"

[checkpoint]
intervall = "5m"
"""


@dataclass(frozen=True)
class Screen:
    """One picture."""

    name: str
    arguments: Sequence[str]
    """Of cloudspot."""
    lines: int = LINES

    @property
    def prompt(self) -> str:
        """Return what one would type for it."""
        return " ".join(["$ cloudspot", *self.arguments])


SCREENS = (
    Screen("help", ["--help"]),
    Screen("error", ["run", "job.toml"]),
    Screen("ps", ["ps"]),
    Screen("show", ["show", fixed_job.JOB]),
    Screen("live", ["attach", fixed_job.JOB], LIVE_LINES),
)


def main() -> None:
    """Rewrite the screens whose names begin with one of the arguments; without any all of them."""
    for screen in SCREENS:
        if screen.name.startswith(tuple(sys.argv[1:]) or ("",)):
            for width in WIDTHS:
                with capture(screen, width) as terminal:
                    path(screen, width).write_text(text(screen, terminal), encoding="utf-8")
                    if width == WIDTHS[0]:
                        path(screen, width, "svg").write_text(svg(screen, terminal), encoding="utf-8")
                print(path(screen, width).name)


def path(screen: Screen, width: int, kind: str = "txt") -> Path:
    """Return where a screen is kept."""
    return HERE / f"{screen.name}-{width}.{kind}"


def text(screen: Screen, terminal: Terminal) -> str:
    """Return the screen as text, below what was typed for it."""
    return f"{screen.prompt}\n{terminal.text()}\n"


@contextmanager
def capture(screen: Screen, width: int, *, environ: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """Run the program until its screen is as it should be; ``environ`` goes on top of its environment."""
    from support.jobs.pseudo_terminal import Terminal

    with tempfile.TemporaryDirectory(prefix="cloudspot-screens-") as directory:
        (Path(directory) / "job.toml").write_text(WRONG_JOB_FILE, encoding="utf-8")
        own = {"CLOUDSPOT_LOCAL_HOME": directory, "TZ": "UTC", "XDG_CONFIG_HOME": directory}
        own["CLOUDSPOT_STORE"] = ""
        command = [sys.executable, str(HERE / "capture.py"), "--inside", *screen.arguments]
        with Terminal(
            command, columns=width, lines=screen.lines, environ={**own, **(environ or {})}, cwd=directory
        ) as terminal:
            if screen.name == "live":
                terminal.wait_for(
                    lambda: re.search(f"^(──|--) {fixed_job.JOB}", terminal.text(), re.MULTILINE)
                )
                terminal.wait_for("Ctrl-C detaches")
            else:
                terminal.finish()
            yield terminal


def svg(screen: Screen, terminal: Terminal) -> str:
    """Return the screen as a picture."""
    from rich.console import Console
    from rich.text import Text

    display = terminal.screen
    height = len(terminal.text().splitlines())
    console = Console(record=True, width=display.columns, file=io.StringIO(), force_terminal=True)
    console.print(Text(screen.prompt, style="bold"))
    for number in range(height):
        line = Text()
        for column in range(display.columns):
            cell = display.buffer[number][column]
            colour = "" if cell.fg == "default" else {"brown": "yellow"}.get(cell.fg, cell.fg)
            line.append(cell.data, style=f"{colour} {'bold' if cell.bold else ''}".strip())
        line.rstrip()
        console.print(line, soft_wrap=True)
    picture = console.export_svg(title="cloudspot", unique_id=f"cloudspot-{screen.name}")
    # No font from elsewhere: whoever looks at it asks nobody for anything.
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


# --- inside of the terminal -------------------------------------------------------------------------


class _StandingStoreClock(StoreClock):
    """What is known of a store's clock that stands."""

    def compare(self, store: ObjectStore) -> None:
        """Ask nobody."""

    def now(self) -> datetime:
        """Return the moment of all screens."""
        return fixed_job.NOW


class _Standing(datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Return the moment of all screens."""
        return fixed_job.NOW if tz is not None else fixed_job.NOW.replace(tzinfo=None)


def run_inside(arguments: Sequence[str]) -> None:
    """Be cloudspot at the fixed moment, with the fixed jobs in its default store."""
    import cloudspot.cli
    from cloudspot.cli.jobs import open_named_store
    from cloudspot.cli.main import program

    for module in pkgutil.walk_packages(cloudspot.cli.__path__, "cloudspot.cli."):
        loaded = importlib.import_module(module.name)
        if getattr(loaded, "datetime", None) is datetime:
            loaded.datetime = _Standing  # type: ignore[attr-defined]
    store = open_named_store(None, may_be_new=True)
    store.establish()
    store_clock._clocks[store.canonical_url] = _StandingStoreClock()  # noqa: SLF001 - for this store alone
    fixed_job.write_jobs(store)
    if arguments[0] == "attach":
        _attach_without_driving()
    program.main(list(arguments), prog_name="cloudspot")


def _attach_without_driving() -> None:
    """Let the controller look once and then wait: what it would do to machines is no part of the picture."""
    from cloudspot.cli.following import livefeed, pace
    from cloudspot.controller.loop import Controller, Tick
    from cloudspot.jobstore.jobs.reader import HistoryReader
    from cloudspot.story.events import diff

    def run(controller: Controller, on_tick: Callable[[Tick], None]) -> None:
        history = HistoryReader(controller._store, fixed_job.JOB).read()  # noqa: SLF001
        on_tick(Tick(history=history, instances=(), events=diff(None, history)))
        while True:
            controller._sleep(1.0)  # noqa: SLF001

    # What a minute of following would have shown.
    begin = pace.Point(2, fixed_job.at(30.25), 3415)
    livefeed.pace.origin = lambda _history: begin  # type: ignore[attr-defined]
    Controller.run_until_finished = run  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        run_inside(sys.argv[2:])
    else:
        main()
