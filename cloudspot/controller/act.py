"""Carry out the actions that ``decide`` returned, one at a time; each action takes a call or two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from cloudspot.calls import CreateRequest, TerminateRequest
from cloudspot.controller.actions import (
    Action,
    Announce,
    Append,
    Certify,
    CleanUp,
    Create,
    OpenLaunch,
    Postpone,
    Release,
    RequestStop,
    Terminate,
    VoidSeat,
)
from cloudspot.controller.assess.assessment import Assessment
from cloudspot.controller.assess.memory import Memory
from cloudspot.controller.assess.observed import CreateFailure
from cloudspot.controller.clock import Clock
from cloudspot.controller.launchrequest import launch_token, render_launch
from cloudspot.controller.ownership import store_label
from cloudspot.errors import (
    CapacityError,
    CloudspotError,
    JobNotFound,
    ObjectMissing,
    ProvisionError,
    QuotaError,
    TransientError,
)
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobstore.access.stored_records import create_record, find_meta
from cloudspot.jobstore.checkpoints.manifests import complete
from cloudspot.jobstore.jobs.job_lists import mark_live
from cloudspot.jobstore.jobs.submission import delete_secrets, request_stop
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    Certificate,
    Finished,
    Intent,
    Kept,
    Repriced,
    Submission,
    Suspended,
    VoidOutcome,
    new_nonce,
)
from cloudspot.jobstore.nodes.launches import void_slot
from cloudspot.jobstore.remote.places import delete_relayed
from cloudspot.story.events import Event, EventKind
from cloudspot.story.outcomes import void_detail

REPEAT_SECONDS = 30.0
"""A machine is terminated again if it still runs this long after its termination."""

Record = TypeVar("Record", bound=Certificate | Finished | Suspended | Repriced | Kept)


class Actor:
    """Writes records and calls the provider for one controller, and remembers the provider's answers."""

    def __init__(
        self,
        store: ObjectStore,
        journal: Journal,
        job_id: str,
        provider: Provider,
        *,
        memory: Memory,
        clock: Clock,
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._label = store_label(store)
        self._provider = provider
        self._provisioner = provider.provisioner()
        self._memory = memory
        self._clock = clock
        self._journal = journal
        self._terminated_at: dict[str, float] = {}
        self._announced: tuple[list[str], Mapping[str, str]] | None = None
        self._waiting_for: str | None = None
        self._is_clean = False
        self._is_released = False

    def act(self, action: Action, assessed: Assessment, events: list[Event]) -> bool:
        """Carry out one action; return whether the next tick should follow without a wait.

        If the number of a journal record is taken, the record has lost a race. A lost race is not an error:
        the next tick reads the record that won.

        Raises:
            JobNotFound: the job has been removed since its records were read.
            CloudspotError: the job was submitted to another store, so its machines would refuse to use this
                store.
            TransientError: the outcome is unknown, and the next tick determines it.
        """
        history = assessed.history
        if isinstance(action, Postpone):
            self._wait(action, events)
            return False
        if not isinstance(action, Announce | Terminate | CleanUp | Release):
            self._waiting_for = None  # The four types above are repeated in each look and do not end a wait.
            self._check_existence()
        if isinstance(action, OpenLaunch):
            self._check_store(history.submission)
            # The mark comes before any machine, so that each driver of live jobs finds this job.
            mark_live(self._store, history.submission.job_id, history.submission.writer)
            self._journal.append(self._intent(action, assessed), action.number)
        elif isinstance(action, Certify):
            found = action.certificate
            key = keys.certificate(self._job_id, found.launch, found.instance_id)
            create_record(self._store, key, self._signed(found))
        elif isinstance(action, Append):
            if isinstance(action.record, Finished) and action.record.outcome != "succeeded":
                # A lost node may have uploaded a whole checkpoint without a commit. After the job's end,
                # nothing could commit it.
                complete(self._store, self._journal, self._job_id)
            self._journal.append(self._signed(action.record), action.number)
        elif isinstance(action, VoidSeat):
            detail = void_detail(action.outcome, action.detail)
            void_slot(
                self._store,
                self._job_id,
                *action.seat,
                detail,
                machines=action.machines,
                cause=action.cause,
                now=self._clock.now,
            )
        elif isinstance(action, RequestStop):
            resumption = history.submission.resumption
            request_stop(
                self._store, self._job_id, action.reason, resumption=resumption, detail=action.detail
            )
        elif isinstance(action, Create):
            return self._create(history.launches[action.launch - 1], events)
        elif isinstance(action, Announce):
            self._announce(action)
            return False
        elif isinstance(action, Terminate):
            self._terminate(action, events)
            return False
        elif isinstance(action, CleanUp):
            self._clean_up(history)
            return False
        elif isinstance(action, Release):
            self._release(history)
            return False
        return True

    def _check_existence(self) -> None:
        """Raise JobNotFound if the job was removed, because nobody would read its records.

        The controller may have read the job long ago, for example on a laptop that was closed in the
        meantime.
        """
        try:
            self._store.head(keys.spec(self._job_id))
        except ObjectMissing:
            raise JobNotFound(f"job {self._job_id!r} is no longer in {self._store.url}") from None

    def _check_store(self, submission: Submission) -> None:
        """Refuse to buy machines for a job whose directory was copied into another store."""
        wanted = submission.store_id
        if wanted is not None and self._store.find_id() not in (None, wanted):
            raise CloudspotError(
                f"job {self._job_id} was submitted to a store other than {self._store.url} (its "
                f"{keys.STORE_ID} is {wanted}), so no machine would serve it; stop it and resume it here"
            )

    def _intent(self, action: OpenLaunch, assessed: Assessment) -> Intent:
        now, history = self._clock.now(), assessed.history
        request = render_launch(
            action,
            assessed.spec,
            self._provider,
            history.submission,
            self._store.url,
            submission_sha256=history.submission_sha256,
            label=self._label,
            decided_at=now,
            run_seconds=assessed.ledger.run_seconds,
        )
        return Intent(
            launch=action.launch,
            offer=action.offer,
            token=launch_token(history.submission, action.launch),
            request=request,
            num_nodes=action.num_nodes,
            stands_in_for=action.stands_in_for,
            why=action.why,
            detail=action.detail,
            at=now,
            writer=new_nonce(),
        )

    def _signed(self, record: Record) -> Record:
        """Return the record with the present time and a new nonce."""
        return msgspec.structs.replace(record, at=self._clock.now(), writer=new_nonce())

    def _create(self, launch: LaunchHistory, events: list[Event]) -> bool:
        """Send the request stored in the intent, byte for byte; a request is never rendered again."""
        request = self._journal.request(launch.number)
        try:
            created = self._provisioner.create(CreateRequest(request=request, token=launch.intent.token))
        except ProvisionError as error:
            outcome: VoidOutcome = "refused"
            if isinstance(error, CapacityError):
                outcome = "capacity"
            elif isinstance(error, QuotaError):
                outcome = "quota"
                events.append(Event(EventKind.WARNED, str(error)))
            self._memory.note_failure(CreateFailure(launch.number, outcome, str(error)))
            return True
        self._memory.note_created(launch.number, created.instances, self._clock.monotonic())
        return False

    def _announce(self, action: Announce) -> None:
        announced = ([one.id for one in action.instances], action.facts)
        if announced != self._announced:
            self._provisioner.announce(action.instances, action.facts)
            self._announced = announced

    def _terminate(self, action: Terminate, events: list[Event]) -> None:
        monotonic = self._clock.monotonic()
        due = [
            one
            for one in action.instance_ids
            if one not in self._terminated_at or monotonic - self._terminated_at[one] >= REPEAT_SECONDS
        ]
        if not due:
            return
        # A machine that appeared late may have brought back resources that were already released.
        self._is_released = False
        result = self._provisioner.terminate(TerminateRequest(instance_ids=tuple(due)))
        refused = {one.instance_id for one in result.refused}
        for instance_id in (one for one in due if one not in refused):
            if instance_id not in self._terminated_at:
                events.append(Event(EventKind.WARNED, f"terminating {instance_id}: {action.why}"))
            self._terminated_at[instance_id] = monotonic
        if result.problem:
            raise TransientError(f"{result.problem}; trying again")

    def _clean_up(self, history: History) -> None:
        if not self._is_clean:
            delete_secrets(self._store, self._job_id, resumption=history.submission.resumption)
            delete_relayed(self._store, self._job_id)
            self._is_clean = True

    def _release(self, history: History) -> None:
        if not self._is_released:
            if find_meta(self._store, keys.journal(self._job_id, history.num_records + 1)) is not None:
                return  # The job was resumed or moved after this decision.
            self._provisioner.release(self._job_id, store_url=self._label)
            self._is_released = True

    def _wait(self, action: Postpone, events: list[Event]) -> None:
        if action.why != self._waiting_for:
            text = f"waiting up to {action.seconds:.0f} s: {action.why}"
            events.append(Event(EventKind.WAITING, text))
        self._waiting_for = action.why
