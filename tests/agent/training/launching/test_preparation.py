"""How the job's setup is started; see test_life.py for its course."""

import sys
import threading

import pytest
from support.jobs.process_portrait import left_open, portrait_of


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows how a process was started")
def test_a_setup_is_started_away_from_the_agents_terminal_and_files(bench, wait_until):
    pid, go = bench.root / "pid", bench.root / "go"
    setup = f"echo $$ > {pid}.new; mv {pid}.new {pid}; until [ -e {go} ]; do sleep 0.01; done; exit 9"
    life = bench.life("", run={"setup": setup})
    with left_open(bench.root / "of-the-agent"):
        thread = threading.Thread(target=life.run)
        thread.start()
        try:
            wait_until(pid.exists)
            seen = portrait_of(int(pid.read_text()))
        finally:
            go.touch()
            thread.join()
    log = str(life.context.node.logs / "setup.log")
    assert seen.leads_its_session
    assert seen.directory == life.context.node.work
    assert seen.streams == ("/dev/null", log, log)
    assert str(bench.root / "of-the-agent") not in seen.files
    assert bench.exit_record().exit_code == 9


def test_a_setup_ends_with_its_first_failure_also_in_a_pipe_and_for_a_missing_variable(bench):
    for number, (failing, status) in enumerate([("false", 1), ("(exit 5) | cat", 5), ("echo $NO_SUCH", 1)]):
        bench.life("", launch=number + 1, machine=f"m{number}", run={"setup": f"{failing}\necho on"}).run()
        assert bench.exit_record(number + 1).exit_code == status
        assert bench.exit_record(number + 1).outcome == "failed"


def test_a_setup_that_is_killed_by_a_signal_has_the_status_of_a_shell(bench):
    bench.life("", run={"setup": "kill -KILL $$"}).run()
    assert (bench.exit_record().outcome, bench.exit_record().exit_code) == ("failed", 137)
