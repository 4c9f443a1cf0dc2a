"""Files of any size in bounded memory."""

import pytest

from cloudspot.agent.delivery.framework_checkpoints import finish_of
from cloudspot.agent.delivery.on_demand_fetch import _read
from cloudspot.agent.rank_reports import RankError, read_report
from cloudspot.agent.training.launching.kept_setup import _digest
from cloudspot.agent.training.launching.trainer import Trainer, log_tail
from cloudspot.errors import CloudspotError
from cloudspot.host.bounded_reads import read_at_most, read_end
from cloudspot.train import handoff


def test_a_file_is_read_whole_up_to_its_limit_and_no_further(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert (read_at_most(path, 5), read_end(path, 5), read_end(path, 9)) == (b"12345", b"12345", b"12345")
    assert (read_end(path, 2), read_end(path, 0)) == (b"45", b"")
    with pytest.raises(ValueError, match=r"^it is longer than 4 bytes$"):
        read_at_most(path, 4)
    path.write_bytes(b"")
    assert (read_at_most(path, 4), read_end(path, 4)) == (b"", b"")


def test_the_end_of_a_text_begins_with_a_whole_character(tmp_path):
    path = tmp_path / "file"
    path.write_text("🙂é")
    ends = [read_end(path, num_bytes).decode() for num_bytes in range(1, 8)]
    assert ends == ["", "é", "é", "é", "é", "🙂é", "🙂é"]
    path.write_bytes(b"\x80\x80\x80\x80")
    assert (read_end(path, 4), read_end(path, 3)) == (b"\x80\x80\x80\x80", b""), "not UTF-8"


def test_the_end_of_a_huge_log_takes_little_memory(huge_file):
    log = huge_file(b"\nTraceback\nValueError: boom\n")
    assert log_tail(log)[-2:] == ("Traceback", "ValueError: boom")


@pytest.mark.full
def test_no_huge_file_that_a_training_has_left_is_read(huge_file, tmp_path):
    """Each of these is read by the agent, and the script may write to it."""
    huge = huge_file()
    assert read_report(huge, RankError) is None
    for read in (
        _read,
        handoff.read_json,
        lambda path: handoff.read_exited(_linked(tmp_path, handoff.exited_path(tmp_path, 0), path), 0),
        lambda path: Trainer(_linked(tmp_path, tmp_path / "trainer.status", path), 1).poll(),
    ):
        with pytest.raises((ValueError, CloudspotError), match="it is longer than"):
            read(huge)
    Trainer(_linked(tmp_path, handoff.worker_pid_path(tmp_path, 0), huge), 1).dump_stacks([0])
    assert _digest(huge) is None
    assert not finish_of(
        _linked(tmp_path, tmp_path / "trainer_state.json", huge), [("trainer_state.json", 1 << 32, 1)]
    )


def _linked(directory, path, huge):
    path.symlink_to(huge)
    return directory
