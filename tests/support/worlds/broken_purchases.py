"""Provisioners that buy something else than was asked for, or tell other times; their docstrings say what."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta, timezone

import msgspec
from support.worlds.broken_machines import breaks
from support.worlds.memorycloud import GIB, TYPES, MemoryProvisioner

from cloudspot.errors import ProvisionError
from cloudspot.model import EndReason, InstanceState, Market

replace = msgspec.structs.replace
SAID_TO_HAVE_ENDED = "a_machine_that_is_said_to_have_ended_runs_no_more"
HALFWAY = "a_replay_when_one_of_two_machines_has_ended_harms_neither_the_other_nor_the_bill"
TIMES = "the_times_of_a_machine_are_those_of_its_life_and_have_a_zone"


class _Buys(MemoryProvisioner):
    """What stands in the cloud's books is another thing; the listing tells what was asked for."""

    def changes(self, body):
        raise NotImplementedError

    def purchase(self, body):
        return replace(super().purchase(body), **self.changes(body))


@breaks("each_machine_runs_the_boot_script")
class ForgetsTheBootScript(_Buys):
    """the boot script is forgotten"""

    def changes(self, body):
        return {"user_data": ""}


@breaks("each_machine_runs_the_boot_script")
class CutsTheBootScript(_Buys):
    """the boot script is cut"""

    def changes(self, body):
        return {"user_data": body["user_data"][:24]}


@breaks("each_machine_runs_the_boot_script")
class EncodesTheBootScriptTwice(_Buys):
    """the boot script is encoded twice, by the plugin and by its SDK"""

    def changes(self, body):
        return {"user_data": base64.b64encode(body["user_data"].encode()).decode()}


@breaks("each_machine_runs_the_boot_script")
class GivesTheFirstMachineAScript(MemoryProvisioner):
    """only the first machine of a launch has the boot script"""

    def make(self, body, rank):
        return super().make(body if rank == 0 else {**body, "user_data": ""}, rank)


@breaks("a_machine_is_on_the_market_that_was_asked_for[spot]")
class BuysOnDemandAlways(_Buys):
    """every machine is bought on demand"""

    def changes(self, body):
        return {"market": Market.ON_DEMAND}


@breaks("a_machine_is_on_the_market_that_was_asked_for[on-demand]")
class BuysSpotAlways(_Buys):
    """every machine is bought on the spot market"""

    def changes(self, body):
        return {"market": Market.SPOT}


@breaks("a_machine_is_of_the_type_that_was_asked_for")
class BuysTheDearest(_Buys):
    """every machine is of the most expensive type"""

    def changes(self, body):
        return {"instance_type": max(TYPES, key=lambda name: TYPES[name]["price"])}


@breaks("a_machine_is_of_the_type_that_was_asked_for")
class BuysTheCheapest(_Buys):
    """every machine is of the cheapest type"""

    def changes(self, body):
        return {"instance_type": "medium"}


@breaks("a_machine_is_in_the_zone_that_was_asked_for")
class BuysInOneZone(_Buys):
    """every machine is in the first zone"""

    def changes(self, body):
        return {"zone": "a"}


@breaks("a_machine_is_in_the_zone_that_was_asked_for")
class LeavesTheZoneToTheCloud(_Buys):
    """the request names no zone, and the cloud takes its last one"""

    def changes(self, body):
        return {"zone": "b"}


@breaks("a_machine_has_the_disk_that_was_asked_for")
class IgnoresTheDisk(_Buys):
    """every machine has the disk of its image"""

    def changes(self, body):
        return {"disk_bytes": 20 * GIB}


@breaks("a_machine_has_the_disk_that_was_asked_for")
class CountsTheDiskInGigabytes(_Buys):
    """a disk in GiB is asked for in GB, so that it is too small"""

    def changes(self, body):
        return {"disk_bytes": body["disk_bytes"] // GIB * 10**9}


@breaks("a_machine_has_the_disk_that_was_asked_for")
class BuysTheLargestDisk(_Buys):
    """every machine has the largest disk that there is"""

    def changes(self, body):
        return {"disk_bytes": 16_000 * GIB}


@breaks("a_machine_bears_the_labels_of_its_job")
class IgnoresTheLabels(_Buys):
    """the job's labels are ignored"""

    def changes(self, body):
        return {"labels": {}}


@breaks("a_machine_bears_the_labels_of_its_job")
class KeepsOneLabel(_Buys):
    """of the job's labels the last one stays"""

    def changes(self, body):
        return {"labels": dict(list(body["labels"].items())[-1:])}


@breaks("a_machine_ends_when_its_time_is_over_whoever_has_forgotten_it")
class IgnoresTheTimeLimit(_Buys):
    """a machine that is forgotten runs for ever"""

    def changes(self, body):
        return {"max_seconds": None}


@breaks("a_machine_ends_when_its_time_is_over_whoever_has_forgotten_it")
class LimitsInMinutes(_Buys):
    """the limit in seconds is sent as one in minutes"""

    def changes(self, body):
        return {"max_seconds": body["max_seconds"] * 60}


@breaks("a_machine_ends_when_its_time_is_over_whoever_has_forgotten_it")
class EndsEachAfterAnHour(_Buys):
    """each machine is ended after an hour, whatever its job's limit is"""

    def changes(self, body):
        return {"max_seconds": 3600.0}


@breaks(
    "as_many_machines_as_wished_are_bought_where_there_is_room",
    "fewer_on_demand_than_needed_are_none",
    "fewer_than_needed_are_none",
    "without_room_for_all_there_are_none",
)
class BuysTheMinimum(MemoryProvisioner):
    """never more than the least number of machines is bought"""

    def render(self, group):
        request = super().render(replace(group, num_nodes=group.min_nodes))
        return replace(request, body={**request.body, "min_nodes": 1})


# --- replays ------------------------------------------------------------------------------------------


class _Replays(MemoryProvisioner):
    """Does something else where a token's machines have ended in part."""

    def replayed(self, request, token, made):
        raise NotImplementedError

    def created(self, request, *, token):
        with self.cloud.lock:
            made = super().created(request, token=token)
            ended = [one for one in made if one.state is InstanceState.ENDED]
            return self.replayed(request, token, made) if 0 < len(ended) < len(made) else made


@breaks(HALFWAY)
class ReplacesWhatHasEnded(_Replays):
    """a replay buys a machine in the place of one that has ended"""

    def replayed(self, request, token, made):
        return [
            self.make(request.body, one.rank) if one.state is InstanceState.ENDED else one for one in made
        ]


@breaks(HALFWAY)
class EndsTheRest(_Replays):
    """a replay ends the machine that still runs"""

    def replayed(self, request, token, made):
        for one in made:
            self.cloud.end(one.id, EndReason.TERMINATED)
        return made


@breaks(HALFWAY)
class BuysTheWholeAgain(_Replays):
    """a replay buys the whole launch again where a part of it has ended"""

    def replayed(self, request, token, made):
        return [self.make(request.body, one.rank) for one in made]


@breaks(HALFWAY)
class RefusesAHalfEndedToken(_Replays):
    """a replay says that nothing runs where a machine does"""

    def replayed(self, request, token, made):
        raise ProvisionError("the token's machines have ended")


@breaks(HALFWAY)
class TellsTheEndedAlone(_Replays):
    """a replay tells only the machines that have ended"""

    def replayed(self, request, token, made):
        return [one for one in made if one.state is InstanceState.ENDED]


# --- states and times ---------------------------------------------------------------------------------


class _Lists(MemoryProvisioner):
    def told(self, one):
        raise NotImplementedError

    def listed(self, *, job_id=None):
        return tuple(self.told(one) for one in super().listed(job_id=job_id))


@breaks(SAID_TO_HAVE_ENDED)
class CallsShuttingDownEnded(_Lists):
    """a machine that is shutting down, and billed, is said to have ended"""

    def told(self, one):
        is_going = one.state is InstanceState.SHUTTING_DOWN
        return replace(one, state=InstanceState.ENDED) if is_going else one


@breaks(TIMES)
class TellsTheTimeOfTheListing(_Lists):
    """a machine began when it is listed"""

    def told(self, one):
        return replace(one, launched_at=self.cloud.clock())


@breaks(TIMES)
class TellsTheEndAnew(_Lists):
    """a machine ended when it is listed"""

    def told(self, one):
        return replace(one, ended_at=one.ended_at and self.cloud.clock())


@breaks(TIMES)
class EndsBeforeItBegan(_Lists):
    """the end of a machine lies before its beginning, as by a zone that was left out"""

    def told(self, one):
        return replace(one, ended_at=one.ended_at and one.ended_at - timedelta(hours=8))


@breaks("a_launch_makes_all_its_machines_and_the_listing_tells_whose_they_are")
class TellsAnEndOfEveryMachine(_Lists):
    """a machine that runs has a time of its end"""

    def told(self, one):
        return replace(one, ended_at=datetime(2026, 12, 1, tzinfo=timezone.utc))


@breaks(
    TIMES,
    SAID_TO_HAVE_ENDED,
    HALFWAY,
    "a_reclaimed_machine_says_so",
    "a_release_is_safe_to_repeat_and_harms_no_other_stores_job",
    "a_terminated_machine_is_listed_with_its_reason_or_no_more",
    "a_token_whose_machines_have_ended_makes_no_others",
    "announcing_is_safe_to_repeat_and_says_if_it_has_to_be",
    "the_inventory_lists_the_machines_and_ends_them",
)
class TellsAnEndWithoutAZone(_Lists):
    """the time of an end has no zone"""

    def told(self, one):
        return replace(one, ended_at=one.ended_at and one.ended_at.replace(tzinfo=None))


PURCHASES = [
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, MemoryProvisioner) and "broken" in vars(each)
]
