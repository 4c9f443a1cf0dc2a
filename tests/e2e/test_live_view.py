"""A job as a person at a terminal sees it: the live view, another size, Ctrl-C, attach to its end."""

import re

import pytest
from support.jobs.acting_user import COMMAND, JOBS
from support.jobs.pseudo_terminal import Terminal

pytestmark = pytest.mark.full


NAMES = ("CLOUDSPOT_LOCAL_HOME", "PYTHONPATH")


@pytest.fixture
def terminal(user):
    """``terminal(*args)``: a command of the user's on a terminal of 100 columns."""
    opened = []

    def start(*args, columns=100, lines=40):
        environ = {name: user.environ[name] for name in NAMES}
        opened.append(Terminal([*COMMAND, *args], columns=columns, lines=lines, environ=environ))
        return opened[-1]

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def panel(screen, *, may_be_twice=False):
    """Return the panel's lines by their labels, below its title; none of one that is half drawn.

    After a new size it may stand there twice for a moment.
    """
    lines = screen.text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("── tiny-")]
    assert len(starts) <= 1 or may_be_twice, screen.text()
    if len(starts) != 1 or not lines[-1].endswith("the job continues"):
        return {}
    return {line[:9].strip(): line[9:].strip() for line in lines[starts[0] + 1 :]}


def step(screen, **how):
    found = re.search(r"(\d+)/400 ", panel(screen, **how).get("step", "0/400 "))
    return int(found[1]) if found else 0  # cut off, until it is drawn for the new size


def test_a_job_is_watched_left_and_seen_to_its_end(user, terminal):
    screen = terminal(
        "run", str(JOBS / "tiny" / "job.toml"),
        "--set", "run.env.TINY_EPOCHS=20", "--set", "run.env.TINY_STEP_SECONDS=0.1",
    )  # fmt: skip
    screen.wait_for("── running ──")
    screen.wait_for("steps/s, about", seconds=120)
    screen.wait_for(
        lambda: "saved    step" in screen.text() and "loss 0." in panel(screen).get("metrics", "")
    )
    shown = panel(screen)
    assert shown["on"] == "local: spot local in local-a at 0.3 USD an hour"
    assert re.fullmatch(r"1\.0 running  127\.\d+\.\d+\.\d+(  uploading .*)?", shown["node"])
    assert re.fullmatch(r"0\.\d{4} USD \(on demand 0\.\d{4} USD: 70% saved\)", shown["cost"])
    assert re.fullmatch(r"step \d+, \S+ ago; an upload takes \S+, a notice leaves 6s", shown["saved"])
    assert any("⠀" <= character <= "⣿" for character in shown["loss"])
    assert shown[""] == "Ctrl-C detaches; the job continues"
    assert re.search(r"\d\d:\d\d:\d\d train     step \d+ loss \d", screen.text())
    before = step(screen)
    screen.wait_for(lambda: step(screen) > before)

    screen.resize(70, 30)
    screen.wait_for(lambda: max(map(len, screen.text().splitlines())) <= 70)
    screen.wait_for(lambda: step(screen, may_be_twice=True) > before + 5)
    screen.wait_for(lambda: "70% saved" in panel(screen).get("cost", ""))

    screen.press("\x03")
    assert screen.finish() == 130
    screen.assert_sane()
    text = "".join(screen.text().split())  # the terminal breaks lines wherever they are full
    assert "──running──" not in text
    detached = re.search(
        r"detached;job(tiny-\w{4})continues.Followitagainwith:cloudspotattach\1warning:Fromnowon,nothing",
        text,
    )
    assert detached is not None, screen.text()
    job_id = detached[1]

    screen = terminal("attach", job_id, columns=120)
    screen.wait_for(f"attached to job {job_id}")
    screen.wait_for(lambda: "steps/s" in screen.text() or screen.process.poll() is not None)
    assert screen.finish(seconds=180) == 0
    screen.assert_sane()
    lines = screen.text().splitlines()
    block = lines[lines.index(f"job {job_id} succeeded") :]
    assert any(re.fullmatch(r"  steps +400/400, 0 lost", line) for line in block)
    assert "──" not in screen.text()


def test_plain_prints_lines_on_a_terminal_too(user, terminal):
    sets = ("--set", 'run.env.TINY_EPOCHS="2"')
    screen = terminal("run", str(JOBS / "tiny" / "job.toml"), "--plain", *sets, columns=200)
    assert screen.finish(seconds=180) == 0
    screen.assert_sane()
    assert b"\x1b[?25l" not in screen.sent
    text = "\n".join(screen.all_lines())
    assert "cloudspot training starts at step 0 (generation 1, first)" in text
    assert re.search(r"train     step 39 loss \d", text), text
