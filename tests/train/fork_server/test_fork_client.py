"""What stands in for a program that the fork server runs."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from cloudspot.train.fork_server import fork_client

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux shows forks by their own environment"
)


def test_only_this_user_may_have_programs_forked(tmp_path):
    """Whoever connects has code run."""
    before = os.umask(0)
    try:
        with fork_client.listen_at(str(tmp_path / "socket")):
            assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_a_signal_that_a_script_may_be_told_with_is_passed_on_and_the_client_ends_as_the_program(
    tmp_path, name
):
    number, path = getattr(signal, name), str(tmp_path / "socket")
    program = subprocess.Popen(["sleep", "3600"])
    with fork_client.listen_at(path) as listener:
        client = subprocess.Popen([sys.executable, "-IS", fork_client.__file__, path, "python", "train.py"])
        connection, _ = listener.accept()
        with connection:
            connection.sendall(fork_client.ANSWER % program.pid)
            while not connection.recv(1 << 20).endswith(fork_client.GO):
                pass
            client.send_signal(number)
            assert program.wait(60) == -number
            assert client.poll() is None, "it waits for the status"
            connection.sendall(fork_client.ANSWER % 9)
        assert client.wait(60) == 9


def test_a_client_whose_programs_parent_is_gone_ends_the_program_and_says_killed(tmp_path):
    path = str(tmp_path / "socket")
    program = subprocess.Popen(["sleep", "3600"])
    with fork_client.listen_at(path) as listener:
        client = subprocess.Popen([sys.executable, "-IS", fork_client.__file__, path, "python", "train.py"])
        connection, _ = listener.accept()
        with connection:
            connection.sendall(fork_client.ANSWER % program.pid)
            while not connection.recv(1 << 20).endswith(fork_client.GO):
                pass
    assert client.wait(60) == 137
    assert program.wait(60) == -signal.SIGKILL


def test_a_client_that_nobody_answers_becomes_the_program(tmp_path):
    path = str(tmp_path / "socket")
    words = [sys.executable, "-IS", fork_client.__file__, path, "/bin/sh", "-c", "echo $$; exit 5"]
    with fork_client.listen_at(path) as listener:
        client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        listener.accept()[0].close()
    printed, _ = client.communicate(timeout=60)
    assert (int(printed), client.returncode) == (client.pid, 5)
