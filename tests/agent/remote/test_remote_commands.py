"""What people run on a node beside its training: a real agent, real processes, a store in a directory."""

import threading
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from cloudspot.agent.remote import remote_commands, running_command
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.jobstore.access.stored_records import create_record, find_record, read_record
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import RemoteAnswer, RemoteCall, RemoteCommand, Seat
from cloudspot.jobstore.remote import calling
from cloudspot.jobstore.remote import channel as channel_module
from cloudspot.jobstore.remote.calling import call_node
from cloudspot.jobstore.remote.channel import ChannelEnded
from cloudspot.jobstore.remote.relay import Frame, Kind
from cloudspot.model import PreemptionNotice

JOB = "digits-1"
SEAT = Seat(1, 0)
WAIT = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(remote_commands, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(calling, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(channel_module, "FIRST_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(channel_module, "IDLE_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(channel_module, "BUSY_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(running_command, "CLOSE_SECONDS", 0.5)


@pytest.fixture
def node(bench, wait_until):
    """``node(script, **tables)``: a node of a job whose script runs; it ends with the test."""
    lives = []

    def start(script=WAIT, *, state="running", **tables):
        life = bench.life(script, **tables)
        thread = threading.Thread(target=life.run, daemon=True)
        thread.start()
        lives.append((life, thread))
        wait_until(lambda: life.context.status.state == state)
        return life

    yield start
    for life, thread in lives:
        life.context.orders.give(superseded="the test is over")
        thread.join(30)
        wait_until(lambda life=life: not any(one.is_alive for one in life.remote._running))


@pytest.fixture
def call(bench, wait_until):
    """``call(*words)``: a person who has the node run a command, and leaves with the test."""
    people = []

    def start(*words, **options):
        people.append(Person(call_node(bench.store, JOB, SEAT, words, **options)))
        return people[-1]

    yield start
    for one in people:
        one.process.close()


class Person:
    """Somebody who has called a node, and what they have heard."""

    def __init__(self, process):
        self.process = process
        self.output = b""

    def hear(self, until=None):
        """Take in frames until the text has come, or to the command's end; return its status."""
        end = time.monotonic() + 20
        while self.process.status is None and (until is None or until not in self.output):
            assert time.monotonic() < end, self.output
            frame = self.process.frames()
            if frame is not None:
                self.output += frame.data
        return self.process.status

    def say(self, text):
        self.process.channel.send(Frame(Kind.INPUT, text))


def left(bench):
    """The calls, and the objects that are relayed."""
    below = (keys.remote_prefix(JOB), keys.nodes_prefix(JOB))
    listed = [meta.key for prefix in below for meta in bench.store.list_objects(prefix)]
    return [key for key in listed if keys.recognize(key, keys.REPORTS) is None]


def recorded(bench):
    """The commands that the job's story tells of."""
    listed = bench.store.list_objects(keys.remote_commands_prefix(JOB))
    return [read_record(bench.store, meta.key, RemoteCommand) for meta in listed]


def test_a_command_has_the_trainings_directory_and_variables(bench, node, call, wait_until):
    node(run={"env": {"MINE": "4"}})
    one = call("sh", "-c", 'read line; echo "$line $MINE"; pwd; exit 3')
    one.say(b"hello\n")
    assert one.hear() == 3
    assert one.output.decode().split("\n")[:2] == ["hello 4", str(bench.root / "machine" / "work")]
    one.process.close()
    wait_until(lambda: not left(bench))


def test_the_jobs_story_and_log_say_who_has_run_what(bench, node, call, wait_until, monkeypatch, caplog):
    monkeypatch.setattr(calling.getpass, "getuser", lambda: "ann\x1b[31m")
    node()
    one = call("echo", "a b")
    assert one.hear() == 0
    one.process.close()
    wait_until(lambda: any(one.ended for one in recorded(bench)))
    (told,) = recorded(bench)
    assert (told.words, told.status, told.why, told.has_terminal) == (("echo", "a b"), 0, "", False)
    assert told.user.startswith("ann")
    assert "runs a command on this node: echo 'a b'" in caplog.text
    assert "\x1b" not in caplog.text


def test_several_run_at_once_and_not_too_many(bench, node, call, monkeypatch):
    monkeypatch.setattr(remote_commands, "MAX_COMMANDS", 2)
    node()
    both = [call("sh", "-c", "read line; echo $line") for _ in range(2)]
    with pytest.raises(CloudspotError, match="2 commands run on the node already"):
        call("true")
    for number, one in enumerate(both):
        one.say(f"{number}\n".encode())
        assert one.hear() == 0
        assert one.output == f"{number}\n".encode()
        one.process.close()


def test_a_notice_ends_a_command_at_once_and_says_so(bench, node, call):
    life = node()
    one = call("sh", "-c", "trap '' TERM HUP; echo ready; while :; do sleep 0.1; done")
    one.hear(b"ready")
    began = time.monotonic()
    bench.provider.notices.notice = PreemptionNotice(deadline=life.context.now() + timedelta(seconds=3))
    with pytest.raises(ChannelEnded, match="the machine is being taken"):
        one.hear(b"never")
    assert time.monotonic() - began < 5


def test_whoever_is_gone_leaves_no_process_and_no_object(bench, node, call, monkeypatch, wait_until):
    node()
    one = call("sh", "-c", "echo $$; exec sleep 600")
    one.hear(b"\n")
    monkeypatch.setattr(channel_module, "SILENT_SECONDS", 0.5)
    one.process.channel.end("killed")
    wait_until(lambda: not left(bench))
    assert not Path(f"/proc/{int(one.output)}").exists()
    (told,) = recorded(bench)
    assert (told.status, told.why) == (None, "the other side has been silent for 0 s")


def test_a_job_may_forbid_it_and_its_agent_heeds_its_own_copy(bench, node, call):
    life = node(run={"exec": False})
    with pytest.raises(CloudspotError, match=r"run\.exec is false there"):
        call("true")
    # Somebody who forges what the heartbeat says of the agent gets no answer either.
    asked = RemoteCall(
        launch=1, rank=0, instance_id="m-1", agent=life.context.agent, user="x", words=("true",),
        at=life.context.now(), writer="5" * 16,
    )  # fmt: skip
    bench.store.put(keys.remote_call(JOB, *SEAT), codec.encode(asked))
    time.sleep(0.5)
    assert left(bench) == [keys.remote_call(JOB, *SEAT)]


@pytest.mark.parametrize(
    "change", [{"agent": "an earlier one"}, {"instance_id": "m-9"}, {"launch": 2}, {"rank": 1}], ids=str
)
def test_a_call_for_another_agent_machine_or_node_does_nothing(bench, node, call, change):
    life = node()
    asked = RemoteCall(
        launch=1, rank=0, instance_id="m-1", agent=life.context.agent, user="x",
        words=("touch", str(bench.root / "run")), at=life.context.now(), writer="5" * 16,
    )  # fmt: skip
    bench.store.put(keys.remote_call(JOB, *SEAT), codec.encode(msgspec.structs.replace(asked, **change)))
    time.sleep(0.5)
    assert not (bench.root / "run").exists()
    assert not recorded(bench)


def test_a_call_that_comes_again_runs_nothing_again(bench, node, call, wait_until):
    node()
    count = bench.root / "count"
    puts = []
    put = bench.store.put

    def keep(key, data, **options):
        if key == keys.remote_call(JOB, *SEAT):
            puts.append(data)
        put(key, data, **options)

    bench.store.put = keep
    one = call("sh", "-c", f"echo once >> {count}")
    assert one.hear() == 0
    one.process.close()
    wait_until(lambda: not left(bench))
    put(keys.remote_call(JOB, *SEAT), puts[0])
    time.sleep(0.5)
    assert count.read_text() == "once\n"
    assert len(recorded(bench)) == 1


def test_an_answer_is_followed_by_its_command_whatever_the_store_says(bench, node, call, monkeypatch):
    """The person would wait for it until they took the node for gone."""
    node()
    outcomes = iter([TransientError("it is unknown whether it was created")])
    delete = bench.store.delete

    def create(store, key, record):
        standing = create_record(store, key, record)
        for error in outcomes:
            raise error
        return standing

    def refuse(key):
        if key == keys.remote_call(JOB, *SEAT):
            raise TransientError("it was not deleted")
        delete(key)

    monkeypatch.setattr(remote_commands, "create_record", create)
    monkeypatch.setattr(bench.store, "delete", refuse)
    one = call("echo", "run")
    assert one.hear() == 0
    assert one.output == b"run\n"
    assert next(outcomes, None) is None


def test_a_node_that_is_not_ready_says_so(bench, node, call, wait_until):
    node(run={"setup": "sleep 600"}, state="setup")
    wait_until((bench.root / "machine" / "setup.processes").exists)
    with pytest.raises(CloudspotError, match="not ready for programs yet: setup"):
        call("true")


def test_a_node_that_does_not_answer_is_named_and_nothing_is_left(bench, node, call, monkeypatch):
    life = node()
    life.remote.stop()
    time.sleep(0.2)
    monkeypatch.setattr(calling, "ANSWER_SECONDS", 0.5)
    with pytest.raises(CloudspotError, match=r"node 1\.0 of job digits-1 has not answered"):
        call("true")
    assert not left(bench)


def test_another_agent_ends_what_an_earlier_one_has_left(bench, node, call, wait_until):
    bench.node()
    key = keys.remote_output(JOB, *SEAT, "6" * 16, 0)
    bench.store.put(key, b"of an earlier agent")
    node()
    wait_until(lambda: not left(bench))


def test_a_slow_reader_has_all_of_the_output_and_the_status(bench, node, call, monkeypatch):
    monkeypatch.setattr(running_command, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(channel_module, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(channel_module, "_ACKNOWLEDGED_BYTES", 500)
    node()
    one = call("sh", "-c", "head -c 200000 /dev/zero; exit 5")
    time.sleep(1.0)
    assert one.hear() == 5
    assert len(one.output) == 200000


def test_a_call_that_is_given_up_before_its_answer_runs_nothing(bench, node, call, wait_until, monkeypatch):
    monkeypatch.setattr(remote_commands, "LOOK_SECONDS", 0.4)
    node()
    key = keys.remote_call(JOB, *SEAT)

    def find(store, found_key, record_type):
        # Ctrl-C, while the call is there and not answered.
        if record_type is RemoteAnswer and store.list_page(key, limit=1).objects:
            raise KeyboardInterrupt
        return find_record(store, found_key, record_type)

    monkeypatch.setattr(calling, "find_record", find)
    with pytest.raises(KeyboardInterrupt):
        call("touch", str(bench.root / "run"))
    wait_until(lambda: not left(bench))
    time.sleep(0.8)
    assert not (bench.root / "run").exists()


def test_whoever_leaves_ends_the_command_at_once_though_it_reads_nothing(bench, node, call, wait_until):
    node()
    one = call("sh", "-c", "echo ready; exec sleep 600")
    one.hear(b"ready")
    for _ in range(40):
        one.say(b"x" * (100 << 10))
    one.process.close()
    wait_until(lambda: any(one.ended for one in recorded(bench)))
    assert recorded(bench)[0].why == "the user has left"
    wait_until(lambda: not left(bench))


def test_a_signal_reaches_a_program_that_reads_none_of_much_input(bench, node, call):
    node()
    one = call("sh", "-c", "echo ready; exec sleep 600")
    one.hear(b"ready")
    for _ in range(30):
        one.say(b"x" * (100 << 10))
    one.process.channel.hurry(Frame(Kind.SIGNAL, b"TERM"))
    assert one.hear() == 128 + 15


def test_a_call_whose_nonce_is_a_path_is_not_heeded(bench, node, call):
    life = node()
    asked = RemoteCall(
        launch=1, rank=0, instance_id="m-1", agent=life.context.agent, user="x", words=("true",),
        at=life.context.now(), writer="../victim",
    )  # fmt: skip
    assert not life.remote._is_ours(asked)
    assert life.remote._is_ours(msgspec.structs.replace(asked, writer="5" * 16))


def test_a_node_ends_a_command_after_its_own_number_of_requests(bench, node, call, monkeypatch, wait_until):
    monkeypatch.setattr(running_command, "DEFAULT_MAX_REQUESTS", 7)
    life = node()
    call("sleep", "600")
    wait_until(lambda: life.remote._running)  # the answer comes a moment before
    assert life.remote._running[0]._channel.requests.most == 7
