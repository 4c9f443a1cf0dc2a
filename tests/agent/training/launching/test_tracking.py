"""What run.trackers adds to the environment of each rank, and what becomes of a tracker that fails."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cloudspot import registry
from cloudspot.agent.training.launching import tracking
from cloudspot.agent.training.launching.trainer import OWN_SHELLS
from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.errors import CloudspotError, PluginError
from cloudspot.interfaces import Tracker
from cloudspot.train import handoff as files

_KEEP_RANK_STATUS = OWN_SHELLS[1]


class Board(Tracker):
    """A tracker whose answer is a function."""

    name = "board"

    def __init__(self, answer):
        self._answer = answer

    def variables(self, request):
        return self._answer(request)


@pytest.fixture
def node(tmp_path):
    """A node that starts ranks 2 and 3."""
    handoff = tmp_path / "handoff"
    handoff.mkdir()
    warnings = {}
    context = SimpleNamespace(
        node=SimpleNamespace(
            job_id="digits", work=tmp_path, artifacts=tmp_path / "artifacts", handoff=lambda number: handoff
        ),
        status=SimpleNamespace(ranks=(2, 3), warn=warnings.__setitem__),
        job=SimpleNamespace(spec=SimpleNamespace(run=SimpleNamespace(trackers=("board",)))),
    )
    return SimpleNamespace(context=context, handoff=handoff, warnings=warnings)


@pytest.fixture
def track(node, monkeypatch):
    def call(answer, environment=None, *, step=None):
        monkeypatch.setattr(tracking, "open_tracker", lambda name: Board(answer))
        runtime = Runtime(node.context.node, sys.executable)
        return tracking.track(node.context, runtime, environment or {}, generation=4, step=step)

    return call


def seen_by(node, rank):
    """Return what a program that the rank's shell starts finds in its environment."""
    words = ["/bin/sh", "-c", _KEEP_RANK_STATUS, "rank", "/bin/sh", "-c", 'printf "%s" "$BOARD_RUN"']
    environment = {"PATH": os.environ["PATH"], files.HANDOFF: str(node.handoff), "RANK": str(rank)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert files.read_exited(node.handoff, rank) == 0
    return done.stdout


def test_each_ranks_shell_gives_it_its_own_variables_as_they_are(node, track):
    odd = 'it\'s "$HOME" `ls`\nand more'
    track(lambda request: {rank: {"BOARD_RUN": f"{rank} {odd}"} for rank in request.ranks})
    assert [seen_by(node, rank) for rank in (2, 3)] == [f"2 {odd}", f"3 {odd}"]
    assert seen_by(node, 7) == ""  # a rank without a file, as in a job without trackers


def test_variables_of_the_job_file_go_first_and_other_ranks_are_ignored(node, track):
    found = track(
        lambda request: {
            2: {"BOARD_RUN": "theirs", "BOARD_MODE": "resume", "not a name": "x"},
            9: {"BOARD_RUN": "?"},
        },
        {"BOARD_RUN": "mine"},
    )
    assert found == {2: {"BOARD_MODE": "resume"}, 3: {}}


def test_a_tracker_learns_the_start_and_runs_code_with_the_trainings_python(track):
    requests = []

    def answer(request):
        requests.append(request)
        return {2: {"BOARD_RUN": request.run_python("import os; print(os.environ['KEY'])", 60).strip()}}

    assert track(answer, {"KEY": "value"}, step=30)[2] == {"BOARD_RUN": "value"}
    (request,) = requests
    assert (request.job_id, request.generation, request.ranks, request.step) == ("digits", 4, (2, 3), 30)


@pytest.mark.parametrize(
    ("code", "seconds", "why"),
    [
        ("raise SystemExit('no such server')", 60, "no such server"),
        ("raise SystemExit(3)", 60, "it ended with status 3"),
        ("import time; time.sleep(3600)", 0.1, "its program took longer than 0.1 s"),
    ],
)
def test_a_tracker_that_fails_is_warned_of_and_the_training_starts_without_it(
    node, track, code, seconds, why
):
    assert track(lambda request: request.run_python(code, seconds)) == {2: {}, 3: {}}
    assert node.warnings == {"tracker board": f"the run in board may not continue as one: {why}"}
    track(lambda request: {})
    assert node.warnings == {"tracker board": None}


def test_a_missing_tracker_is_named_with_what_installs_it():
    with pytest.raises(PluginError, match='no tracker "wand" is installed; did you mean "wandb"'):
        registry.open_tracker("wand")
    assert issubclass(PluginError, CloudspotError)
