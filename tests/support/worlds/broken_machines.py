"""Provisioners, sources and identities that break one promise each, which their docstrings name."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from datetime import timedelta

import msgspec
from support.worlds.memorycloud import MemoryProvider, MemoryProvisioner, MemorySource

from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
    TransientError,
)
from cloudspot.model import EndReason, InstanceState, Market, NodeIdentity, Resources
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


@breaks(
    "each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing",
)
class CallsAQuotaNoRoom(MemoryProvisioner):
    """the account's limit counts as the cloud's"""

    def created(self, request, *, token):
        try:
            return super().created(request, token=token)
        except QuotaError as error:
            raise CapacityError(str(error)) from error


@breaks(
    "each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing",
)
class CallsADenialTransient(MemoryProvisioner):
    """a missing right is tried again for ever"""

    def created(self, request, *, token):
        try:
            return super().created(request, token=token)
        except AuthError as error:
            raise TransientError(str(error)) from error


@breaks(
    "each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing",
)
class GivesUpWhenThrottled(MemoryProvisioner):
    """throttling ends the launch for good"""

    def created(self, request, *, token):
        if self.cloud.faults.get(Call.CREATE) is Fault.THROTTLED:
            raise ProvisionError("throttled")
        return super().created(request, token=token)


@breaks(
    "each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing",
)
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
        body = {"launch": 1, "store_url": "", "offer": {"zone": "a", "instance_type": "m", "market": "spot"}}
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


@breaks(
    "a_listing_that_fails_tells_nothing",
)
class ListsNothingWhenUnwell(MemoryProvisioner):
    """a listing that fails is empty"""

    def listed(self, *, job_id=None):
        try:
            return super().listed(job_id=job_id)
        except TransientError:
            return ()


@breaks(
    "a_listing_that_fails_tells_nothing",
)
class CallsAForbiddenListingTransient(MemoryProvisioner):
    """a missing right to list is tried again for ever"""

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
)
class OffersWhatNobodySells(MemoryProvisioner):
    """an accelerator that does not exist is offered"""

    def offered(self, resources):
        return super().offered(Resources())


@breaks(
    "each_offer_has_a_name_of_its_own_and_a_price",
)
class OffersForNothing(MemoryProvisioner):
    """an offer costs nothing"""

    def offered(self, resources):
        return [replace(one, price_per_hour=0.0) for one in super().offered(resources)]


@breaks(
    "what_an_offer_costs_now_is_a_price_or_unknown",
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


@breaks(
    "a_notice_stands_and_every_process_hears_it",
)
class ForgetsTheNotice(MemorySource):
    """a notice is told once"""

    def poll(self):
        notice, self.machine.notice = super().poll(), None
        return notice


@breaks(
    "a_notice_stands_and_every_process_hears_it",
)
class TellsOneProcessOnly(MemorySource):
    """the first process to hear a notice keeps it"""

    def poll(self):
        notice = super().poll()
        if notice is not None and self.machine.__dict__.setdefault("heard_by", self) is not self:
            return None
        return notice


class _Tells(MemorySource):
    def told(self, deadline):
        raise NotImplementedError

    def poll(self):
        notice = super().poll()
        return notice and replace(notice, deadline=self.told(notice.deadline))


@breaks(
    "a_notice_is_heard_with_its_deadline",
)
class TellsNoZone(_Tells):
    """the deadline has no time zone"""

    def told(self, deadline):
        return deadline.replace(tzinfo=None)


@breaks(
    "a_notice_is_heard_with_its_deadline",
)
class TellsItsOwnTime(_Tells):
    """the deadline is an hour off, as by a zone that was left out"""

    def told(self, deadline):
        return deadline + timedelta(hours=1)


@breaks(
    "a_notice_is_heard_with_its_deadline",
)
class CountsFromTheTimeOfDay(MemorySource):
    """the deadline by the monotonic clock is by another one"""

    def poll(self):
        notice = super().poll()
        return notice and replace(notice, deadline_monotonic=notice.deadline.timestamp())


@breaks(
    "a_notice_is_heard_with_its_deadline",
)
class TellsNoDeadline(_Tells):
    """the deadline that the cloud states is lost"""

    def told(self, deadline):
        return None


@breaks(
    "silence_is_no_absence_of_a_notice",
)
class TakesSilenceForNoNotice(MemorySource):
    """a service that does not answer has no notice"""

    def poll(self):
        return self.machine.notice


@breaks(
    "silence_is_no_absence_of_a_notice",
)
class HangsInSilence(MemorySource):
    """a service that does not answer is waited for"""

    def poll(self):
        if self.machine.is_silent:
            time.sleep(11)
        return super().poll()


@breaks(
    "who_waits_is_woken_by_a_notice",
)
class SleepsThrough(MemorySource):
    """a wait lasts to its end, notice or not"""

    def wait(self, timeout):
        time.sleep(min(timeout, 12.0))
        return self.poll()


@breaks(
    "who_waits_in_vain_is_told_so_in_time",
    "who_waits_is_woken_by_a_notice",
)
class WaitsForNothing(MemorySource):
    """a wait returns at once"""

    def wait(self, timeout):
        return self.poll()


@breaks(
    "without_notice_there_is_none",
)
class IsAlwaysAtRisk(MemorySource):
    """each machine is told that it is at risk"""

    def is_at_risk(self):
        return True


@breaks(
    "the_length_of_a_notice_is_known",
)
class GivesNoLength(MemorySource):
    """a notice has no length"""

    notice_seconds = 0.0


SOURCES = [
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, MemorySource) and "broken" in vars(each)
]


class _Knows(MemoryProvider):
    def told(self, identity: NodeIdentity) -> NodeIdentity:
        raise NotImplementedError

    def identity(self):
        return self.told(super().identity())


@breaks(
    "a_machine_knows_who_it_is",
)
class TakesEachRankForTheFirst(_Knows):
    """a machine does not know its rank"""

    def told(self, identity):
        return replace(identity, rank=0)


@breaks(
    "a_machine_knows_who_it_is",
    "each_process_of_a_machine_is_told_the_same",
    "no_proxy_of_the_environment_is_asked",
)
class NamesItselfAnew(_Knows):
    """each process of a machine makes up its id"""

    def told(self, identity):
        return replace(identity, instance_id=f"m-{time.perf_counter_ns()}")


@breaks(
    "a_machine_knows_who_it_is",
)
class KnowsAnotherZone(_Knows):
    """a machine takes its region for its zone"""

    def told(self, identity):
        return replace(identity, zone="region")


@breaks(
    "no_proxy_of_the_environment_is_asked",
)
class AsksAProxy(_Knows):
    """the metadata service is asked through a proxy"""

    def told(self, identity):
        if "http_proxy" in os.environ:
            raise TransientError("the proxy does not answer")
        return identity


@breaks(
    "who_is_not_answered_has_to_ask_again",
)
class GivesUpInSilence(MemoryProvider):
    """a machine that boots gives up when it is not answered yet"""

    def node_identity(self):
        try:
            return super().node_identity()
        except TransientError as error:
            raise CloudspotError(str(error)) from error


IDENTITIES = [
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, MemoryProvider) and "broken" in vars(each)
]
