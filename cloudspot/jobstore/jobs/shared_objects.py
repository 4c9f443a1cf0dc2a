"""What jobs share, code bundles and staged agents: who needs it, and its deletion when nobody does.

Before a deletion looks for others that have the object, it puts a mark beside it, which stays until the
object is deleted or spared. A submission that stands in the index looks for such marks, and where it finds
one it brings a copy of its own. So either the submission sees the mark, or the deletion, which looks later,
sees the submission. A deletion that is cut short leaves its mark; that costs others a copy, and nothing else.
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
"""Tells which of the keys a job needs, or may need."""


def delete_unneeded(
    store: ObjectStore, shared: Iterable[str], *, by: str, need: Need, but: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Delete those of the keys that no job but ``but`` needs, and return them; ``by`` names the marks."""
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
    """Return those of the keys that no job but ``but`` needs."""
    left, seen = shared, set(but)
    # Listed again before anything goes: a job may have been submitted meanwhile.
    while left and (new := sorted(set(list_jobs(store)) - seen)):
        needed = map_parallel(lambda other: need(store, other, shared), new, num_threads=NUM_THREADS)
        left = left.difference(*needed)
        seen.update(new)
    return left


def needed_until_removed(store: ObjectStore, job_id: str, shared: frozenset[str]) -> frozenset[str]:
    """Return what a job needs as long as it is in the store and can be resumed or forked from."""
    return _needed(store, job_id, shared, is_for_later=True)


def needed_now(store: ObjectStore, job_id: str, shared: frozenset[str]) -> frozenset[str]:
    """Return the same, but its staged agent only until it has finished and is not marked live.

    A job that is resumed brings its agent along, as its own.
    """
    return _needed(store, job_id, shared, is_for_later=False)


def _needed(store: ObjectStore, job_id: str, shared: frozenset[str], *, is_for_later: bool) -> frozenset[str]:
    try:
        submission, _ = read_first_submission(store, job_id)
    except CorruptData:
        return shared
    except JobNotFound:
        # Under way, cut short, or half removed; the last has no use for them.
        return shared if _is_reserved(store, job_id) else frozenset()
    needed = shared_keys(submission)
    agents = frozenset(key for key in needed & shared if keys.agent.match(key) is not None)
    # The mark was there before the submission that was read: one that is missing now was taken back.
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
    """Return all staged agents and code bundles that jobs share, and the marks of reapers beside them.

    Whatever else is below their prefixes is somebody else's.
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
    """Return a name for the marks of one deletion of a reaper's."""
    return keys.REAPER + secrets.token_hex(4)


def is_reapers_mark(key: str) -> bool:
    """Return whether the key is that of such a mark."""
    match = keys.removal.match(key)
    return match is not None and match[1].startswith(keys.REAPER)
