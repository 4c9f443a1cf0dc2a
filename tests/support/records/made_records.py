"""Builds records in a line each, at moments given in seconds after the submission."""

import dataclasses
from datetime import datetime, timedelta, timezone

import msgspec

from cloudspot.controller.assess.assessment import Assessment
from cloudspot.controller.assess.observed import Observed
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import (
    Certificate,
    CheckpointId,
    Commit,
    Exit,
    Finished,
    Generation,
    Heartbeat,
    Intent,
    Kept,
    Member,
    Moved,
    Notice,
    Repriced,
    Resumed,
    Seat,
    Slot,
    StopRequest,
    Submission,
    Suspended,
)
from cloudspot.model import EndReason, Instance, InstanceState, LaunchRequest, Market, Offer

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Records:
    """Everything a test of the controller's pure parts is made of."""

    start = START
    token_seconds = 600.0
    absence_seconds = 60.0

    @staticmethod
    def at(seconds):
        return START + timedelta(seconds=seconds)

    @staticmethod
    def spec(**tables):
        value = {"name": "digits", "run": {"entrypoint": "train.py"}, **tables}
        return spec_from_json(value)

    @staticmethod
    def offer(zone="a", market="spot", price=1.0, **changes):
        fields = {
            "instance_type": "big",
            "zone": zone,
            "market": Market(market),
            "price_per_hour": price,
            "on_demand_price_per_hour": 3.0,
        }
        return Offer(**{**fields, **changes})

    def intent(self, launch=1, *, at=0.0, offer=None, num_nodes=1, why="first", stands_in_for=()):
        return Intent(
            launch=launch,
            offer=offer or self.offer(),
            token=f"token-{launch}",
            request=LaunchRequest(provider="sim", body={"launch": launch}),
            num_nodes=num_nodes,
            stands_in_for=tuple(None if seat is None else Seat(*seat) for seat in stands_in_for),
            why=why,
            at=self.at(at),
            writer="w",
        )

    def slot(self, instance_id=None, *, at=10.0, detail="", cause=""):
        return Slot(
            instance_id=instance_id,
            address="10.0.0.1",
            detail=detail,
            cause=cause,
            at=self.at(at),
            writer="w",
        )

    def exit(self, outcome, *, instance_id="i-1-0", launch=1, rank=0, at=100.0, **changes):
        fields = {
            "launch": launch,
            "rank": rank,
            "instance_id": instance_id,
            "outcome": outcome,
            "detail": "",
            "exit_code": 0,
            "generation": 1,
            "restored_step": 0,
            "step": 0,
            "reached_step": changes.get("step", 0),
            "committed": None,
            "at": self.at(at),
            "writer": "w",
        }
        return Exit(**{**fields, **changes})

    def notice(self, *, launch=1, rank=0, at=50.0, step=0):
        return Notice(
            launch=launch,
            rank=rank,
            deadline=self.at(at + 30),
            action="terminate",
            source="sim",
            step=step,
            at=self.at(at),
            writer="w",
        )

    def heartbeat(self, *, instance_id="i-1-0", at=60.0, **changes):
        fields = {
            "counter": 1,
            "instance_id": instance_id,
            "address": "10.0.0.1",
            "port": 1,
            "state": "running",
            "generation": 1,
            "restored_step": 0,
            "step": 0,
            "steps_total": None,
            "metrics": {},
            "committed": None,
            "stall_seconds": None,
            "upload_seconds": None,
            "at": self.at(at),
        }
        return Heartbeat(**{**fields, **changes})

    def generation(self, number, *, launch=1, ranks=(0,), seats=None, restored=None, at=20.0, **changes):
        """``seats`` are (launch, rank); without them the nodes are of one launch."""
        seats = [(launch, rank) for rank in ranks] if seats is None else seats
        fields = {"why": "first", **changes}
        return Generation(
            number=number,
            members=tuple(
                Member(launch=k, rank=r, instance_id=f"i-{k}-{r}", address="10.0.0.1") for k, r in seats
            ),
            endpoint="10.0.0.1:1",
            restore_from=None if restored is None else CheckpointId(*restored),
            at=self.at(at),
            writer="w",
            **fields,
        )

    def commit(self, generation=1, step=50, *, number=0, at=60.0, sealed=None, kind="session", size=1000):
        sealed_at = self.at(at - 1 if sealed is None else sealed)
        return Commit(
            generation=generation, step=step, round=number, kind=kind, size=size, sealed_at=sealed_at,
            at=self.at(at), writer="w",
        )  # fmt: skip

    def certificate(
        self, instance_id="i-1-0", *, launch=1, rank=0, started=5.0, ended=100.0, end_reason="self"
    ):
        return Certificate(
            launch=launch,
            rank=rank,
            instance_id=instance_id,
            started_at=self.at(started),
            ended_at=self.at(ended),
            end_reason=EndReason(end_reason),
            at=self.at(ended),
            writer="w",
        )

    def launch(self, number=1, *, outcome=None, ended=100.0, claimed=True, detail="", **changes):
        """Return a launch claimed by i-<number>-<rank>, unless told; with an outcome it is over.

        Then its seats are void, or its machines have exit records and certificates as that outcome takes.
        """
        intent = changes.pop("intent", None) or self.intent(number)
        ranks = range(intent.num_nodes)
        slots = {rank: self.slot(f"i-{number}-{rank}") for rank in ranks} if claimed else {}
        fields = {"exits": {}, "notices": {}, "heartbeats": {}, "certificates": {}}
        if outcome in {"capacity", "quota", "refused", "voided"}:
            slots = {rank: self.slot(at=ended, detail=f"{outcome}: {detail}") for rank in ranks}
        elif outcome is not None:
            reason = {"reclaimed": "reclaimed", "lost": "unknown"}.get(outcome, "self")
            fields["certificates"] = {
                f"i-{number}-{rank}": self.certificate(
                    f"i-{number}-{rank}", launch=number, rank=rank, ended=ended, end_reason=reason
                )
                for rank in ranks
            }
            if outcome in {"succeeded", "failed", "stopped"}:
                fields["exits"] = {
                    rank: self.exit(
                        outcome, instance_id=f"i-{number}-{rank}", launch=number, rank=rank, at=ended,
                        detail=detail, generation=number,
                    )
                    for rank in ranks
                }  # fmt: skip
        return LaunchHistory(**{"intent": intent, "slots": slots, **fields, **changes})

    def capacity(self, number, *, at, offer=None, outcome="capacity"):
        """Return a launch that was refused."""
        intent = self.intent(number, at=at, offer=offer)
        return self.launch(number, outcome=outcome, ended=at, intent=intent, detail="none")

    def history(self, *launches, **changes):
        records = (*launches, *changes.get("generations", ()), *changes.get("commits", ()))
        submission = Submission(
            job_id="digits-1",
            provider="sim",
            spec={"name": "digits", "run": {"entrypoint": "train.py"}},
            code_sha256="0" * 64,
            code_bytes=1,
            secret_names=(),
            version="0",
            at=START,
            writer="w",
        )
        fields = {
            "first_submission": submission,
            "submission": submission,
            "submission_sha256": "5" * 64,
            "stop": None,
            "launches": launches,
            "generations": (),
            "commits": (),
            "finished": None,
            "num_records": len(records) + (changes.get("finished") is not None),
        }
        newest = changes.get("generations", ())[-1:]
        ids = [one.id for one in changes.get("commits", ())]
        own = [one for one in ids if not newest or one.generation == newest[0].number]
        fields["head"] = own[-1] if own else newest[0].restore_from if newest else None
        if changes.get("finished") is not None:
            fields["turns"] = ((len(launches), changes["finished"]),)
        return History(**{**fields, **changes})

    def stop(self, reason="user", *, at=0.0, detail=""):
        return StopRequest(reason=reason, detail=detail, at=self.at(at), writer="w")

    def finished(self, outcome="succeeded", *, at=200.0, exit_code=0, detail=""):
        return Finished(outcome=outcome, detail=detail, exit_code=exit_code, at=self.at(at), writer="w")

    def repriced(self, price, *, launch=1, at=100.0):
        return Repriced(launch=launch, price_per_hour=price, at=self.at(at), writer="w")

    def kept(self, *, launch=1, rank=0, until=1900.0, at=100.0, detail="broken", exit_code=1):
        return Kept(
            launch=launch,
            rank=rank,
            instance_id=f"i-{launch}-{rank}",
            until=self.at(until),
            detail=detail,
            exit_code=exit_code,
            at=self.at(at),
            writer="w",
        )

    def failed_and_kept(self, *, beat=None, **changes):
        """Return a job that has failed for good, with the machine of its only node kept until 1900."""
        broken = self.exit("failed", permanent=True, exit_code=1, detail="broken")
        beats = {} if beat is None else {0: self.heartbeat(state="kept", at=beat)}
        launch = self.launch(exits={0: broken}, heartbeats=beats, kept=self.kept())
        fields = {"finished": self.finished("failed", at=110.0, exit_code=1, detail="broken")}
        return self.history(launch, **{**fields, **changes})

    def suspended(self, *, at=200.0, detail="no capacity"):
        return Suspended(detail=detail, at=self.at(at), writer="w")

    def moved(self, *, at=250.0, to="s3://elsewhere/p"):
        return Moved(to=to, at=self.at(at), writer="w")

    def resumed(self, resumption=1, *, at=300.0, sha256="6" * 64):
        return Resumed(resumption=resumption, submission_sha256=sha256, at=self.at(at), writer="w")

    def instance(self, instance_id="i-1-0", state="running", *, launch=1, rank=0, launched=5.0, **changes):
        fields = {
            "id": instance_id,
            "state": InstanceState(state),
            "job_id": "digits-1",
            "launch": launch,
            "rank": rank,
            "launched_at": None if launched is None else self.at(launched),
        }
        if isinstance(changes.get("end_reason"), str):
            changes["end_reason"] = EndReason(changes["end_reason"])
        return Instance(**{**fields, **changes})

    def observed(self, *instances, **changes):
        fields = {
            "instances": instances,
            "token_seconds": self.token_seconds,
            "absence_proves_after_seconds": self.absence_seconds,
            "offers": (self.offer(),),
        }
        return Observed(**{**fields, **changes})

    def assess(self, history, instances=None, *, at=100.0, spec=None, **tables):
        """Return the job at that moment; ``tables`` are of its job file."""
        return Assessment(spec or self.spec(**tables), history, self.at(at), instances)

    @staticmethod
    def change(value, **changes):
        if dataclasses.is_dataclass(value):
            return dataclasses.replace(value, **changes)
        return msgspec.structs.replace(value, **changes)
