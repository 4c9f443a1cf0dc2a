"""Locates and deletes the objects of a command on a node, and derives the secret of the command's channel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import RemoteAnswer, RemoteCall, RemoteCommand, Seat
from cloudspot.jobstore.remote.channel import Channel, Requests

DELETED_AT_ONCE = 500


def channel_of(
    store: ObjectStore,
    job_id: str,
    call: RemoteCall,
    answer: RemoteAnswer,
    *,
    is_node: bool,
    requests: Requests | None = None,
) -> Channel:
    """Return one end of the channel of a call: the node's end if ``is_node``, otherwise the caller's.

    The secret is derived from both nonces. Every reader of the store can compute the secret, which serves
    only to detect objects of other commands.
    """
    place = job_id, call.launch, call.rank, call.writer

    def to_node(number: int) -> str:
        return keys.remote_input(*place, number)

    def from_node(number: int) -> str:
        return keys.remote_output(*place, number)

    parts = (call.agent, call.instance_id, call.writer, answer.writer)
    return Channel(
        store,
        sends=from_node if is_node else to_node,
        takes=to_node if is_node else from_node,
        secret=hashlib.sha256("\0".join(parts).encode()).digest(),
        requests=requests,
    )


def read_commands(store: ObjectStore, job_id: str) -> list[RemoteCommand]:
    """Return the commands that people have run on the job's nodes, oldest first."""
    keys_found = [meta.key for meta in store.list_objects(keys.remote_commands_prefix(job_id))]
    ours = (key for key in keys_found if keys.remote_command.match(key) is not None)
    found = (find_record(store, key, RemoteCommand) for key in ours)
    return sorted((one for one in found if one is not None), key=lambda one: one.at)


def delete_command(store: ObjectStore, job_id: str, call: RemoteCall, *, but_input: bool = False) -> None:
    """Delete the objects of a command; with ``but_input``, keep the input for the node. Safe to repeat."""
    place = job_id, call.launch, call.rank, call.writer
    kept = keys.remote_input.match if but_input else lambda _: None
    delete_below(store, keys.remote_command_prefix(*place), kept)


def delete_relayed(store: ObjectStore, job_id: str, seat: Seat | None = None) -> None:
    """Delete the calls of a node, or of all nodes, with the objects of their commands. Safe to repeat."""
    if seat is not None:
        with_retries(store).delete(keys.remote_call(job_id, *seat))
        delete_below(store, keys.remote_node_prefix(job_id, *seat))
        return
    reports = [meta.key for meta in with_retries(store).list_objects(keys.nodes_prefix(job_id))]
    delete_keys(store, [key for key in reports if keys.remote_call.match(key) is not None])
    delete_below(store, keys.remote_prefix(job_id))


def delete_below(
    store: ObjectStore, prefix: str, kept: Callable[[str], object | None] = lambda _: None
) -> None:
    """Delete the objects below a prefix, except those whose ``kept(key)`` is not None."""
    for page in with_retries(store).list_pages(prefix):
        delete_keys(store, [meta.key for meta in page.objects if kept(meta.key) is None])


def delete_keys(store: ObjectStore, found: Sequence[str]) -> None:
    """Delete these objects."""
    for start in range(0, len(found), DELETED_AT_ONCE):
        with_retries(store).delete_many(found[start : start + DELETED_AT_ONCE])
