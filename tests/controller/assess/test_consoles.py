"""What machines say that do not come up: when it is read, and what of it."""

from __future__ import annotations

import pytest

from cloudspot.controller.assess.consoles import MAX_CHARS, Consoles, tail_of
from cloudspot.controller.assess.observed import ConsoleTail
from cloudspot.errors import AuthError, CloudspotError, TransientError

GIVEN_UP = "cloudspot: this machine cannot serve its job: the image has no python3"


@pytest.mark.parametrize(
    ("console", "cause", "line"),
    [
        ("", "", ""),
        ("Linux version 6.8\r\nStarting network...\r\n", "", "Starting network..."),
        # As cloud-init and Google's guest agent write a script's lines.
        (f"[   31.4] cloud-init[812]: {GIVEN_UP}\r\n[   31.5] done\r\n", "the image has no python3", None),
        (
            "cloudspot: the agent could not be installed: 403: trying again in 1 s\nlogin: ",
            "",
            "the agent could not be installed: 403: trying again in 1 s",
        ),
        (f"{GIVEN_UP}\x1b[31m\x07!", "the image has no python3 [31m !", None),
        ("cloudspot: " + "x" * 9999, "", "x" * MAX_CHARS),
    ],
)
def test_the_last_words_are_those_of_the_boot_script_wherever_they_stand(console, cause, line):
    expected = f"this machine cannot serve its job: {cause}" if line is None else line
    assert tail_of(console) == ConsoleTail(cause, expected)


class Provisioner:
    """Says what the test gives, and notes whom it was asked about."""

    def __init__(self, said=""):
        self.said = said
        self.asked = []

    def console(self, instance):
        self.asked.append(instance.id)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class Watch:
    """Looks at a launch of two machines that have not come up."""

    def __init__(self, records, said="", *, has_consoles=True):
        self.records = records
        self.provisioner = Provisioner(said)
        self.consoles = Consoles(self.provisioner, has_consoles=has_consoles)
        self.instances = [records.instance(), records.instance("i-1-1", rank=1)]
        self.slots = {}

    def look(self, at):
        """Return what is told at this moment."""
        records, told = self.records, []
        launch = records.launch(intent=records.intent(num_nodes=2), claimed=False)
        history = records.history(records.change(launch, slots=self.slots))
        while True:
            due = self.consoles.next_due(history, self.instances, now=records.at(at), monotonic=at)
            if due is None:
                return [one for one in told if one is not None]
            told.append(self.consoles.read(due, monotonic=at))


def test_a_provider_that_declares_no_consoles_is_not_asked_for_one(records):
    watch = Watch(records, "up", has_consoles=False)
    assert [watch.look(float(at)) for at in range(0, 61, 3)] == [[]] * 21
    assert watch.provisioner.asked == []


def test_a_console_is_read_now_and_then_while_its_machine_is_waited_for(records):
    watch = Watch(records)
    for at in range(0, 61, 3):
        watch.look(float(at))
    assert watch.provisioner.asked == ["i-1-0", "i-1-1", "i-1-0"]  # at 30, 45 and 60 s


def test_who_has_claimed_its_seat_is_not_read(records):
    watch = Watch(records)
    watch.slots = {0: records.slot("i-1-0")}
    for at in (30.0, 60.0):
        watch.look(at)
    assert watch.provisioner.asked == ["i-1-1", "i-1-1"]


def test_machines_that_have_ended_are_read_at_once_each_once(records):
    watch = Watch(records, said=GIVEN_UP)
    watch.instances = [
        records.instance(name, rank=rank, state="ended") for rank, name in enumerate(("i-1-0", "i-1-1"))
    ]
    for at in (1.0, 2.0, 60.0):
        watch.look(at)
    assert watch.provisioner.asked == ["i-1-0", "i-1-1"]
    assert watch.consoles.tails["i-1-1"].cause == "the image has no python3"


def test_an_owner_that_ended_without_a_word_is_read_once_at_once_unless_its_end_is_known(records):
    watch = Watch(records, said="cloudspot: step 7\n")
    watch.slots = {rank: records.slot(f"i-1-{rank}") for rank in range(2)}
    watch.instances = [
        records.instance("i-1-0", state="ended", end_reason="unknown"),
        records.instance("i-1-1", rank=1, state="ended", end_reason="reclaimed"),
    ]
    assert [watch.look(at) for at in (1.0, 60.0)] == [[], []]
    assert watch.provisioner.asked == ["i-1-0"]
    assert watch.consoles.tails["i-1-0"] == ConsoleTail(line="step 7", is_final=True)


def test_a_machine_whose_provider_says_why_it_has_not_started_is_read_before_its_time(records):
    watch = Watch(records, said="the image cannot be pulled")
    watch.instances = [records.instance(state="pending", detail="the image cannot be pulled")]
    assert watch.look(1.0) == ["the console of i-1-0 shows: the image cannot be pulled"]


def test_what_is_new_is_told_once_and_a_cause_is_left_to_the_void_seat(records):
    watch = Watch(records, said="cloudspot: trying again in 1 s")
    watch.instances.pop()
    assert watch.look(30.0) == ["the console of i-1-0 shows: trying again in 1 s"]
    assert not watch.consoles.tails["i-1-0"].is_final
    assert watch.look(45.0) == []
    watch.provisioner.said = GIVEN_UP
    assert watch.look(60.0) == []
    assert watch.consoles.tails["i-1-0"].cause == "the image has no python3"
    watch.look(75.0)
    assert len(watch.provisioner.asked) == 3  # it says no more


def test_what_is_said_by_turns_is_told_once_each(records):
    watch = Watch(records)
    watch.instances.pop()
    told = []
    for number in range(6):
        watch.provisioner.said = ("ErrImagePull", "ImagePullBackOff")[number % 2]
        told += watch.look(30.0 + 15 * number)
    assert told == [
        "the console of i-1-0 shows: ErrImagePull",
        "the console of i-1-0 shows: ImagePullBackOff",
    ]


@pytest.mark.parametrize("error", [TransientError("503"), CloudspotError("no console is kept")])
def test_a_console_that_cannot_be_read_stops_nothing(records, error):
    watch = Watch(records, said=error)
    assert [watch.look(at) for at in (30.0, 45.0)] == [[], []]
    assert watch.consoles.tails == {}


def test_a_missing_right_is_told_once_and_no_console_is_asked_for_any_more(records):
    watch = Watch(records, said=AuthError("access denied: ec2:GetConsoleOutput"))
    assert watch.look(30.0) == ["the console of i-1-0 cannot be read: access denied: ec2:GetConsoleOutput"]
    assert watch.look(60.0) == []
    assert watch.provisioner.asked == ["i-1-0"]
