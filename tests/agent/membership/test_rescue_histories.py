"""Random histories of rescues, by seed: real agents' membership, votes, rescue, journal, manifests and commits.

One to four machines with one to three ranks each make steps together, with all parts of the state on every rank, or
sharded. Processes and machines die, in the middle of a save too, machines freeze and come back, agents are killed
and start again, the store fails, is slow or cannot be reached from one machine, and others go on without asking.
What each rank alone has arrives at its keeper a little later, or never, if the connection is lost or the rank dies.
Whatever happens: there is one order for each attempt, at the newest boundary that was said in time and of which each
part has a saver; no commit mixes boundaries or attempts, or holds what its rank did not; what lost ranks had is of the
boundary that is saved, and what is called exact lacks nothing of them; generations and steps only grow; what ranks of
machines hold that nothing has happened to is committed; and nobody waits for ever.
"""

import os
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from support.worlds.few_or_many import few_or_many
from support.worlds.rescue_histories import play, violation_of
from support.worlds.simulation import Violation

from cloudspot.agent.membership import peers, rescue_votes, rescues
from cloudspot.agent.membership.rescue_votes import RescueVotes
from cloudspot.agent.training.watching.rescue import Rescue
from cloudspot.jobstore.checkpoints import manifests
from cloudspot.jobstore.layout import codec
from cloudspot.train.rounds.keeper import Keeper

NUM_HISTORIES = 800


@pytest.mark.timeout(1200)
@few_or_many(8, NUM_HISTORIES)
def test_every_history_of_a_rescue_keeps_its_promise(seeds):
    results = [play(seed) for seed in seeds]
    # They are worth something only if much goes wrong in them.
    assert sum(bool(one.committed) for one in results) > len(results) / 3
    assert sum(one.num_attempts > 1 for one in results) >= len(results) // 80
    assert sum(one.is_apart for one in results) >= len(results) // 8
    assert sum(one.demanded is not None for one in results) >= len(results) // 5


@pytest.mark.full
@pytest.mark.parametrize(
    ("seed", "committed"),
    [
        pytest.param(17, (5,), id="two boundaries without a step between them at the end of an epoch"),
        pytest.param(2773, (4,), id="the only saver of an order could not save, and has ended its part"),
        pytest.param(19865, (), id="a member has left the rescue before another orders what that one held"),
        pytest.param(135, (), id="another thread reads the journal in the middle of an agreement"),
    ],
)
def test_what_histories_have_found_stays_mended(seed, committed):
    assert play(seed).committed == committed


SOAK_HISTORIES = int(os.environ.get("CLOUDSPOT_SOAK_HISTORIES", "100000"))
SOAK_BLOCK = 1000


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(NUM_HISTORIES, SOAK_HISTORIES, SOAK_BLOCK))
def test_very_many_histories_of_rescues_keep_their_promise(first):
    for seed in range(first, min(first + SOAK_BLOCK, SOAK_HISTORIES)):
        play(seed)


# --- plausible shortcuts, and that these histories find them out ----------------------------------


def change_choice(monkeypatch, change):
    """Let the choice be made from other reports."""
    choose = rescues.choose

    def other(reports, likeness, *, world_size):
        return choose(change([*reports]), likeness, world_size=world_size)

    monkeypatch.setattr(rescues, "choose", other)


def take_the_oldest_boundary(monkeypatch):
    def oldest(reports):
        return [one for one in reports if one.boundary == min(each.boundary for each in reports)]

    change_choice(monkeypatch, oldest)


def ignore_holders(monkeypatch):
    change_choice(monkeypatch, lambda said: [msgspec.structs.replace(one, holders=()) for one in said])


def take_each_boundary_for_a_step(monkeypatch):
    change_choice(
        monkeypatch, lambda said: [msgspec.structs.replace(one, before=one.boundary - 1) for one in said]
    )


def decide_without_reading_what_stands(monkeypatch):
    def overwrite(store, key, order):
        store.put(key, codec.encode(order))
        return order

    monkeypatch.setattr(rescue_votes, "create_record", overwrite)


def name_no_attempt_in_the_save(monkeypatch):
    save_order = Rescue._save_order
    monkeypatch.setattr(
        Rescue, "_save_order", lambda self, order: save_order(self, msgspec.structs.replace(order, attempt=1))
    )


def propose_before_it_is_over(monkeypatch):
    carry_out = Rescue._carry_out

    def carry_out_own(self, order, allowance):
        return set(self._ranks).isdisjoint(order.ranks) or carry_out(self, order, allowance)

    monkeypatch.setattr(Rescue, "_carry_out", carry_out_own)
    monkeypatch.setattr(peers, "BUSY_STATES", peers.BUSY_STATES - {"draining"})


def wait_for_nobody(monkeypatch):
    monkeypatch.setattr(RescueVotes, "unreported", lambda *_: (frozenset(), frozenset()))


def wait_for_who_cannot_save(monkeypatch):
    monkeypatch.setattr(RescueVotes, "_have_given_up", lambda *_: False)


def keep_the_newest_whatever_its_boundary(monkeypatch):
    monkeypatch.setattr(Keeper, "given_at", lambda self, boundary, step: next(reversed(self._given), None))


def take_what_no_saver_keeps(monkeypatch):
    def everywhere(said):
        kept = tuple(sorted({rank for one in said for rank in one.keeps}))
        return [msgspec.structs.replace(one, keeps=kept) for one in said]

    change_choice(monkeypatch, everywhere)


def call_it_exact_if_anything_was_kept(monkeypatch):
    choose = rescues.choose

    def other(reports, likeness, *, world_size):
        found = choose(reports, likeness, world_size=world_size)
        return replace(found, is_exact=True) if not isinstance(found, str) and found.keepers else found

    monkeypatch.setattr(rescues, "choose", other)


SHORTCUTS = [
    (take_the_oldest_boundary, 17, "boundary 6 was held, and boundary 4 is saved"),
    (ignore_holders, 12, "do not hold every part"),
    (take_each_boundary_for_a_step, 17, "was held to the end"),
    (decide_without_reading_what_stands, 143, "two orders"),
    (name_no_attempt_in_the_save, 45, "was carried out by"),
    (propose_before_it_is_over, 344, "was held to the end"),
    (wait_for_nobody, 117, "was held to the end"),
    (wait_for_who_cannot_save, 116, "was held to the end"),
    (keep_the_newest_whatever_its_boundary, 17, "has what ranks alone had at"),
    (take_what_no_saver_keeps, 16, "rank 0 does not keep what rank 1 had"),
    (call_it_exact_if_anything_was_kept, 16, "says that it is exact"),
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("shortcut", "seed", "what"), SHORTCUTS, ids=[shortcut.__name__ for shortcut, *_ in SHORTCUTS]
)
def test_each_shortcut_is_found_out(shortcut, seed, what, monkeypatch):
    assert violation_of(seed) is None
    shortcut(monkeypatch)
    assert what in (violation_of(seed) or "nothing went wrong")


# --- rare histories, of which a script makes sure -------------------------------------------------


def lose_the_store_before_it_reports(history):
    """A rank dies in a sum that the other machine finishes, which does not reach the store for a while.

    The first machine waits only 15 s for the report, since torchrun is about to kill its ranks.
    """
    history.fibers.sleep(8.3)
    history.await_sum()
    first, second = history.nodes
    second.cut_until, history.trouble_seconds = history.fibers.now + 17.0, 17.0
    first.is_steady = False
    first.ranks[1].end(137)


def lose_the_only_machine_with_the_sum(history):
    """A machine dies in a sum that only the second finishes, which dies after its part of an interval save."""
    history.fibers.sleep(3.0)
    history.await_sum()
    history.nodes[0].kill()
    history.fibers.sleep(10.0)
    history.nodes[1].kill()


def go_on_in_the_middle_of_a_rescue(history):
    """A machine stands still in a sum until the other has reported the state before it."""
    history.fibers.sleep(8.3)
    history.await_sum()
    history.stop_node(history.nodes[0], 23.1 - history.fibers.now)


def end_with_the_first_commit(monkeypatch):
    monkeypatch.setattr(RescueVotes, "hold_newer", lambda *_: False)


def count_the_parts_of_any_save(monkeypatch):
    def of_the_newest(store, job_id, save):
        newest = max(manifests.stored_saves(store, job_id, save.checkpoint), default=save)
        return manifests.stored_ranks(store, job_id, newest)

    monkeypatch.setattr(rescue_votes, "manifests", SimpleNamespace(stored_ranks=of_the_newest))


def believe_the_reports_before_a_commit(monkeypatch):
    monkeypatch.setattr(Rescue, "_have_moved_on", lambda *_: False)


SCRIPTED = {
    "hangs": False, "epoch": 0, "step_seconds": 0.3, "optimizer_seconds": 0.05, "reduce_seconds": 1.5,
    "copy_seconds": 0.05, "upload_seconds": 0.2, "slow_lists": 0.0, "save_failures": 0.0, "is_ample": True,
}  # fmt: skip
FROZEN = {"interval": 1, "reduce_seconds": 0.3, "slow_lists": 0.2}


@pytest.mark.full
@pytest.mark.parametrize(
    ("trouble", "seed", "changes", "committed", "shortcut", "instead"),
    [
        (lose_the_store_before_it_reports, 13, {"interval": 0}, (3, 4), end_with_the_first_commit, 3),
        (lose_the_store_before_it_reports, 234, {"interval": 0}, (4, 5), end_with_the_first_commit, 4),
        (lose_the_only_machine_with_the_sum, 29, {"interval": 1}, (3,), count_the_parts_of_any_save, 2),
        (go_on_in_the_middle_of_a_rescue, 98, FROZEN, (11,), believe_the_reports_before_a_commit, 10),
    ],
)
def test_no_step_is_lost_in_a_rare_history(trouble, seed, changes, committed, shortcut, instead, monkeypatch):
    drawn = {**SCRIPTED, **changes}
    assert play(seed, trouble=trouble, **drawn).committed == committed
    shortcut(monkeypatch)
    what = f"step {committed[-1]} was held to the end, and step {instead} is committed"
    with pytest.raises(Violation, match=what):
        play(seed, trouble=trouble, **drawn)
