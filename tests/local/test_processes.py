"""The processes of a machine, and their common end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudspot.host.process_marks import kill_all
from cloudspot.local import processes
from cloudspot.local.processes import MARK, end_machine_processes, machine_processes


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="process trees are followed through /proc")
def test_all_processes_of_a_machine_stand_still_before_the_first_is_killed(tmp_path, monkeypatch, wait_until):
    """As on a machine that loses its power: none sees another die and acts on it."""
    mark = str(tmp_path)
    started = [subprocess.Popen(["sleep", "3600"], env={**os.environ, MARK: mark}) for _ in range(3)]
    stood = []

    def watched(find):
        wait_until(lambda: {state_of(pid) for pid in machine_processes(mark)} == {"T"}, seconds=10)
        stood.extend(machine_processes(mark))
        kill_all(find)

    monkeypatch.setattr(processes, "kill_all", watched)
    try:
        wait_until(lambda: len(machine_processes(mark)) == 3)
        end_machine_processes(mark)
    finally:
        for one in started:
            one.kill()
    assert {*stood} == {one.pid for one in started}
    assert [one.wait(60) for one in started] == [-9] * 3
