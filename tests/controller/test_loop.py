"""The real loop on a simulated cloud where nothing goes wrong by itself."""

import itertools
import math
import random
import threading
from datetime import timedelta

import msgspec
import pytest
from support.worlds.simcloud import SimCloud, SimProvider
from support.worlds.simnodes import Script, SimAgents
from support.worlds.simulation import SimStore, World
from support.worlds.stopped_calls import Stops, until

from cloudspot.calls import Refused, TerminateResult
from cloudspot.controller import act
from cloudspot.controller.actions import Announce, Append, Create, OpenLaunch, Postpone, Terminate, VoidSeat
from cloudspot.controller.clock import Clock
from cloudspot.controller.loop import (
    COPY_SECONDS,
    END_LIMIT_SECONDS,
    MAX_BACKOFF_SECONDS,
    PRICE_SECONDS,
    SUMMARY_REFRESH_SECONDS,
    SUMMARY_SECONDS,
    Controller,
    Driver,
)
from cloudspot.controller.outbox import Outbox
from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    JobNotFound,
    PluginFault,
    ProvisionError,
    QuotaError,
    TransientError,
)
from cloudspot.jobstore.access.store_clock import StoreClock
from cloudspot.jobstore.jobs.reader import HistoryReader, read_summary
from cloudspot.jobstore.jobs.removal import remove_job
from cloudspot.jobstore.jobs.submission import _Secrets, request_stop
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Commit, Finished, Generation, Intent, Resumed, Submission
from cloudspot.jobstore.nodes.settled_launches import find_settled
from cloudspot.model import EndReason, InstanceState, LaunchRequest
from cloudspot.story import ledger
from cloudspot.story.events import EventKind
from cloudspot.story.ledger import bill
from cloudspot.story.outcomes import launch_end

JOB = "digits-1"


class Cloud(SimCloud):
    """The simulated cloud, with errors on demand and a record of what was asked."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.errors = {}
        self.terminated = []
        self.refused = ()
        self.announced = []
        self.tokens = []
        self.released = []
        self.consoles = {}
        self.has_store_tags = True
        self.store_urls = {}

    def _meet(self, call):
        error = self.errors.get(call)
        if isinstance(error, list):
            error = error.pop(0) if error else None
        if error is not None:
            raise error

    def render(self, group):
        request = super().render(group)
        return LaunchRequest(provider="sim", body={**request.body, "store_url": group.store_url})

    def created(self, request, *, token):
        self.tokens.append((request, token))
        self._meet("create")
        created = super().created(request, token=token)
        self.store_urls.update({one.id: request.body["store_url"] for one in created})
        return self._tagged(created)

    def listed(self, *, job_id=None):
        self._meet("instances")
        return self._tagged(super().listed(job_id=job_id))

    def _tagged(self, instances):
        urls = self.store_urls if self.has_store_tags else {}
        return [msgspec.structs.replace(one, store_url=urls.get(one.id, "")) for one in instances]

    def offered(self, resources):
        self._meet("offers")
        return super().offered(resources)

    def terminate(self, request):
        self.terminated.append(request.instance_ids)
        return TerminateResult(refused=self.refused) if self.refused else super().terminate(request)

    def release(self, job_id, *, store_url):
        assert store_url.startswith("memory://")
        self.released.append(job_id)
        self._meet("release")

    def console(self, instance):
        self._meet("console")
        return self.consoles.get(instance.launch, "")

    def announce(self, instances, facts):
        self.announced.append((tuple(one.id for one in instances), dict(facts)))
        self._meet("announce")


class House:
    """A job in a store, a cloud, and as many controllers as one likes."""

    def __init__(self, records, *, script=None, **tables):
        self.world = World(random.Random(0), calm_at=0.0)
        self.store = SimStore(self.world)
        history = records.history()
        spec = {**history.submission.spec, **tables}
        self.store.put(keys.spec(JOB), codec.encode(records.change(history.submission, spec=spec)))
        self.store.put(keys.index(JOB), b"")
        self.store.put(keys.secrets(JOB, 0), b"{}")
        nodes = tables.get("nodes", {"min": 1, "max": 1})
        self.cloud = Cloud(
            self.world,
            max_nodes=nodes["max"],
            node=SimAgents(
                self.world,
                lambda: self.cloud,
                lambda: self.newest_store,
                script=script or Script(doubt=0.0, num_steps=40),
                min_nodes=nodes["min"],
            ),
            is_rightful=lambda machine: False,
        )
        self.slept = []
        self.stores = {self.store.url: self.store}

    @property
    def newest_store(self):
        """Of the launch that is being created."""
        url = self.cloud.tokens[-1][0].body["store_url"]
        return next(store for store in self.stores.values() if store.canonical_url == url)

    def add_store(self, url):
        """Return another store of the same account, with a job of the same id."""
        store = SimStore(self.world)
        store.url = store.inner.url = url
        submission = codec.decode(self.store.get(keys.spec(JOB)), Submission)
        store.put(keys.spec(JOB), codec.encode(msgspec.structs.replace(submission, writer="another")))
        store.put(keys.index(JOB), b"")
        store.put(keys.secrets(JOB, 0), b"{}")
        self.stores[url] = store
        return store

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.world.sleep(seconds)

    def controller(self, store=None):
        return Controller(
            store or self.store, JOB, SimProvider(self.cloud), clock=self.world.clock(), sleep=self.sleep
        )

    def stopping(self):
        """Return a controller, and the places where it stops."""
        stops = Stops(self.store, SimProvider(self.cloud))
        clock = self.world.clock()
        return stops, Controller(stops.store, JOB, stops.provider, clock=clock, sleep=self.sleep)

    def steps(self):
        """Return the requests of one tick of a new controller, before each is made."""
        stops, controller = self.stopping()
        return stops.steps(controller.tick)

    def run(self, seconds):
        self.world.run(until=self.world.time + seconds)

    @property
    def history(self):
        return HistoryReader(self.store, JOB).read()

    @property
    def journal(self):
        return Journal(self.store, JOB).read()

    def machine(self, launch=1):
        return next(one for one in self.cloud.machines.values() if one.launch == launch)


@pytest.fixture
def house(records):
    return House(records)


def outcomes(history):
    return [launch_end(launch).outcome for launch in history.launches]


def kinds(events):
    return [event.kind for event in events]


def types(actions):
    return [type(action) for action in actions]


@pytest.mark.full
def test_a_job_runs_to_its_end_and_leaves_nothing_behind(house):
    events = []
    history = house.controller().run_until_finished(lambda tick: events.extend(tick.events))
    assert history.finished.outcome == "succeeded"
    types = [type(record) for record in house.journal]
    assert (types[0], types[-1], set(types[1:-1])) == (Intent, Finished, {Generation, Commit})
    assert [one.is_settled for one in house.history.launches] == [True]
    assert house.machine().has_ended
    assert list(house.store.list_objects(keys.secrets(JOB, 0))) == []
    assert read_summary(house.store, JOB).state == "succeeded"
    told = [
        kind
        for kind in kinds(events)
        if kind in {EventKind.LAUNCHED, EventKind.STARTED, EventKind.LAUNCH_ENDED, EventKind.JOB_FINISHED}
    ]
    assert told == [EventKind.LAUNCHED, EventKind.STARTED, EventKind.LAUNCH_ENDED, EventKind.JOB_FINISHED]


@pytest.mark.full
def test_the_end_is_told_before_the_secrets_of_its_urls_go_and_no_notifier_delays_or_changes_it(records):
    lasted, sent, held = [], [], threading.Event()

    def send(through, message, urls, *, own):
        assert held.wait(30)
        sent.append((message.title, urls))
        return {"urls[0] (json://)": "answered 500"}

    for notify in ({}, {"urls": ["json://${TOKEN}@host"]}):
        house = House(records, notify=notify)
        house.store.put(keys.secrets(JOB, 0), codec.encode(_Secrets(values={"TOKEN": "word"})))
        outbox = Outbox(send)
        controller = Controller(
            house.store,
            JOB,
            SimProvider(house.cloud),
            clock=house.world.clock(),
            sleep=house.sleep,
            driver=Driver(outbox=outbox),
        )
        while not house.history.commits:
            controller.run_pass()
            house.run(5)
        house.cloud.end(house.machine(), EndReason.RECLAIMED)
        history = controller.run_until_finished()
        assert outcomes(history) == ["reclaimed", "succeeded"]
        assert list(house.store.list_objects(keys.secrets(JOB, 0))) == []
        lasted.append(history.finished.at - history.submission.at)
        if not notify:
            assert list(house.store.list_objects(keys.notified_prefix(JOB))) == []
    # Each request takes a while in this world; no time of a notifier's is in it.
    assert abs((lasted[1] - lasted[0]).total_seconds()) < 10
    assert sent == []
    held.set()
    outbox.wait(30)
    urls = {"urls[0] (json://)": "json://word@host"}
    titles = {f"{JOB}: {kind}" for kind in ("reclaimed", "relaunched", "finished")}
    assert sorted(sent) == [(title, urls) for title in sorted(titles)]
    assert {line for _, line in outbox.take_failures()} == {
        f"notify: urls[0] (json://) answered 500; not delivered: {title}" for title in titles
    }


def test_a_driver_that_has_nothing_to_do_lists_only_the_nodes_and_acts_on_all_records(house, monkeypatch):
    controller, reads = house.controller(), []
    whole, glance = HistoryReader.read, HistoryReader.glance
    monkeypatch.setattr(HistoryReader, "read", lambda reader: reads.append("read") or whole(reader))
    monkeypatch.setattr(
        HistoryReader, "glance", lambda reader, **kind: reads.append("glance") or glance(reader, **kind)
    )
    while not controller.tick().history.generations:
        house.sleep(1)
    quiet = controller.tick()
    while quiet.events or quiet.acted:
        quiet = controller.tick()
    reads.clear()
    for _ in range(12):
        controller.tick()
    assert reads == [*["glance"] * 5, "read"] * 2
    # Another driver intends a launch and creates it: its machine is no stranger, though the glance tells nothing of it.
    other = house.controller()
    house.cloud.end(house.machine(), EndReason.RECLAIMED)
    house.sleep(1)
    while len(house.cloud.machines) == 1:
        other.tick()
        house.sleep(1)
    tick = controller.tick()
    assert Terminate not in types(tick.actions), tick.actions


@pytest.mark.full
def test_a_reclaimed_job_is_launched_again_in_another_zone_and_resumes(house):
    controller = house.controller()
    while not house.history.commits:
        controller.run_pass()
        house.run(5)
    house.cloud.end(house.machine(), EndReason.RECLAIMED)
    history = controller.run_until_finished()
    assert outcomes(history) == ["reclaimed", "succeeded"]
    assert [one.intent.offer.zone for one in history.launches] == ["a", "b"]
    assert history.launches[1].intent.why == "reclaimed"
    assert history.generations[1].restore_from == history.commits[0].id


def test_the_intents_own_bytes_are_sent_again_with_its_token_by_every_controller(house):
    house.cloud.errors["create"] = [TransientError("lost"), TransientError("lost")]
    first = house.controller()
    for _ in range(3):
        tick = first.tick()
    assert tick.problems == ("lost",)
    second = house.controller()
    second.tick()
    second.tick()
    assert len(house.cloud.tokens) == 3
    assert all(sent == house.cloud.tokens[0] for sent in house.cloud.tokens)
    intent = house.journal[0]
    assert house.cloud.tokens[0] == (intent.request, intent.token)
    assert len(house.cloud.machines) == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(CapacityError("none"), "capacity"), (QuotaError("used"), "quota"), (ProvisionError("no"), "refused")],
)
def test_a_refusal_is_void_and_then_the_next_offer_is_tried(house, error, outcome):
    house.cloud.errors["create"] = [error]
    tick = house.controller().run_pass()
    history = house.history
    assert history.launches[0].slots[0].detail == f"{outcome}: {error}"
    end = launch_end(history.launches[0])
    assert (end.outcome, end.detail) == (outcome, str(error))
    assert [one.intent.offer.zone for one in history.launches] == ["a", "b"]
    assert (str(error) in [event.text for event in tick.events]) == (outcome == "quota")


def boots_in_vain(machine):
    """It claims no seat."""
    yield 3600.0


@pytest.fixture
def broken(house):
    """A job whose machines cannot run the agent, and say so."""
    house.cloud._node = boots_in_vain
    said = "cloudspot: this machine cannot serve its job: S3 answered 403 AccessDenied (request {})\r\n"
    house.cloud.consoles = {launch: said.format(f"4F{launch}") for launch in (1, 2)}
    return house


def test_two_machines_that_cannot_run_the_agent_for_the_same_reason_end_the_job(broken):
    """Each was billed for twenty minutes, up to four of them, and nobody learned why."""
    events = []
    began = broken.world.time
    history = broken.controller().run_until_finished(lambda tick: events.extend(tick.events))
    why = "S3 answered 403 AccessDenied (request 4F{})"
    assert (history.finished.outcome, history.finished.detail) == (
        "failed",
        f"failed twice in a row before the training began: {why.format(2)}",
    )
    assert [launch.slots[0].cause for launch in history.launches] == [why.format(1), why.format(2)]
    assert [event.text for event in events if "cannot run the agent" in event.text][:2] == [
        f"seat 1.0 is void: voided: {broken.machine().id} cannot run the agent: {why.format(1)}",
        f"launch 1 is over, voided: {broken.machine().id} cannot run the agent: {why.format(1)}",
    ]
    assert broken.world.time - began < 600.0


def test_a_single_pass_learns_it_from_a_machine_that_has_ended(broken):
    broken.controller().run_pass()
    broken.cloud.end(broken.machine(), EndReason.SELF)
    broken.run(60)
    broken.controller().run_pass()
    assert broken.history.launches[0].slots[0].cause == "S3 answered 403 AccessDenied (request 4F1)"


def test_the_last_line_of_a_machine_that_ended_without_a_word_is_kept_with_its_end(house):
    """As of a pod that was killed for memory: it was told to have vanished."""
    house.cloud.consoles = {1: "cloudspot: at step 7\n"}
    controller = house.controller()
    controller.run_pass()
    house.run(60)
    assert house.history.launches[0].claimed
    house.cloud.end(house.machine(), EndReason.UNKNOWN)
    events = list(controller.tick().events)
    (proof,) = house.history.launches[0].certificates.values()
    assert proof.detail == "its console ends with: at step 7"
    events += controller.tick().events
    told = f"node 1.0 ({house.machine().id}) ended: its console ends with: at step 7"
    assert told in [event.text for event in events]


@pytest.mark.full
def test_without_the_right_to_read_consoles_a_job_is_driven_as_before(broken):
    broken.cloud.errors["console"] = AuthError("access denied: console")
    events = []
    history = broken.controller().run_until_finished(lambda tick: events.extend(tick.events))
    assert history.finished.detail.startswith("failed 4 times in a row: the machine did not come up within")
    told = [event.text for event in events if "cannot be read" in event.text]
    assert told == [f"the console of {broken.machine().id} cannot be read: access denied: console"]


@pytest.mark.full
def test_a_void_that_meets_a_claim_leaves_the_launch_to_the_winner(house):
    loser, winner = house.controller(), house.controller()
    loser.tick()
    house.cloud.errors["create"] = [CapacityError("none")]
    tick = loser.tick()
    assert types(tick.actions) == [Create]
    winner.tick()
    house.run(30)
    assert house.history.launches[0].claimed
    loser.run_pass()
    assert house.history.launches[0].live_ranks == (0,)
    assert winner.run_until_finished().finished.outcome == "succeeded"
    assert len(house.history.launches) == 1


def test_a_look_that_decides_twice_makes_the_bill_once_and_bills_again_only_what_runs(records, monkeypatch):
    house = House(records, limits={"max_cost": 1000.0})
    controller = house.controller()
    while not house.history.launches or not house.history.launches[0].claimed:
        controller.tick()
        house.run(5)
    house.cloud.end(house.machine(), EndReason.RECLAIMED)
    while not house.history.launches[0].is_settled:
        controller.tick()
        house.run(5)
    billed, real = [], ledger._lines

    def counted(launch, *args):
        billed.append(launch.number)
        return real(launch, *args)

    monkeypatch.setattr(ledger, "_lines", counted)
    house.run(60)  # the next driver's clock may be 40 s behind this one's
    monkeypatch.setattr("cloudspot.controller.loop.OLD_SECONDS", math.inf)  # a request here may take seconds
    tick = house.controller().tick()
    assert types(tick.actions) == [OpenLaunch]
    assert billed == [1]
    billed.clear()
    assert types(house.controller().tick().actions) == [Create]
    while not house.history.launches[1].claimed:
        controller.tick()
        house.run(5)
    billed.clear()
    controller.tick()
    assert sorted(billed) == [1, 2, 2], "what runs has a bill for now, and one for when a stop has ended it"


def test_two_controllers_that_decide_the_same_write_it_once(house):
    one, other = house.steps(), house.steps()
    for steps in (one, other):
        until(steps, "put jobs/digits-1/journal/")
    for steps in (one, other):
        for _ in steps:
            pass
    assert [type(record) for record in house.journal] == [Intent]


@pytest.mark.full
def test_a_controller_that_was_paused_before_its_create_does_no_harm(house):
    stops, paused = house.stopping()
    paused.tick()
    steps = stops.steps(paused.tick)
    until(steps, "create")
    history = house.controller().run_until_finished()
    assert history.finished.outcome == "succeeded"
    house.run(house.cloud.token_seconds)
    for _ in steps:
        pass
    late = [one for one in house.cloud.machines.values() if not one.has_ended]
    assert len(late) == 1
    assert house.controller().run_pass().actions[0].instance_ids == (late[0].id,)
    house.run(120)
    assert house.controller().run_pass().is_settled


@pytest.mark.full
def test_a_controller_that_slept_while_its_job_was_finished_and_removed_writes_and_launches_nothing(house):
    """A laptop that was closed: what it has read of the job tells it to go on with a lost machine."""
    sleeper = house.controller()
    while not house.history.launches or not house.history.launches[0].claimed:
        sleeper.tick()
        house.run(5)
    sleeper.tick()
    assert house.controller().run_until_finished().finished.outcome == "succeeded"
    house.cloud.tokens.clear()
    remove_job(house.store, JOB)
    with pytest.raises(JobNotFound, match="job 'digits-1' is no longer in"):
        sleeper.run_until_finished()
    assert house.cloud.tokens == []
    assert list(house.store.list_objects("jobs/")) == []


@pytest.mark.parametrize("act", [OpenLaunch, Create])
def test_a_job_that_is_removed_before_an_act_is_not_acted_for(house, act):
    """An act first looks whether the job is there, and it was not before that."""
    steps = house.steps()
    if act is Create:
        house.controller().tick()
    until(steps, "head jobs/digits-1/spec")
    remove_job(house.store, JOB)
    with pytest.raises(JobNotFound):
        list(steps)
    assert house.cloud.tokens == []
    assert list(house.store.list_objects("jobs/")) == []


@pytest.mark.full
def test_nothing_is_bought_for_a_job_whose_directory_was_copied_into_another_store(house):
    """Its machines would wait for the store that their request names."""
    found = house.history.submission
    house.store.find_id = lambda: "0a" * 16
    house.store.put(keys.spec(JOB), codec.encode(msgspec.structs.replace(found, store_id="0b" * 16)))
    with pytest.raises(CloudspotError, match="job digits-1 was submitted to a store other than memory://"):
        house.controller().run_until_finished()
    assert (house.cloud.tokens, house.journal) == ([], ())
    house.store.find_id = lambda: "0b" * 16
    assert house.controller().run_until_finished().finished.outcome == "succeeded"


@pytest.mark.parametrize("kind", [TransientError, PluginFault])
def test_a_listing_that_fails_is_told_once_and_decides_nothing(house, kind):
    house.cloud.errors["instances"] = kind("throttled")
    controller = house.controller()
    first, second = controller.tick(), controller.tick()
    assert (first.instances, first.problems, first.actions) == (None, ("throttled",), ())
    assert [event.text for event in first.events if event.kind is EventKind.WARNED] == ["throttled"]
    assert second.events == ()
    assert house.journal == ()


@pytest.mark.parametrize("kind", [TransientError, PluginFault])
def test_offers_that_fail_are_asked_for_again(house, kind):
    house.cloud.errors["offers"] = [kind("throttled")]
    controller = house.controller()
    assert controller.tick().problems == ("throttled",)
    assert types(controller.tick().actions) == [OpenLaunch]


@pytest.mark.full
def test_a_store_that_fails_is_waited_out(house, monkeypatch):
    controller = house.controller()
    controller.tick()
    with monkeypatch.context() as patch:
        patch.setattr(house.store, "get", lambda key: (_ for _ in ()).throw(TransientError("outage")))
        tick = controller.tick()
        assert (tick.history, tick.problems) == (None, ("outage",))
    assert controller.run_until_finished().finished.outcome == "succeeded"


@pytest.mark.full
def test_the_waits_grow_while_the_provider_fails(house):
    house.cloud.errors["instances"] = [TransientError("throttled")] * 6
    house.controller().run_until_finished()
    assert house.slept[:7] == [3.0, 6.0, 12.0, 24.0, MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, 3.0]


def test_a_missing_right_ends_the_loop(house):
    house.cloud.errors["instances"] = AuthError("no right to list")
    with pytest.raises(AuthError, match="no right to list"):
        house.controller().run_until_finished()


def test_a_job_that_is_not_there_is_an_error(house):
    controller = Controller(house.store, "other", SimProvider(house.cloud), clock=house.world.clock())
    with pytest.raises(JobNotFound):
        controller.tick()


def test_a_machine_is_told_to_end_once_and_again_after_a_while(house):
    controller = house.controller()
    controller.run_pass()
    request_stop(house.store, JOB, "user", resumption=0)
    controller.run_pass()
    assert house.history.launches[0].live_ranks == ()
    told = len(house.cloud.terminated)
    assert told == 1
    controller.tick()
    assert len(house.cloud.terminated) == told
    house.world.time += act.REPEAT_SECONDS
    controller.tick()
    assert len(house.cloud.terminated) == told + 1


def test_a_machine_that_the_provider_refuses_to_end_is_told_and_asked_for_again(house):
    controller = house.controller()
    controller.run_pass()
    request_stop(house.store, JOB, "user", resumption=0)
    house.cloud.refused = (Refused(instance_id=house.machine().id, reason="it is protected"),)
    problem = f"{house.machine().id} cannot be ended: it is protected; trying again"
    assert controller.run_pass().problems == (problem,)
    assert controller.tick().problems == (problem,)
    assert [one.text for one in controller.tick().events] == []
    told, house.cloud.refused = len(house.cloud.terminated), ()
    tick = controller.tick()
    assert (tick.problems, len(house.cloud.terminated)) == ((), told + 1)


def test_a_stop_checkpoints_and_ends_the_job(house):
    controller = house.controller()
    while not house.history.generations:
        controller.run_pass()
        house.run(5)
    house.run(60)
    request_stop(house.store, JOB, "user", resumption=0)
    history = controller.run_until_finished()
    assert (history.finished.outcome, history.finished.exit_code) == ("stopped", 0)
    assert outcomes(history) == ["stopped"]
    assert history.commits


@pytest.mark.full
def test_a_machine_that_does_not_end_is_left_to_the_next_controller(house, monkeypatch):
    monkeypatch.setattr(house.cloud, "end", lambda machine, reason: None)
    history = house.controller().run_until_finished()
    assert history.finished.outcome == "succeeded"
    # The record's time is that of a clock that may be 20 s off.
    assert (house.world.now() - history.finished.at).total_seconds() > END_LIMIT_SECONDS - 21
    assert not house.machine().has_ended
    assert len(house.cloud.terminated) >= END_LIMIT_SECONDS / act.REPEAT_SECONDS - 3


@pytest.mark.full
def test_a_machine_that_vanished_shortly_before_the_end_is_watched_until_its_end_is_proven(records):
    """Some providers forget a machine at once, and its absence proves an end only after minutes."""
    house = House(records, nodes={"min": 1, "max": 2})
    house.cloud.absence_proves_after_seconds = 7200.0
    controller = house.controller()
    while not house.history.commits:
        controller.run_pass()
        house.run(5)
    lost = list(house.cloud.machines.values())[1]
    house.cloud.end(lost, EndReason.RECLAIMED)
    lost.kept_seconds = 0.0
    while house.history.finished is None:
        controller.run_pass()
        house.run(5)
    assert lost.id in house.history.launches[0].unproven
    history = house.controller().run_until_finished()
    assert history.finished.outcome == "succeeded"
    assert not any(launch.unproven for launch in history.launches)


@pytest.mark.full
def test_a_success_is_over_once_the_machines_that_its_cloud_forgets_at_once_have_provably_ended(house):
    """It ended by saying that its machines might still be billed, as nobody looked again."""
    house.cloud.absence_proves_after_seconds = 7200.0
    controller = house.controller()
    while not house.history.generations:
        controller.run_pass()
        house.run(5)
    for machine in house.cloud.machines.values():
        machine.kept_seconds = 0.0
    history = controller.run_until_finished()
    assert history.finished.outcome == "succeeded"
    assert not any(launch.unproven for launch in history.launches)
    # A machine that has said its last word need not be missed for as long as one that has not.
    assert (house.world.now() - history.finished.at).total_seconds() < END_LIMIT_SECONDS


def test_the_machines_of_a_generation_are_told_of_it_once_by_each_controller_and_again_where_that_failed(
    records,
):
    house = House(records, nodes={"min": 2, "max": 2})
    controller = house.controller()
    while not house.history.generations:
        controller.run_pass()
        house.run(3)
    for _ in range(3):
        controller.tick()
    ids = tuple(house.cloud.machines)
    facts = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1", "NUM_NODES": "2"}
    assert house.cloud.announced == [(ids, facts)]
    house.cloud.errors["announce"] = [TransientError("throttled")]
    other = house.controller()
    assert other.tick().problems == ("throttled",)
    assert [other.tick().problems for _ in range(2)] == [(), ()]
    assert house.cloud.announced == [(ids, facts)] * 3


@pytest.mark.full
def test_two_nodes_train_as_one(records):
    house = House(records, nodes={"min": 2, "max": 2})
    history = house.controller().run_until_finished()
    assert history.finished.outcome == "succeeded"
    assert [generation.seats for generation in history.generations] == [((1, 0), (1, 1))]
    assert sorted(proof.rank for proof in house.history.launches[0].certificates.values()) == [0, 1]


@pytest.mark.full
def test_of_three_nodes_only_the_lost_one_is_bought_again(records):
    house = House(records, nodes={"min": 3, "max": 3})
    controller = house.controller()
    while not house.history.commits:
        controller.run_pass()
        house.run(3)
    house.cloud.end(list(house.cloud.machines.values())[1], EndReason.RECLAIMED)
    history = controller.run_until_finished()
    assert history.finished.outcome == "succeeded"
    assert len(house.cloud.machines) == 4
    assert history.generations[-1].seats == ((1, 0), (1, 2), (2, 0))


@pytest.mark.full
def test_a_node_with_a_notice_is_replaced_before_it_goes(records):
    """The successor has claimed its seat while the doomed machine still runs."""
    house = House(records)
    controller = house.controller()
    while not house.history.commits:
        controller.run_pass()
        house.run(3)
    doomed = house.machine()
    doomed.has_notice = True
    while len(house.cloud.machines) == 1:
        controller.run_pass()
        house.run(3)
    assert not doomed.has_ended
    history = controller.run_until_finished()
    assert (history.finished.outcome, history.launches[1].intent.why) == ("succeeded", "notice")
    assert history.generations[-1].seats == ((2, 0),)


@pytest.mark.full
@pytest.mark.parametrize("has_store_tags", [True, False])
def test_a_job_of_the_same_id_in_another_store_keeps_its_machines(house, has_store_tags):
    """Without the tags, which say whose a machine is, each reaper ends the other's."""
    house.cloud.has_store_tags = has_store_tags
    house.cloud.enter_user_code = lambda machine: None  # it knows of one store alone
    stores = (house.store, house.add_store("memory://annex/"))
    controllers = [house.controller(store) for store in stores]
    for _ in range(400):
        finished = [one.tick().history.finished for one in controllers]
        if all(finished):
            break
        house.run(3)
    found = [outcomes(HistoryReader(store, JOB).read()) for store in stores]
    if not has_store_tags:
        assert house.cloud.terminated != []
        return
    assert found == [["succeeded"], ["succeeded"]]
    assert house.cloud.terminated == []
    assert sorted(house.cloud.store_urls.values()) == ["memory://annex", "memory://sim"]
    billed = [HistoryReader(store, JOB).read().launches[0].certificates for store in stores]
    assert [len(proofs) for proofs in billed] == [1, 1]
    assert billed[0].keys() != billed[1].keys()


def test_waiting_for_capacity_is_told_once(house):
    house.cloud.errors["create"] = CapacityError("none")
    controller = house.controller()
    controller.run_pass()
    told = [controller.run_pass().events for _ in range(3)]
    assert [kinds(events) for events in told] == [[], [], []]
    other = house.controller()
    assert kinds(other.run_pass().events).count(EventKind.WAITING) == 1


def test_a_wait_is_told_once_however_often_the_machines_are_announced_meanwhile(house, records):
    """A job that held on several nodes told at each look that it waits."""
    controller, events = house.controller(), []
    controller.tick()
    for action in [Postpone(60.0, "none is bought"), Announce((), {"NUM_NODES": "2"})] * 2:
        controller._actor.act(action, records.assess(house.history), events)
    assert kinds(events) == [EventKind.WAITING]


def test_the_summary_follows_the_state_at_once_and_the_rest_after_a_while(house):
    controller = house.controller()
    controller.tick()
    assert read_summary(house.store, JOB).state == "queued"
    controller.tick()
    assert read_summary(house.store, JOB).state == "launching"
    while not house.history.generations:
        house.run(5)
    controller.tick()
    written = read_summary(house.store, JOB)
    assert written.state == "running"
    house.world.time += 4.0
    controller.tick()
    assert read_summary(house.store, JOB) == written
    house.world.time += SUMMARY_SECONDS
    controller.tick()
    assert read_summary(house.store, JOB).spent > written.spent


def test_the_summary_of_a_job_that_waits_tells_that_it_is_driven(house):
    """``ps`` takes an old one for that of a driver that is gone."""
    house.cloud.errors["offers"] = TransientError("no answer")
    controller = house.controller()
    controller.tick()
    written = read_summary(house.store, JOB)
    house.world.time += SUMMARY_REFRESH_SECONDS - 1.0
    controller.tick()
    assert read_summary(house.store, JOB) == written
    house.world.time += 1.0
    controller.tick()
    again = read_summary(house.store, JOB)
    assert msgspec.structs.replace(again, at=written.at, driven_at=written.driven_at) == written
    assert again.driven_at == again.at
    assert (again.at - written.at).total_seconds() == SUMMARY_REFRESH_SECONDS


@pytest.mark.full
def test_settled_launches_are_copied_once_a_minute_and_at_the_end(house):
    controller, copied = house.controller(), []
    put = house.store.put

    def counting(key, data, **options):
        if key == keys.settled_launches(JOB):
            copied.append(house.world.time)
        put(key, data, **options)

    house.store.put = counting
    house.cloud.errors["create"] = [CapacityError("none")] * 6
    controller.run_until_finished()
    history = HistoryReader(house.store, JOB).read()
    assert len(history.launches) == 7
    assert all(later - earlier >= COPY_SECONDS for earlier, later in itertools.pairwise(copied[:-1]))
    assert len(find_settled(house.store, history.submission, house.journal).launches) == 7
    assert len(copied) < 7


def test_a_pass_tells_what_all_its_ticks_saw_and_never_sleeps(house):
    tick = house.controller().run_pass()
    assert house.slept == []
    assert types(tick.actions) == [Create]
    assert kinds(tick.events) == [EventKind.LAUNCHED]
    assert [one.state for one in house.controller().tick().instances] == [InstanceState.RUNNING]


def test_a_launch_made_void_by_a_stop_ends_the_job(house):
    controller = house.controller()
    controller.run_pass()
    request_stop(house.store, JOB, "user", resumption=0)
    tick = controller.tick()
    assert types(tick.actions) == [VoidSeat, Append]
    assert types(controller.tick().actions)[0] is Terminate
    assert controller.run_until_finished().finished.outcome == "stopped"


@pytest.mark.full
def test_what_was_made_for_the_job_is_released_once_and_not_before_its_machines_have_ended(house):
    house.cloud.errors["release"] = [TransientError("a machine is in it")]
    alive = []
    controller = house.controller()
    release = house.cloud.release

    def watched(job_id, **where):
        alive.append([one.id for one in house.cloud.machines.values() if not one.has_ended])
        release(job_id, **where)

    house.cloud.release = watched
    controller.run_until_finished()
    assert house.cloud.released == [JOB, JOB]  # the first try failed
    assert alive == [[], []]
    assert controller.tick().is_settled
    assert house.cloud.released == [JOB, JOB]


@pytest.mark.full
def test_what_was_made_for_the_job_stays_if_it_is_resumed_before_it_is_released(house, records):
    """A driver that was suspended took the groups and profiles away from under the new machines."""
    house.controller().run_until_finished()
    house.cloud.released.clear()
    late = house.steps()
    until(late, "head jobs/digits-1/journal/")
    resumed = Resumed(resumption=1, submission_sha256="0" * 64, at=records.at(0), writer="w")
    journal = house.journal
    house.store.put(keys.journal(JOB, len(journal) + 1), codec.encode(resumed))
    assert list(late) != []
    assert house.cloud.released == []


@pytest.mark.full
def test_a_job_is_not_settled_while_something_of_it_cannot_be_released(house):
    house.controller().run_until_finished()
    house.cloud.errors["release"] = TransientError("a machine is in it")
    tick = house.controller().tick()
    assert (tick.is_settled, tick.problems) == (False, ("a machine is in it",))


@pytest.mark.full
def test_the_bill_follows_the_price_of_the_market(records, monkeypatch):
    house, asked = House(records, script=Script(doubt=0.0, num_steps=100_000)), []

    def current_price(self, offer):
        asked.append((house.world.time, offer.market))
        return 1.0 if len(asked) == 1 else 3.0

    monkeypatch.setattr(type(house.cloud), "current_price", current_price)
    controller, events = house.controller(), []
    while house.world.time < 2.5 * PRICE_SECONDS:
        events += controller.tick().events
        house.sleep(controller.poll_seconds)
    assert [round(at / PRICE_SECONDS) for at, _ in asked] == [1, 2]
    (told,) = [one.text for one in events if one.kind is EventKind.REPRICED]
    assert told == "launch 1: a node now costs 3 USD an hour, 1 before"
    (line,) = bill(house.history, house.world.clock().now()).lines
    seconds = line.charged_seconds
    changed = (house.history.launches[0].prices[0].at - line.started).total_seconds()
    assert line.spent == pytest.approx((changed * 1.0 + (seconds - changed) * 3.0) / 3600)


@pytest.mark.full
def test_of_two_drivers_that_were_told_different_prices_one_writes(records, monkeypatch):
    """The other does not write what it was told before over what was written since; they would never end."""
    house, told = House(records, script=Script(doubt=0.0, num_steps=100_000)), itertools.count(2)
    monkeypatch.setattr(type(house.cloud), "current_price", lambda self, offer: float(next(told)))
    one, (stops, other) = house.controller(), house.stopping()
    while house.world.time < PRICE_SECONDS / 2:
        one.tick()
        house.sleep(one.poll_seconds)
    house.sleep(PRICE_SECONDS)
    steps = stops.steps(other.tick)
    until(steps, "current_price")
    next(steps)
    one.tick()
    assert next(told) == 4, "the test wants both to have asked"
    list(steps)
    while house.world.time < 2 * PRICE_SECONDS:
        one.tick()
        other.tick()
        house.sleep(one.poll_seconds)
    assert len(house.history.launches[0].prices) == 1


@pytest.mark.full
@pytest.mark.parametrize("told", [AuthError("no right to prices"), math.inf, -1.0, math.nan])
def test_a_price_that_is_none_is_a_warning_and_the_job_goes_on_at_the_known_one(records, monkeypatch, told):
    """No reader could take such a record back, and no job need end for a price."""
    house, events = House(records, script=Script(doubt=0.0, num_steps=100_000)), []

    def current_price(self, offer):
        if isinstance(told, Exception):
            raise told
        return told

    monkeypatch.setattr(type(house.cloud), "current_price", current_price)
    controller = house.controller()
    while house.world.time < 1.5 * PRICE_SECONDS:
        events += controller.tick().events
        house.sleep(controller.poll_seconds)
    warning = next(one.text for one in events if one.kind is EventKind.WARNED)
    assert warning.startswith("the price of launch 1 is not known: ")
    assert house.history.launches[0].prices == ()
    assert house.history.finished is None


def test_a_driver_whose_clock_is_20_minutes_ahead_gives_up_no_seat(house):
    """At its first look it took each machine that was booting for one that had hung for 20 minutes."""
    house.controller().tick()
    ahead = house.world.clock(max_skew_seconds=0.0).now

    def wrong():
        return ahead() + timedelta(minutes=21)

    def voided(clock):
        driver = Controller(house.store, JOB, SimProvider(house.cloud), clock=clock, sleep=house.sleep)
        tick = driver.tick()
        return VoidSeat in types(tick.actions), [one.text for one in tick.events if "clock is" in one.text]

    known = StoreClock(wall=wrong, uptime=lambda: house.world.time)
    known.compare(house.store)
    assert abs((known.now() - ahead()).total_seconds()) < 3
    by_the_store = Clock(
        now=known.now,
        monotonic=lambda: house.world.time,
        warning=lambda: known.warning,
    )
    is_voided, told = voided(by_the_store)
    assert (is_voided, len(told)) == (False, 1)
    # Its own clock would have done so.
    assert voided(Clock(now=wrong, monotonic=lambda: house.world.time)) == (True, [])


def test_nothing_is_decided_while_nobody_knows_the_stores_time(house):
    def fail():
        raise TransientError("no answer")

    clock = Clock(now=house.world.now, monotonic=lambda: house.world.time, compare=fail)
    tick = Controller(house.store, JOB, SimProvider(house.cloud), clock=clock, sleep=house.sleep).tick()
    assert (tick.actions, tick.history, tick.problems) == ((), None, ("no answer",))
