"""What a session has told its agent when its process has ended, in whatever way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudspot.train import handoff

pytestmark = pytest.mark.full


FINISHED, LEFT, HELD, NOTHING = "finished", "left its loop", "left if it ends with status 0", "nothing"


def test_only_ends_that_a_script_chose_itself_are_told(tmp_path):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "jobs" / "endings.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    statuses = json.loads(done.stdout)

    def told(name):
        directory = tmp_path / name
        final = handoff.read_json(handoff.final_path(directory))
        assert handoff.ended_loop_path(directory, 0).exists() == (final is not None)
        seals = sorted(path.name for path in handoff.seals_directory(directory).iterdir())
        if final is None:
            assert seals == []
            return NOTHING
        (seal,) = seals
        kind = seal.partition("-")[0]
        assert seal == f"{kind}-1-{final['step']}-0-0.json"  # of no round
        if not final["left_early"]:
            assert (kind, final["planned"]) == ("seal", None)
            return FINISHED
        how = {"seal": LEFT, "held": HELD}[kind]
        return f"{how}: {final['step']} of {final['planned']}"

    assert {name: (told(name), status) for name, status in statuses.items()} == {
        "end_of_steps": (FINISHED, 0),
        "end_of_batches": (FINISHED, 0),
        "no_loop": (NOTHING, 0),
        "break_out_of_steps": (f"{LEFT}: 3 of 100", 0),
        "break_out_of_batches": (f"{LEFT}: 1 of None", 0),
        "break_with_iterator_kept": (f"{HELD}: 3 of 100", 0),
        "return_out_of_steps": (f"{LEFT}: 3 of 100", 0),
        "break_out_of_epochs": (f"{LEFT}: 6 of 15", 0),
        "exit_0": (f"{HELD}: 3 of 100", 0),
        "exit_3": (f"{HELD}: 1 of 100", 3),
        "caught_outside_of_the_loop": (f"{HELD}: 3 of 100", 0),
        "break_then_error": (f"{LEFT}: 3 of 100", 1),
        "error": (NOTHING, 1),
        "error_with_iterator_kept": (NOTHING, 1),
        "exit_at_once": (NOTHING, 0),
        "exit_at_once_with_no_known_end": (NOTHING, 0),
        "sigterm_exits": (NOTHING, 0),
        "sigterm_exits_by_a_late_handler": (NOTHING, 0),
        "sigterm_exits_with_iterator_kept": (NOTHING, 0),
        "sigterm_makes_it_break": (NOTHING, 0),
        "sigterm_is_ignored": (FINISHED, 0),
        "sigterm_without_a_handler": (NOTHING, -signal.SIGTERM),
        "forked_process_exits": (FINISHED, 0),
    }
    without_loop = [name for name in statuses if not handoff.begun_loop_path(tmp_path / name, 0).exists()]
    assert without_loop == ["no_loop"]
