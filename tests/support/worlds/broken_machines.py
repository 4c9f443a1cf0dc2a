"""Provisioners that break one promise each, which their docstrings name."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import msgspec
from support.worlds.memorycloud import MemoryProvisioner

from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
    TransientError,
)
from cloudspot.model import EndReason, InstanceState, Market, Resources
from cloudspot.testing.account import Call, Fault

replace = msgspec.structs.replace


def breaks(*promises):
    """Note which tests of the kit fail, without the ``test_`` of their names."""

    def note(kind):
        kind.broken = promises
        return kind

    return note


@breaks(
    "a_lost_answer_makes_no_second_machine",
    "a_new_machine_that_no_listing_shows_yet_is_found_by_its_token",
    "a_token_whose_machines_have_ended_makes_no_others",
    "fewer_than_wished_but_enough_are_kept_and_a_replay_finds_them",
    "many_at_once_with_one_token_make_one_set_of_machines",
    "the_same_token_and_request_give_the_same_machines",
    "a_replay_when_one_of_two_machines_has_ended_harms_neither_the_other_nor_the_bill",
)
class IgnoresTheToken(MemoryProvisioner):
    """a repeated token creates again"""

    def created(self, request, *, token):
        return super().created(request, token=f"{token}-{next(self.cloud.numbers)}")


@breaks(
    "a_lost_answer_makes_no_second_machine",
    "many_at_once_with_one_token_make_one_set_of_machines",
)
class ChecksTheTokenTooEarly(MemoryProvisioner):
    """looks for the token, and creates later"""

    def created(self, request, *, token):
        if token in self.cloud.tokens:
            return super().created(request, token=token)
        time.sleep(0.05)
        made = super().created(request, token=f"{token}-{next(self.cloud.numbers)}")
        self.cloud.tokens.setdefault(token, (request, [one.id for one in made]))
        return made


@breaks(
    "a_new_machine_that_no_listing_shows_yet_is_found_by_its_token",
)
class LooksInTheListingFirst(MemoryProvisioner):
    """finds a token's machines by the listing, which lags"""

    def created(self, request, *, token):
        with self.cloud.lock:
            listed = {one.id for one in MemoryProvisioner.listed(self)}
            if token in self.cloud.tokens and not listed.intersection(self.cloud.tokens[token][1]):
                del self.cloud.tokens[token]
            return super().created(request, token=token)


@breaks(
    "a_token_whose_machines_have_ended_makes_no_others",
)
class RevivesAnEndedToken(MemoryProvisioner):
    """buys again where a token's machines have ended"""

    def created(self, request, *, token):
        made = super().created(request, token=token)
        if all(one.state is InstanceState.ENDED for one in made):
            del self.cloud.tokens[token]
            return super().created(request, token=token)
        return made


@breaks(
    "a_lost_answer_makes_no_second_machine",
)
class RemembersTheTokenAfterTheAnswer(MemoryProvisioner):
    """forgets the token when the answer is lost"""

    def created(self, request, *, token):
        try:
            return super().created(request, token=token)
        except TransientError:
            self.cloud.tokens.pop(token, None)
            raise


@breaks(
    "fewer_on_demand_than_needed_are_none",
    "fewer_than_needed_are_none",
    "without_room_for_all_there_are_none",
)
class LeavesAPartOfALaunch(MemoryProvisioner):
    """too few machines are an error, and stay"""

    def created(self, request, *, token):
        try:
            return super().created(request, token=token)
        except CapacityError:
            for rank in range(self.cloud.room):
                self.make(request.body, rank)
            raise


@breaks(
    "fewer_on_demand_than_needed_are_none",
    "fewer_than_needed_are_none",
    "without_room_for_all_there_are_none",
)
class IgnoresTheMinimum(MemoryProvisioner):
    """fewer machines than min_nodes count as success"""

    def created(self, request, *, token):
        request = replace(request, body={**request.body, "min_nodes": 1})
        return super().created(request, token=token)


@breaks(
    "fewer_than_wished_but_enough_are_kept_and_a_replay_finds_them",
)
class TakesAllOrNone(MemoryProvisioner):
    """fewer machines than wished but enough are refused"""

    def created(self, request, *, token):
        body = {**request.body, "min_nodes": request.body.get("num_nodes")}
        return super().created(replace(request, body=body), token=token)


@breaks(
    "fewer_than_wished_but_enough_are_kept_and_a_replay_finds_them",
)
class TopsUpAtAReplay(MemoryProvisioner):
    """a replay of a launch that came smaller buys the rest"""

    def created(self, request, *, token):
        made = list(super().created(request, token=token))
        rest = range(len(made), request.body["num_nodes"]) if self.cloud.room is None else ()
        return [*made, *(self.make(request.body, rank) for rank in rest)]


@breaks(
    "fewer_on_demand_than_needed_are_none",
    "fewer_than_needed_are_none",
    "without_room_for_all_there_are_none",
)
class CallsNoRoomTransient(MemoryProvisioner):
    """no room is an unknown outcome"""

    def created(self, request, *, token):
        try:
            return super().created(request, token=token)
        except CapacityError as error:
            raise TransientError(str(error)) from error


@breaks("each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing[quota]")
class CallsAQuotaNoRoom(MemoryProvisioner):
    """the account's limit counts as the cloud's"""

    def created(self, request, *, token):
        try:
            return super().created(request, token=token)
        except QuotaError as error:
            raise CapacityError(str(error)) from error


@breaks("each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing[denied]")
class CallsADenialTransient(MemoryProvisioner):
    """a missing permission is tried again for ever"""

    def created(self, request, *, token):
        try:
            return super().created(request, token=token)
        except AuthError as error:
            raise TransientError(str(error)) from error


@breaks("each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing[throttled]")
class GivesUpWhenThrottled(MemoryProvisioner):
    """throttling ends the launch for good"""

    def created(self, request, *, token):
        if self.cloud.faults.get(Call.CREATE) is Fault.THROTTLED:
            raise ProvisionError("throttled")
        return super().created(request, token=token)


@breaks("each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing[refused]")
class LeavesAMachineWhenRefused(MemoryProvisioner):
    """a request that cannot work leaves a machine"""

    def created(self, request, *, token):
        try:
            return super().created(request, token=token)
        except ProvisionError:
            if self.cloud.faults.get(Call.CREATE) is Fault.REFUSED:
                self.make(request.body, 0)
            raise


@breaks(
    "a_request_of_another_provider_is_refused",
)
class TakesAnyRequest(MemoryProvisioner):
    """a request of another provider is carried out"""

    def created(self, request, *, token):
        if request.provider == "memory":
            return super().created(request, token=token)
        known = dict.fromkeys(("user_data", "labels", "max_seconds", "disk_bytes"))
        body = {"launch": 1, "store_url": "", "zone": "a", "instance_type": "m", "market": "spot", **known}
        return [self.make({**body, **request.body}, 0)]


@breaks(
    "many_launches_at_once_get_machines_of_their_own",
)
class KeepsTheRequestInItself(MemoryProvisioner):
    """two threads that create at once share one request"""

    def created(self, request, *, token):
        self.request = request
        time.sleep(0.05)
        return super().created(self.request, token=token)


@breaks(
    "rendering_asks_nobody_and_gives_the_same_request_each_time",
)
class RendersTheTime(MemoryProvisioner):
    """a request holds when it was rendered"""

    def render(self, group):
        request = super().render(group)
        return replace(request, body={**request.body, "at": time.perf_counter()})


@breaks(
    "a_request_is_the_same_after_it_was_stored",
)
class RendersTuples(MemoryProvisioner):
    """a request changes by being stored"""

    def render(self, group):
        request = super().render(group)
        return replace(request, body={**request.body, "zones": ("a", "b")})


@breaks(
    "rendering_asks_nobody_and_gives_the_same_request_each_time",
)
class AsksWhileItRenders(MemoryProvisioner):
    """rendering asks the cloud"""

    def render(self, group):
        with socket.socket() as one, suppress(OSError):
            one.connect(("127.0.0.1", 9))
        return super().render(group)


@breaks("a_listing_that_fails_tells_nothing[throttled]", "a_listing_that_fails_tells_nothing[unwell]")
class ListsNothingWhenUnwell(MemoryProvisioner):
    """a listing that fails is empty"""

    def listed(self, *, job_id=None):
        try:
            return super().listed(job_id=job_id)
        except TransientError:
            return ()


@breaks("a_listing_that_fails_tells_nothing[denied]")
class CallsAForbiddenListingTransient(MemoryProvisioner):
    """a missing permission to list is tried again for ever"""

    def listed(self, *, job_id=None):
        try:
            return super().listed(job_id=job_id)
        except AuthError as error:
            raise TransientError(str(error)) from error


@breaks(
    "a_job_sees_its_own_machines_only",
    "many_launches_at_once_get_machines_of_their_own",
)
class ListsEveryJob(MemoryProvisioner):
    """a job sees the machines of all"""

    def listed(self, *, job_id=None):
        return super().listed()


@breaks(
    "machines_of_two_stores_jobs_of_one_name_are_told_apart",
)
class ListsEveryStore(MemoryProvisioner):
    """a store sees the machines of all"""

    def instances(self, request):
        return super().instances(replace(request, store_url=""))


class _Lists(MemoryProvisioner):
    def told(self, one):
        raise NotImplementedError

    def listed(self, *, job_id=None):
        return tuple(self.told(one) for one in super().listed(job_id=job_id))


@breaks(
    "the_inventory_lists_the_machines_and_ends_them",
    "a_launch_makes_all_its_machines_and_the_listing_tells_whose_they_are",
    "machines_of_two_stores_jobs_of_one_name_are_told_apart",
)
class ForgetsTheStore(_Lists):
    """the listing does not tell a machine's store"""

    def told(self, one):
        return replace(one, store_url="")


@breaks(
    "a_launch_makes_all_its_machines_and_the_listing_tells_whose_they_are",
)
class ForgetsTheLaunch(_Lists):
    """the listing takes each launch for the first"""

    def told(self, one):
        return replace(one, launch=1)


@breaks(
    "a_launch_makes_all_its_machines_and_the_listing_tells_whose_they_are",
    "fewer_than_wished_but_enough_are_kept_and_a_replay_finds_them",
)
class ListsEachRankAsTheFirst(_Lists):
    """all machines of a launch have one rank"""

    def told(self, one):
        return replace(one, rank=0)


@breaks(
    "a_launch_makes_all_its_machines_and_the_listing_tells_whose_they_are",
)
class ListsEachMarketAsOnDemand(_Lists):
    """the listing tells another market than was bought"""

    def told(self, one):
        return replace(one, market=Market.ON_DEMAND)


@breaks(
    "a_reclaimed_machine_says_so",
)
class ForgetsWhyAMachineEnded(_Lists):
    """a reclaim looks like any other end"""

    def told(self, one):
        return replace(one, end_reason=one.end_reason and EndReason.TERMINATED)


@breaks(
    "a_terminated_machine_is_listed_with_its_reason_or_no_more",
)
class CallsEveryEndAReclaim(_Lists):
    """a machine that was terminated looks reclaimed"""

    def told(self, one):
        return replace(one, end_reason=one.end_reason and EndReason.RECLAIMED)


@breaks(
    "terminating_ends_what_is_named_and_passes_over_unknown_ids",
)
class RaisesAtUnknownMachines(MemoryProvisioner):
    """terminating what is not there is an error"""

    def ended(self, instance_ids):
        for one in instance_ids:
            if one not in self.cloud.machines:
                raise CloudspotError(f"there is no machine {one!r}")
        super().ended(instance_ids)


@breaks(
    "terminating_ends_what_is_named_and_passes_over_unknown_ids",
)
class StopsAtUnknownMachines(MemoryProvisioner):
    """an unknown id saves the machines behind it"""

    def ended(self, instance_ids):
        for one in instance_ids:
            if one not in self.cloud.machines:
                return
            super().ended([one])


@breaks(
    "a_release_is_safe_to_repeat_and_harms_no_other_stores_job",
    "terminating_ends_what_is_named_and_passes_over_unknown_ids",
    "a_replay_when_one_of_two_machines_has_ended_harms_neither_the_other_nor_the_bill",
    "a_machine_that_is_said_to_have_ended_runs_no_more",
)
class TerminatesTheWholeLaunch(MemoryProvisioner):
    """terminating some machines ends their neighbours"""

    def ended(self, instance_ids):
        launches = {(one.job_id, one.launch) for one in map(self.cloud.machines.get, instance_ids) if one}
        super().ended([m.id for m in self.cloud.alive() if (m.job_id, m.launch) in launches])


@breaks(
    "terminating_nothing_is_no_error",
)
class TerminatesAllForNothing(MemoryProvisioner):
    """an empty list means every machine"""

    def ended(self, instance_ids):
        super().ended(instance_ids or list(self.cloud.machines))


@breaks(
    "announcing_is_safe_to_repeat_and_says_if_it_has_to_be",
)
class AnnouncesOnce(MemoryProvisioner):
    """a second announcement is an error"""

    def announce(self, instances, facts):
        announced = self.cloud.__dict__.setdefault("announced", set())
        if announced.intersection(one.id for one in instances):
            raise ProvisionError("announced already")
        announced.update(one.id for one in instances)


@breaks(
    "what_a_later_version_adds_is_passed_on_and_not_bought",
)
class KnowsAllStates(MemoryProvisioner):
    """a state of a later version is a bug"""

    def announce(self, instances, facts):
        for one in instances:
            assert one.state in list(InstanceState)


@breaks(
    "a_release_is_safe_to_repeat_and_harms_no_other_stores_job",
)
class ReleasesByTheJobsName(MemoryProvisioner):
    """a release ends another store's job of the same name"""

    def release(self, job_id, *, store_url=""):
        self.ended([one.id for one in self.cloud.alive() if one.job_id == job_id])


@breaks(
    "each_offer_has_a_name_of_its_own_and_a_price",
)
class OffersTheSameTwice(MemoryProvisioner):
    """two offers have one name"""

    def offered(self, resources):
        return super().offered(resources) * 2


@breaks(
    "what_nobody_sells_is_not_offered",
    "all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else[accelerators]",
    "all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else[memory]",
    "all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else[processors]",
)
class OffersWhatNobodySells(MemoryProvisioner):
    """an accelerator that does not exist is offered"""

    def offered(self, resources):
        return super().offered(Resources())


@breaks(
    "each_offer_has_a_name_of_its_own_and_a_price",
    "a_machine_is_offered_at_the_price_that_the_cloud_takes_for_an_hour",
    "spot_is_no_dearer_than_on_demand",
)
class OffersForNothing(MemoryProvisioner):
    """an offer costs nothing"""

    def offered(self, resources):
        return [replace(one, price_per_hour=0.0) for one in super().offered(resources)]


@breaks(
    "what_an_offer_costs_now_is_a_price_or_unknown",
    "what_an_offer_costs_now_is_counted_as_its_price_is",
)
class SaysItIsFreeNow(MemoryProvisioner):
    """the price of now is 0 where it is not known"""

    def current_price(self, offer):
        return 0.0


PROVISIONERS = [
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, MemoryProvisioner) and "broken" in vars(each)
]
