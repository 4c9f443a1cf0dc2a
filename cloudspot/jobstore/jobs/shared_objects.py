"""Objects that jobs share (code bundles and staged agents): who needs them, and deletion if nobody does.

Before a deletion looks for other jobs that need the object, it puts a mark next to it; the mark stays until
the object is deleted or spared. A submission whose entry is in the index looks for such marks; if it finds
one, it puts a copy of its own. So either the submission sees the mark, or the deletion, which looks later,
sees the submission. An interrupted deletion leaves its mark, which only makes other jobs put copies.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

from cloudspot.errors import CorruptData, JobNotFound
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.jobs.index_entry import read_entry
from cloudspot.jobstore.jobs.job_lists import is_marked_live, list_jobs
from cloudspot.jobstore.jobs.reader import has_finished
from cloudspot.jobstore.jobs.submission import read_first_submission, shared_keys
from cloudspot.jobstore.layout import keys
from cloudspot.model import ObjectMeta

NUM_THREADS = 8

Need = Callable[[ObjectStore, str, frozenset[str]], frozenset[str]]
"""Returns the given keys that a job needs or may need."""


def delete_unneeded(
    store: ObjectStore, shared: Iterable[str], *, by: str, need: Need, but: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Delete and return the keys that only jobs in ``but`` need, if any; ``by`` names the marks."""
    wanted = frozenset(shared)
    for key in wanted:
        store.put(keys.removal(key, by), b"")
    unneeded = find_unneeded(store, wanted, need=need, but=but)
    for key in sorted(unneeded):
        store.delete(key)
    for key in wanted:
        store.delete(keys.removal(key, by))
    return unneeded


def find_unneeded(
    store: ObjectStore, shared: frozenset[str], *, need: Need, but: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the keys that only jobs in ``but`` need, if any."""
    left, seen = shared, set(but)
    # List the jobs again before anything is deleted, because a job may have been submitted in the meantime.
    while left and (new := sorted(set(list_jobs(store)) - seen)):
        needed = map_parallel(lambda other: need(store, other, shared), new, num_threads=NUM_THREADS)
        left = left.difference(*needed)
        seen.update(new)
    return left


def needed_until_removed(store: ObjectStore, job_id: str, shared: frozenset[str]) -> frozenset[str]:
    """Return the keys that a job needs while it is in the store and can be resumed or forked."""
    return _needed(store, job_id, shared, is_for_later=True)


def needed_now(store: ObjectStore, job_id: str, shared: frozenset[str]) -> frozenset[str]:
    """Return the keys that a job needs, but without its staged agent once it has finished and is not live.

    A resumed job brings its own agent.
    """
    return _needed(store, job_id, shared, is_for_later=False)


def _needed(store: ObjectStore, job_id: str, shared: frozenset[str], *, is_for_later: bool) -> frozenset[str]:
    try:
        submission, _ = read_first_submission(store, job_id)
    except CorruptData:
        return shared
    except JobNotFound:
        # The submission is under way, was interrupted, or is being removed; only in the last case it needs no
        # objects.
        return shared if _is_reserved(store, job_id) else frozenset()
    needed = shared_keys(submission)
    agents = frozenset(key for key in needed & shared if keys.agent.match(key) is not None)
    # The mark was put before the submission that was read, so a missing mark has been removed.
    is_over = (
        not is_for_later and agents and not is_marked_live(store, job_id) and has_finished(store, job_id)
    )
    return needed - agents if is_over else needed


def _is_reserved(store: ObjectStore, job_id: str) -> bool:
    try:
        return read_entry(store, job_id).removal is None
    except JobNotFound:
        return False
    except CorruptData:
        return True


def shared_objects(store: ObjectStore) -> tuple[tuple[ObjectMeta, ...], tuple[ObjectMeta, ...]]:
    """Return all staged agents and code bundles that jobs share, and the reapers' marks next to them.

    Other objects below these prefixes do not belong to cloudspot.
    """
    shared, marks = [], []
    for prefix in (keys.agents_prefix(), keys.code_prefix()):
        for meta in store.list_objects(prefix):
            if keys.is_shared(meta.key):
                shared.append(meta)
            elif is_reapers_mark(meta.key):
                marks.append(meta)
    return tuple(shared), tuple(marks)


def new_reaper() -> str:
    """Return a name for the marks of a deletion by a reaper."""
    return keys.REAPER + secrets.token_hex(4)


def is_reapers_mark(key: str) -> bool:
    """Return whether the key is that of a reaper's mark."""
    match = keys.removal.match(key)
    return match is not None and match[1].startswith(keys.REAPER)
