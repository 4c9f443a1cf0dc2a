"""What a session has told its agent when its process has ended, in whatever way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from cloudspot.train import handoff

FINISHED, LEFT, NOTHING = "finished", "left its loop", "nothing"


def test_only_ends_that_a_script_chose_itself_are_told(tmp_path):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "jobs" / "endings.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    statuses = json.loads(done.stdout)

    def told(name):
        has_finished = handoff.final_path(tmp_path / name).exists()
        has_left = handoff.left_loop_path(tmp_path / name, 0).exists()
        assert handoff.ended_loop_path(tmp_path / name, 0).exists() == has_finished
        assert not (has_finished and has_left)
        return FINISHED if has_finished else LEFT if has_left else NOTHING

    assert {name: (told(name), status) for name, status in statuses.items()} == {
        "end_of_steps": (FINISHED, 0),
        "end_of_batches": (FINISHED, 0),
        "no_loop": (NOTHING, 0),
        "break_out_of_steps": (LEFT, 0),
        "break_out_of_batches": (LEFT, 0),
        "break_with_iterator_kept": (LEFT, 0),
        "error": (LEFT, 1),
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
