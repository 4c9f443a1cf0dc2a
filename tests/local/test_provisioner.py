"""Creation, listing and termination, also by several processes at once and killed half-way."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta

import msgspec
import pytest
from support.records.own_notes import note

from cloudspot.errors import AuthError, CapacityError, CloudspotError, ProvisionError, TransientError
from cloudspot.host.locks import try_lock
from cloudspot.host.process_marks import marked_processes
from cloudspot.jobstore.jobs.state_home import HOME
from cloudspot.local.machine_records import MachineState
from cloudspot.local.machines import MachineDirectory, now_utc
from cloudspot.local.options import LocalOptions, RandomReclaims, Reclaim
from cloudspot.local.processes import MARK
from cloudspot.local.provider import LocalProvider
from cloudspot.model import EndReason, InstanceState, LaunchRequest, Market, Resources
from cloudspot.testing import plaincalls

NUM_NODES = 3

# Creates the machines of the request on standard input, and kills itself before the n-th call of a
# function that creation is made of.
CREATOR = """\
import os, signal, sys
import msgspec
from cloudspot.jobstore.jobs import state_home as home
from cloudspot.local import machines, provisioner
from cloudspot.local.provider import LocalProvider
from cloudspot.model import LaunchRequest
from cloudspot.testing import plaincalls

request = msgspec.json.decode(sys.stdin.buffer.read(), type=LaunchRequest)
place, countdown = sys.argv[1], int(sys.argv[2])
owner, name = {
    "directory": (machines.MachineDirectory, "create"),
    "rename": (machines.Path, "rename"),
    "supervisor": (provisioner, "start_supervisor"),
    "wait": (provisioner.subprocess.Popen, "wait"),
    "never": (provisioner, "erase"),
}[place]
original = getattr(owner, name)

def dying(*arguments, **keywords):
    global countdown
    countdown -= 1
    if countdown < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **keywords)

setattr(owner, name, dying)
for instance in plaincalls.create(LocalProvider().provisioner(), request, token="token"):
    print(instance.id)
"""


def start_creator(request: LaunchRequest, place: str = "never", countdown: int = 0) -> subprocess.Popen:
    with tempfile.TemporaryFile() as body:
        body.write(msgspec.json.encode(request))
        body.seek(0)
        return subprocess.Popen(
            [sys.executable, "-c", CREATOR, place, str(countdown)],
            stdin=body,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


def boots(machines: list[MachineDirectory]) -> list[str]:
    return [(machine.path / "boots").read_text() for machine in machines]


BOOT_ONCE = "echo boot >> boots; echo up; sleep 1000"


@pytest.mark.full
def test_the_same_token_gives_the_same_machines(host):
    first = host.launch(BOOT_ONCE, num_nodes=NUM_NODES)
    second = host.launch(BOOT_ONCE, num_nodes=NUM_NODES)
    assert [machine.id for machine in first] == [machine.id for machine in second]
    for machine in first:
        host.wait_for_console(machine, "up")
    assert boots(first) == ["boot\n"] * NUM_NODES
    assert len(plaincalls.instances(LocalProvider().provisioner())) == NUM_NODES


@pytest.mark.full
def test_what_a_machine_printed_can_be_read_while_it_is_listed_the_end_of_a_long_text(host):
    provisioner = LocalProvider().provisioner()
    machine = host.launch("yes line | head -n 50000; echo no role")[0]
    host.wait_for_console(machine, "no role\n")
    found = provisioner.console(host.instance(machine))
    assert (len(found), found[-13:]) == (64 << 10, "line\nno role\n")
    unknown = msgspec.structs.replace(host.instance(machine), id="job-9-0-none")
    assert provisioner.console(unknown) == ""


@pytest.mark.full
def test_a_directory_of_machines_that_vanished_is_an_outage_and_no_empty_list(host):
    """A driver took its machines for gone, and bought others beside them."""
    provisioner = LocalProvider().provisioner()
    assert plaincalls.instances(provisioner) == (), "there never was a machine"
    request = host.render(BOOT_ONCE)
    (made,) = plaincalls.create(provisioner, request, token="token")
    machines = host.home / "machines"
    machines.rename(host.home / "elsewhere")
    for ask in (
        lambda: plaincalls.instances(provisioner),
        lambda: plaincalls.create(provisioner, request, token="another"),
        lambda: plaincalls.terminate(provisioner, [made.id]),
    ):
        with pytest.raises(
            TransientError, match=f"^provider 'local': the directory of its machines, {machines}, is missing"
        ):
            ask()
    assert not machines.exists()
    (host.home / "elsewhere").rename(machines)
    assert [one.id for one in plaincalls.instances(provisioner)] == [made.id]
    plaincalls.terminate(provisioner, [made.id])


@pytest.mark.full
def test_the_same_token_in_another_home_gives_other_machines(host, monkeypatch, tmp_path):
    first = host.launch(BOOT_ONCE)[0]
    monkeypatch.setenv(HOME, str(tmp_path / "another"))
    note("job", store_url="")
    provisioner = LocalProvider().provisioner()
    second = plaincalls.create(provisioner, host.render(BOOT_ONCE), token="token")[0]
    assert first.id != second.id
    plaincalls.terminate(provisioner, [second.id])
    host.wait_until(lambda: [machine.state for machine in plaincalls.instances(provisioner)] == ["ended"])
    monkeypatch.setenv(HOME, str(host.home))
    assert host.instance(first).state is InstanceState.RUNNING
    assert marked_processes(MARK, first.mark) != ()


@pytest.mark.full
def test_a_token_does_not_serve_another_request(host):
    host.launch(BOOT_ONCE)
    with pytest.raises(ProvisionError, match="the token was already used"):
        host.launch(BOOT_ONCE, launch=2)


@pytest.mark.full
def test_a_machine_that_has_ended_is_not_created_again(host):
    machine = host.launch("echo boot >> ../boots; shutdown")[0]
    host.wait_for_end(machine)
    assert host.launch("echo boot >> ../boots; shutdown")[0].id == machine.id
    assert host.instance(machine).state is InstanceState.ENDED
    assert (host.home / "machines" / "boots").read_text() == "boot\n"
    (host.home / "machines" / "boots").unlink()


@pytest.mark.full
def test_two_processes_that_create_at_once_get_the_same_machines(host):
    request = host.render(BOOT_ONCE, num_nodes=NUM_NODES)
    creators = [start_creator(request) for _ in range(3)]
    outputs = [creator.communicate()[0].decode().split() for creator in creators]
    assert [creator.returncode for creator in creators] == [0, 0, 0]
    assert outputs[0] == outputs[1] == outputs[2]
    machines = [MachineDirectory(host.home / "machines" / name) for name in outputs[0]]
    for machine in machines:
        host.wait_for_console(machine, "up")
    assert boots(machines) == ["boot\n"] * NUM_NODES


@pytest.mark.full
@pytest.mark.parametrize(
    ("place", "countdown"),
    [
        ("directory", 0),
        ("directory", 1),
        ("rename", 0),
        ("rename", 1),
        ("supervisor", 0),
        ("supervisor", 1),
        ("wait", 0),
        ("wait", NUM_NODES - 1),
    ],
)
def test_a_creation_that_was_killed_is_completed_by_the_next(host, place, countdown):
    request = host.render(BOOT_ONCE, num_nodes=NUM_NODES)
    creator = start_creator(request, place, countdown)
    creator.communicate()
    assert creator.returncode == -9
    machines = host.launch(BOOT_ONCE, num_nodes=NUM_NODES)
    for machine in machines:
        host.wait_for_console(machine, "up")
    assert boots(machines) == ["boot\n"] * NUM_NODES
    assert [host.instance(machine).state for machine in machines] == [InstanceState.RUNNING] * NUM_NODES
    if sys.platform == "linux":
        roots = [machine for machine in machines if len(marked_processes(MARK, machine.mark)) == 2]
        assert roots == machines, "each machine runs its script and one sleep"


@pytest.mark.full
def test_what_a_killed_creation_has_left_is_removed_by_the_next(host):
    """It may hold credentials."""
    creator = start_creator(host.render(BOOT_ONCE), "rename", 0)
    creator.communicate()
    left = list((host.home / "machines").iterdir())
    assert [path.stat().st_mode & 0o777 for path in left] == [0o700]
    machine = host.launch(BOOT_ONCE, token="another")[0]
    assert list((host.home / "machines").iterdir()) == [machine.path]


def test_a_full_disk_leaves_the_state_as_it_was_and_nothing_else(host):
    path = host.home / "machine"
    path.mkdir()
    machine = MachineDirectory(path)
    running = MachineState(state=InstanceState.RUNNING)
    machine.write_state(running)
    # A limit on the size of files stands for a full disk.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            machine.write_state(MachineState(state=InstanceState.ENDED))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert machine.state() == running
    assert [each.name for each in path.iterdir()] == ["state.json"]


@pytest.mark.full
def test_a_machine_that_never_got_a_supervisor_is_given_up(host):
    request = host.render(BOOT_ONCE)
    creator = start_creator(request, "supervisor", 0)
    creator.communicate()
    machine = MachineDirectory(next((host.home / "machines").glob("m-*")))
    assert host.instance(machine).state is InstanceState.PENDING
    record = machine.record()
    # The host's clock was set forward: that ends no machine that is just coming.
    stepped = msgspec.structs.replace(record, launched_at=record.launched_at - timedelta(hours=1))
    (machine.path / "machine.json").write_bytes(msgspec.json.encode(stepped))
    assert host.instance(machine).state is InstanceState.PENDING
    old = msgspec.structs.replace(record, launched_uptime=record.launched_uptime - 60.0)
    (machine.path / "machine.json").write_bytes(msgspec.json.encode(old))
    instance = host.instance(machine)
    assert (instance.state, instance.end_reason) == (InstanceState.ENDED, EndReason.LOST)
    assert host.launch(BOOT_ONCE)[0].supervisor() is None


@pytest.mark.full
def test_a_termination_before_the_supervisor_came_counts(host):
    creator = start_creator(host.render(BOOT_ONCE), "supervisor", 0)
    creator.communicate()
    machine = MachineDirectory(next((host.home / "machines").glob("m-*")))
    plaincalls.terminate(LocalProvider().provisioner(), [machine.id])
    assert host.instance(machine).end_reason is EndReason.TERMINATED
    host.launch(BOOT_ONCE)
    assert machine.supervisor() is None


def test_a_zone_without_capacity_refuses_and_leaves_nothing(host):
    options = LocalOptions(capacity={"local-a": 0})
    with pytest.raises(CapacityError, match="local-a has no spot local now"):
        host.launch(BOOT_ONCE, num_nodes=NUM_NODES, options=options)
    assert plaincalls.instances(LocalProvider().provisioner()) == ()


@pytest.mark.full
def test_fewer_machines_than_wished_but_enough_are_created_and_a_replay_gives_the_same(host):
    options = LocalOptions(capacity={"local-a": 2})
    wished = {"num_nodes": NUM_NODES, "min_nodes": 1, "options": options}
    machines = host.launch(BOOT_ONCE, **wished)
    assert [(one.record().rank, one.record().num_nodes) for one in machines] == [(0, 2), (1, 2)]
    for again in (wished, {**wished, "options": LocalOptions()}):  # whatever the capacity is then
        assert [one.id for one in host.launch(BOOT_ONCE, **again)] == [one.id for one in machines]
    for machine in machines:
        host.wait_for_console(machine, "up")
    assert boots(machines) == ["boot\n"] * 2
    with pytest.raises(CapacityError, match="local-a has no spot local now"):
        host.launch(BOOT_ONCE, token="another", **wished)
    plaincalls.terminate(LocalProvider().provisioner(), [machines[0].id])
    host.wait_for_end(machines[0])
    assert len(host.launch(BOOT_ONCE, token="another", launch=2, **wished)) == 1


@pytest.mark.full
def test_on_demand_machines_come_where_spot_has_no_capacity(host):
    options = LocalOptions(capacity={"local-a": 0})
    machine = host.launch(BOOT_ONCE, market=Market.ON_DEMAND, options=options)[0]
    assert host.instance(machine).market is Market.ON_DEMAND


@pytest.mark.full
def test_a_token_outlives_the_capacity(host):
    first = host.launch(BOOT_ONCE)
    second = host.launch(BOOT_ONCE, options=LocalOptions(capacity={"local-a": 0}))
    assert first[0].id == second[0].id


def test_rendering_is_pure_and_plain_json(host):
    options = LocalOptions(
        reclaims=(Reclaim(rank=1, after_steps=7), Reclaim(launch=2, after_seconds=1.0)),
        random_reclaims=RandomReclaims(mean=600.0, seed=3, max=1),
    )
    request = host.render("true", num_nodes=2, options=options)
    assert request == host.render("true", num_nodes=2, options=options)
    assert msgspec.json.decode(msgspec.json.encode(request), type=LaunchRequest) == request
    by_rank = request.body["reclaims"]
    assert [reclaim["after_steps"] for reclaim in by_rank[0]] == [None]
    assert [reclaim["after_steps"] for reclaim in by_rank[1]] == [7, None]
    assert [path.name for path in host.home.iterdir()] == ["own-jobs"]


def test_on_demand_machines_are_not_reclaimed_on_a_plan(host):
    options = LocalOptions(reclaims=(Reclaim(after_steps=1),), random_reclaims=RandomReclaims(mean=1.0))
    request = host.render("true", market=Market.ON_DEMAND, options=options)
    assert request.body["reclaims"] == [[]]


def test_offers_are_each_zone_on_both_markets():
    options = LocalOptions(zones=("x", "y"), spot_price=0.25, on_demand_price=2.0)
    offers = plaincalls.offers(
        LocalProvider(options).provisioner(), Resources(accelerator="A100", accelerator_count=8)
    )
    assert [(offer.key, offer.price_per_hour, offer.on_demand_price_per_hour) for offer in offers] == [
        ("spot/x/local", 0.25, 2.0),
        ("on-demand/x/local", 2.0, 2.0),
        ("spot/y/local", 0.25, 2.0),
        ("on-demand/y/local", 2.0, 2.0),
    ]


def test_listing_and_terminating_nothing_is_no_error(local_home):
    provisioner = LocalProvider().provisioner()
    assert plaincalls.instances(provisioner) == ()
    plaincalls.terminate(provisioner, ["m-unknown-0", "../.."])


@pytest.mark.full
def test_ended_machines_are_forgotten_after_a_day(host):
    machine = host.launch("shutdown")[0]
    host.wait_for_end(machine)
    host.launch(BOOT_ONCE, token="today")
    assert machine.path.exists()
    machine.write_state(
        MachineState(
            state=InstanceState.ENDED,
            end_reason=EndReason.SELF,
            ended_at=now_utc() - timedelta(hours=25),
        )
    )
    host.launch(BOOT_ONCE, token="tomorrow")
    assert not machine.path.exists()


@pytest.mark.full
def test_only_a_living_machine_can_be_reclaimed(host):
    machine = host.launch("shutdown")[0]
    host.wait_for_end(machine)
    with pytest.raises(CloudspotError, match="has already ended"):
        plaincalls.preempt(LocalProvider(), machine.id)
    with pytest.raises(CloudspotError, match="has no machine 'm-none'"):
        plaincalls.preempt(LocalProvider(), "m-none")


@pytest.mark.full
def test_a_machine_that_ends_sooner_takes_no_later_notice(host):
    """The command said that it gave 5 minutes, and the machine ended after 1."""
    machine = host.launch(BOOT_ONCE)[0]
    plaincalls.preempt(LocalProvider(), machine.id, notice_seconds=60)
    host.wait_until(lambda: machine.state().notice_deadline is not None)
    with pytest.raises(CloudspotError, match=r"already has a notice, and ends at \d\d:\d\d:\d\d UTC"):
        plaincalls.preempt(LocalProvider(), machine.id, notice_seconds=300)
    plaincalls.preempt(LocalProvider(), machine.id, notice_seconds=0)
    assert host.wait_for_end(machine).end_reason is EndReason.RECLAIMED


@pytest.mark.full
def test_the_supervisor_holds_the_machines_lock(host):
    machine = host.launch(BOOT_ONCE)[0]
    with try_lock(machine.lock) as is_free:
        assert not is_free


@pytest.mark.full
def test_machines_are_given_the_variables_that_are_named_and_no_other(host, monkeypatch):
    monkeypatch.setenv("LAB_KEY", "a key 'of mine'\nin two lines")
    monkeypatch.setenv("LAB_OTHER", "x")
    options = LocalOptions(pass_environment=("LAB_KEY",))
    request = host.render("", options=options)
    assert "of mine" not in msgspec.json.encode(request).decode()
    (machine,) = host.launch('echo "<$LAB_KEY><$LAB_OTHER>"; sleep 1000', options=options)
    host.wait_for_console(machine, "<a key 'of mine'\nin two lines><>")
    given = machine.path / "environment.json"
    assert given.exists()
    assert machine.path.stat().st_mode & 0o077 == 0
    plaincalls.terminate(LocalProvider().provisioner(), [machine.id])
    host.wait_for_end(machine)
    assert not given.exists()


def test_a_variable_that_is_not_set_is_named_and_no_machine_comes(host):
    with pytest.raises(AuthError, match="pass_environment: LAB_NOWHERE is not set in the environment"):
        host.launch(BOOT_ONCE, options=LocalOptions(pass_environment=("LAB_NOWHERE",)))
    assert plaincalls.instances(LocalProvider().provisioner()) == ()


@pytest.mark.full
def test_a_request_that_was_made_here_is_granted_and_one_that_was_changed_is_not(host):
    request = host.render("true")
    body = {**request.body, "user_data": "touch mark"}
    with pytest.raises(ProvisionError, match="was not requested from this computer"):
        plaincalls.create(
            LocalProvider().provisioner(), msgspec.structs.replace(request, body=body), token="token"
        )
    stored = msgspec.json.decode(msgspec.json.encode(request), type=LaunchRequest)
    assert len(plaincalls.create(LocalProvider().provisioner(), stored, token="token")) == 1
