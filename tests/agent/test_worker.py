"""The base of the agent's threads."""

import pytest

from cloudspot.agent.worker import Stopped, Worker


class Waiting(Worker):
    """Waits for an hour, unless it is stopped."""

    def __init__(self):
        super().__init__("waiting")
        self.end = None

    def _run(self):
        try:
            self._pause(0.0)
            self._pause(3600.0)
        except Stopped:
            self.end = "stopped"


def test_a_thread_that_waits_ends_once_it_is_stopped():
    worker = Waiting()
    worker.start()
    worker.stop()
    worker._join()
    assert worker.end == "stopped"


def test_one_that_was_never_started_or_has_ended_is_not_waited_for():
    worker = Waiting()
    worker._join()
    worker.stop()
    with pytest.raises(Stopped):
        worker._pause(3600.0)
    worker.start()
    worker._join()
    worker._join(3600.0)
    assert (worker.end, worker._thread.daemon, worker._thread.name) == ("stopped", True, "waiting")
