"""A copy of the records of settled launches, so that one request is enough to read a long history.

The records themselves are kept and remain authoritative; the copy only saves reading them. The copy holds
create-only records, which never change, and the last versions of overwritten records. So every version of the
copy is correct, however old, and writers need not coordinate; a driver writes it when launches have settled.
The copy names its submission, because a driver that was suspended while its job was removed may write the
copy under the id of a new job. A copy that cannot be read or does not fit is ignored.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from cloudspot.errors import CorruptData
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.journal.consistency import check_place
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    Intent,
    JournalRecord,
    SettledLaunch,
    SettledLaunches,
    Submission,
)


def settled_launches(history: History) -> tuple[LaunchHistory, ...]:
    """Return the leading launches whose records are final, from the first one on."""
    return tuple(itertools.takewhile(lambda launch: launch.is_settled, history.launches))


def write_settled(store: ObjectStore, history: History, launches: tuple[LaunchHistory, ...]) -> None:
    """Replace the job's copy; ``launches`` come from ``settled_launches``."""
    submission = history.first_submission
    record = SettledLaunches(
        submission=submission.writer, launches=tuple(_to_record(launch) for launch in launches)
    )
    with_retries(store).put(keys.settled_launches(submission.job_id), codec.encode(record))


def find_settled(
    store: ObjectStore, submission: Submission, journal: Sequence[JournalRecord]
) -> SettledLaunches | None:
    """Return the job's copy, or None if no copy fits; ``journal`` was read before."""
    key = keys.settled_launches(submission.job_id)
    try:
        settled = find_record(with_retries(store), key, SettledLaunches)
        if settled is None or settled.submission != submission.writer:
            return None
        _check(settled, {one.launch: one.num_nodes for one in journal if isinstance(one, Intent)}, key)
    except CorruptData:
        return None
    return settled


def _to_record(launch: LaunchHistory) -> SettledLaunch:
    return SettledLaunch(
        launch=launch.number,
        slots=dict(launch.slots),
        exits=dict(launch.exits),
        notices=dict(launch.notices),
        heartbeats=dict(launch.heartbeats),
        certificates=tuple(launch.certificates.values()),
    )


def _check(found: SettledLaunches, num_nodes: Mapping[int, int], key: str) -> None:
    """Check the copy as readers check the records themselves; ``num_nodes`` maps launches to their sizes."""
    for number, settled in enumerate(found.launches, start=1):
        if settled.launch != number:
            raise CorruptData(f"{key} holds launch {settled.launch} in place of launch {number}")
        if any(proof.launch != number for proof in settled.certificates):
            raise CorruptData(f"{key} holds certificates of other launches than {number}")
        for records in (settled.slots, settled.exits, settled.notices, settled.heartbeats):
            for rank, record in records.items():
                check_place(record, number, rank, key)
                if rank >= num_nodes.get(number, 0):
                    raise CorruptData(f"{key} names node {rank}, which launch {number} does not have")
