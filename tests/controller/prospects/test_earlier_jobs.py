"""How long a job trains, as an earlier one of the same name tells it."""

from datetime import datetime, timezone

import msgspec
import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.controller.prospects import earlier_jobs
from cloudspot.controller.prospects.earlier_jobs import (
    MAX_HISTORIES,
    MAX_SUMMARIES,
    find_earlier,
    length_seconds,
)
from cloudspot.errors import TransientError
from cloudspot.jobfile.spec import spec_to_json
from cloudspot.jobstore.jobs.job_lists import note_recent
from cloudspot.jobstore.jobs.reader import write_summary
from cloudspot.jobstore.layout.records import Phase
from cloudspot.story.report import summarise

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


@pytest.fixture
def trained(records):
    """``trained(...)``: a job that made 100 steps, from its 30th second to its 1030th."""

    def make(**changes):
        phases = tuple(
            Phase(state=state, generation=generation, at=records.at(at))
            for state, generation, at in (("ready", 0, 20), ("running", 1, 25), ("training", 1, 30))
        )
        first = records.launch(
            heartbeats={0: records.heartbeat(at=900.0, step=100, steps_total=100, phases=phases)},
            exits={0: records.exit("succeeded", at=1030.0, step=100)},
            certificates={"i-1-0": records.certificate(started=0.0, ended=1040.0)},
        )
        fields = {"generations": (records.generation(1),), "finished": records.finished(at=1040.0)}
        return records.history(first, **{**fields, **changes})

    return make


def test_a_job_that_succeeded_tells_the_time_in_which_it_made_steps_that_counted(records, trained):
    assert length_seconds(trained(), NOW) == pytest.approx(1000.0)


def test_a_job_that_ended_early_tells_its_steps_at_the_pace_that_it_had(records, trained):
    stopped = trained(finished=records.finished("stopped", at=1040.0))
    (launch,) = stopped.launches
    beat = records.change(launch.heartbeats[0], steps_total=400)
    exits = {0: records.exit("stopped", at=1030.0, step=100)}
    stopped = records.change(stopped, launches=(records.change(launch, heartbeats={0: beat}, exits=exits),))
    assert length_seconds(stopped, NOW) == pytest.approx(4000.0)


def test_a_job_that_never_trained_tells_nothing(records):
    assert length_seconds(records.history(), NOW) is None
    assert length_seconds(records.history(records.launch(outcome="failed")), NOW) is None
    lost = records.launch(outcome="lost")
    assert length_seconds(records.history(lost, generations=(records.generation(1),)), NOW) is None


# --- which job ----------------------------------------------------------------------------------


class Town:
    """A store of jobs that have ended; their records are handed over as they are."""

    def __init__(self, records, trained, monkeypatch):
        self.records, self.trained, self.store = records, trained, InMemoryStore()
        self.histories, self.read = {}, []
        town = self

        class Reader:
            def __init__(self, _store, job_id):
                self.job_id = job_id

            def read(self):
                town.read.append(self.job_id)
                return town.histories[self.job_id]

        monkeypatch.setattr(earlier_jobs, "HistoryReader", Reader)

    def add(self, job_id, minutes, *, name="digits", provider="sim", outcome="succeeded", **tables):
        history = self.trained(finished=self.records.finished(outcome, at=1040.0))
        spec = spec_to_json(self.records.spec(name=name, **tables))
        submission = msgspec.structs.replace(
            history.first_submission,
            job_id=job_id,
            at=self.records.at(60 * minutes - 6000),
            spec=spec,
            provider=provider,
        )
        if outcome != "succeeded":
            (launch,) = history.launches
            exits = {0: self.records.exit(outcome, at=1030.0, step=100)}
            history = self.records.change(history, launches=(self.records.change(launch, exits=exits),))
        history = self.records.change(history, first_submission=submission, submission=submission)
        self.histories[job_id] = history
        note_recent(self.store, submission)
        write_summary(self.store, summarise(history, NOW))

    def find(self, **tables):
        return find_earlier(self.store, self.records.spec(**tables), "sim", NOW)


@pytest.fixture
def town(records, trained, monkeypatch):
    return Town(records, trained, monkeypatch)


def test_the_newest_job_of_the_name_tells(town):
    town.add("digits-aaaa", 1)
    town.add("digits-bbbb", 2)
    town.add("other-cccc", 3, name="other")
    town.add("digits-large-dddd", 4, name="digits-large")
    found = town.find()
    assert (found.job_id, found.length_seconds, found.is_same_run) == (
        "digits-bbbb",
        pytest.approx(1000.0),
        True,
    )
    assert found.start_seconds == pytest.approx(20.0)
    assert town.read == ["digits-bbbb"]


def test_a_job_that_has_succeeded_comes_before_newer_ones_that_have_not(town):
    town.add("digits-aaaa", 1)
    town.add("digits-bbbb", 2, outcome="stopped")
    assert town.find().job_id == "digits-aaaa"


@pytest.mark.parametrize(
    "other", [{"provider": "aws"}, {"nodes": 2}, {"procs_per_node": 2}, {"resources": {"cpus": 8}}]
)
def test_a_job_on_other_machines_tells_nothing(town, other):
    town.add("digits-aaaa", 1, **other)
    assert town.find() is None


def test_a_job_with_other_arguments_tells_its_length_and_that_they_differ(town):
    town.add("digits-aaaa", 1)
    found = town.find(run={"entrypoint": "train.py", "args": ["--epochs", "9"]})
    assert (found.job_id, found.is_same_run) == ("digits-aaaa", False)


def test_few_records_are_read_however_many_jobs_there_are(town):
    for number in range(2 * MAX_SUMMARIES):
        town.add(f"digits-{number:04}", number, nodes=3)
    assert town.find() is None
    assert len(town.read) == MAX_HISTORIES


@pytest.mark.full
def test_without_an_answer_of_the_store_nothing_is_known(town):
    town.add("digits-aaaa", 1)

    def fail(*_arguments, **_options):
        raise TransientError("the store is away")

    town.store.list_page = fail
    assert town.find() is None
