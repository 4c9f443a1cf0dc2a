"""Sources of notices and identities that break one promise each, which their docstrings name."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone

import msgspec
from support.worlds.broken_machines import breaks
from support.worlds.memorycloud import MemoryProvider, MemorySource

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.model import Market, NodeIdentity
from cloudspot.testing import nodekit

replace = msgspec.structs.replace
OTHER = "what_does_not_take_the_machine_is_no_notice"
BEHIND = "a_notice_is_heard_behind_what_does_not_take_the_machine"
TROUBLE = "trouble_is_no_absence_of_a_notice"
NO_TIME = "a_notice_without_a_time_is_heard_without_one"
LENGTH = "the_length_of_a_notice_is_that_of_the_clouds"
BEHIND_ANY = tuple(f"{BEHIND}[{case}]" for case in ("another machine", "freeze", "reboot"))


@breaks(
    "a_notice_stands_and_every_process_hears_it",
)
class ForgetsTheNotice(MemorySource):
    """a notice is told once"""

    def poll(self):
        notice = super().poll()
        self.machine.events.clear()
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
        return notice and replace(notice, deadline=notice.deadline and self.told(notice.deadline))


@breaks("a_notice_is_heard_with_its_deadline", *BEHIND_ANY)
class TellsNoZone(_Tells):
    """the deadline has no time zone"""

    def told(self, deadline):
        return deadline.replace(tzinfo=None)


@breaks("a_notice_is_heard_with_its_deadline", *BEHIND_ANY)
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
        return notice and replace(notice, deadline_monotonic=notice.deadline and notice.deadline.timestamp())


@breaks("a_notice_is_heard_with_its_deadline", *BEHIND_ANY)
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
        return None if self.machine.trouble == "no answer" else super().poll()


@breaks(
    "silence_is_no_absence_of_a_notice",
)
class HangsInSilence(MemorySource):
    """a service that does not answer is waited for"""

    def poll(self):
        if self.machine.trouble == "no answer":
            time.sleep(1.1 * nodekit.ANSWER_SECONDS)
        return super().poll()


@breaks(
    "who_waits_is_woken_by_a_notice",
)
class SleepsThrough(MemorySource):
    """a wait lasts to its end, notice or not"""

    def wait(self, timeout):
        time.sleep(min(timeout, 1.2 * nodekit.ANSWER_SECONDS))
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
    "the_length_of_a_notice_is_that_of_the_clouds",
)
class GivesNoLength(MemorySource):
    """a notice has no length"""

    notice_seconds = 0.0


class _Hears(MemorySource):
    """Takes other events for notices."""

    def is_notice(self, event):
        raise NotImplementedError

    def poll(self):
        found = [event for event in self.machine.ask() if self.is_notice(event)]
        return self.heard(found[0]["at"]) if found else None


@breaks(f"{OTHER}[another machine]", f"{BEHIND}[another machine]")
class HearsAnotherMachine(_Hears):
    """another machine's reclaim is taken for its own"""

    def is_notice(self, event):
        return event["kind"] == "reclaim"


@breaks(f"{OTHER}[freeze]", f"{BEHIND}[freeze]")
class TakesAFreezeForANotice(_Hears):
    """a machine that will stand still for seconds gives up"""

    def is_notice(self, event):
        return event["machine"] == "m-1" and event["kind"] in {"reclaim", "freeze"}


@breaks(f"{OTHER}[reboot]", f"{BEHIND}[reboot]")
class TakesARebootForANotice(_Hears):
    """a machine that will be booted again gives up"""

    def is_notice(self, event):
        return event["machine"] == "m-1" and event["kind"] in {"reclaim", "reboot"}


@breaks(*(f"{name}[{case}]" for name in (OTHER, BEHIND) for case in ("another machine", "freeze", "reboot")))
class TakesAnythingForANotice(_Hears):
    """whatever is announced is taken for a notice"""

    def is_notice(self, event):
        return True


@breaks(*BEHIND_ANY)
class ReadsTheFirstEventAlone(MemorySource):
    """a notice behind another event is not heard"""

    def poll(self):
        events = self.machine.ask()
        mine = [event for event in events[:1] if (event["machine"], event["kind"]) == ("m-1", "reclaim")]
        return self.heard(mine[0]["at"]) if mine else None


@breaks(*BEHIND_ANY)
class TakesTheTimeOfTheFirstEvent(MemorySource):
    """a notice has the time of the event before it"""

    def poll(self):
        notice = super().poll()
        return notice and self.heard(self.machine.events[0]["at"])


class _TakesForNone(MemorySource):
    trouble: str

    def poll(self):
        return None if self.machine.trouble == self.trouble else super().poll()


@breaks(f"{TROUBLE}[error]")
class TakesAnErrorForNone(_TakesForNone):
    """an answer with an error's status has no notice"""

    trouble = "error"


@breaks(f"{TROUBLE}[garbage]")
class TakesGarbageForNone(_TakesForNone):
    """an answer that cannot be read has no notice"""

    trouble = "garbage"


@breaks(f"{TROUBLE}[hang]")
class TakesAHangForNone(_TakesForNone):
    """a service that hangs has no notice"""

    trouble = "hang"


@breaks(f"{TROUBLE}[hang]")
class HangsWithTheService(MemorySource):
    """a service that hangs is waited for"""

    def poll(self):
        if self.machine.trouble == "hang":
            time.sleep(1.1 * nodekit.ANSWER_SECONDS)
        return super().poll()


@breaks(f"{TROUBLE}[error]")
class GivesUpAtAnError(MemorySource):
    """an error of the service ends the watch for notices"""

    def poll(self):
        if self.machine.trouble == "error":
            raise CloudspotError("the metadata service answers with status 500")
        return super().poll()


@breaks(f"{TROUBLE}[garbage]")
class TripsOverGarbage(MemorySource):
    """an answer that cannot be read is a bug's traceback"""

    def poll(self):
        if self.machine.trouble == "garbage":
            raise KeyError("events")
        return super().poll()


@breaks(NO_TIME)
class TripsOverNoTime(MemorySource):
    """a notice that names no time is a bug's traceback"""

    def heard(self, at):
        return super().heard(at.astimezone(timezone.utc))


@breaks(NO_TIME)
class TakesNoTimeForNone(MemorySource):
    """a notice that names no time is not heard"""

    def heard(self, at):
        return super().heard(at) if at else None


@breaks(NO_TIME)
class MakesUpATime(MemorySource):
    """a notice that names no time gets one anew, as often as it is read"""

    def heard(self, at):
        return super().heard(at or datetime.now(timezone.utc) + timedelta(seconds=self.notice_seconds))


@breaks(LENGTH)
class TellsALongLength(MemorySource):
    """the notices are said to be half an hour long"""

    notice_seconds = 1800.0


@breaks(LENGTH)
class TellsMinutes(MemorySource):
    """the length of the notices is in minutes"""

    notice_seconds = 2.0


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
        if self.machine.trouble == "no answer":
            raise CloudspotError("the metadata service does not answer")
        return super().node_identity()


MEETS = "who_meets_trouble_has_to_ask_again"


class _Troubled(MemoryProvider):
    """Does something else where the metadata service fails in one way."""

    trouble: str

    def troubled(self):
        raise NotImplementedError

    def node_identity(self):
        return self.troubled() if self.machine.trouble == self.trouble else super().node_identity()


@breaks(f"{MEETS}[error]")
class GivesUpBootingAtAnError(_Troubled):
    """a machine that boots gives up when the service is not ready yet"""

    trouble = "error"

    def troubled(self):
        raise CloudspotError("the metadata service answers with status 500")


@breaks(f"{MEETS}[garbage]")
class KnowsItselfFromGarbage(_Troubled):
    """a machine makes up what it cannot read"""

    trouble = "garbage"

    def troubled(self):
        return NodeIdentity(instance_id="<html>", rank=0, address="127.0.0.1")


@breaks(f"{MEETS}[garbage]")
class TripsOverGarbageBooting(_Troubled):
    """an answer that cannot be read ends the boot with a traceback"""

    trouble = "garbage"

    def troubled(self):
        raise ValueError("not JSON")


@breaks(f"{MEETS}[hang]")
class WaitsForAHangBooting(_Troubled):
    """a machine that boots waits for a service that hangs"""

    trouble = "hang"

    def troubled(self):
        time.sleep(1.1 * nodekit.ANSWER_SECONDS)
        raise TransientError("no answer")


@breaks("a_machine_knows_who_it_is")
class KnowsNoAddress(_Knows):
    """a machine does not know where the others reach it"""

    def told(self, identity):
        return replace(identity, address="")


@breaks("a_machine_knows_who_it_is")
class KnowsAnotherAddress(_Knows):
    """a machine takes another interface's address for its own"""

    def told(self, identity):
        return replace(identity, address="172.17.0.1")


@breaks("a_machine_knows_who_it_is")
class KnowsAnotherType(_Knows):
    """a machine takes its family for its type"""

    def told(self, identity):
        return replace(identity, instance_type="m")


@breaks("a_machine_knows_who_it_is")
class KnowsAnotherMarket(_Knows):
    """a spot machine takes itself for one on demand"""

    def told(self, identity):
        return replace(identity, market=Market.ON_DEMAND)


@breaks("a_machine_knows_who_it_is", "no_proxy_of_the_environment_is_asked")
class KnowsAnotherId(_Knows):
    """a machine takes its name for its id"""

    def told(self, identity):
        return replace(identity, instance_id="kit-1-1-1")


IDENTITIES = [
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, MemoryProvider) and "broken" in vars(each)
]
