"""The caller's end of a command on a node, which calls the node and receives the output."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.access.stored_records import create_record, find_record
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import RemoteAnswer, RemoteCall, Seat, new_nonce
from cloudspot.jobstore.nodes.node_records import find_node_record
from cloudspot.jobstore.remote.channel import Channel, ChannelEnded, Requests
from cloudspot.jobstore.remote.places import channel_of, delete_command
from cloudspot.jobstore.remote.relay import Frame, Kind

ANSWER_SECONDS = 40.0
"""The time to wait for the node's answer. Nodes look for calls every few seconds."""
_LOOK_SECONDS = 0.25
_REPEAT_SECONDS = 6.0
"""The time after which an unanswered call is put again. Another call may have replaced the first one in the
meantime.
"""
_FINISH_SECONDS = 10.0


class RemoteProcess:
    """A command that a node runs for us. The caller must always close it."""

    def __init__(self, store: ObjectStore, job_id: str, call: RemoteCall, channel: Channel) -> None:
        self._store, self._job_id, self._call = store, job_id, call
        self.channel = channel
        self.status: int | None = None
        """The command's exit status, or None until it has arrived."""
        self.message = ""
        """The node's last message, for example the reason why the node has ended the command."""
        self._is_cut_off = False

    def frames(self, *, seconds: float = 0.2) -> Frame | None:
        """Return the next frame of the command's output.

        Returns None if no frame arrived within ``seconds``, or if the command has ended.

        Raises:
            ChannelEnded: the node has ended the command or is silent, or the channel is corrupt.
        """
        frame = self.channel.take(seconds)
        if frame is None:
            return None
        if frame.kind is Kind.STATUS:
            self.status = int(frame.data)
        elif frame.kind is Kind.MESSAGE:
            self.message = frame.data.decode(errors="replace")
        elif frame.kind is Kind.CLOSE:
            self._is_cut_off = True
            raise ChannelEnded(self.message or "the node has ended the command")
        else:
            return frame
        return None

    def close(self) -> None:
        """Leave the channel, and delete the command's objects. The node deletes unread objects."""
        has_finished = False
        with suppress(ChannelEnded):
            self.channel.leave(Frame(Kind.CLOSE))
            has_finished = self.channel.finish(_FINISH_SECONDS)
        self.channel.end("it is over")
        awaits_us = (has_finished or self.channel.has_sent_close) and not self._is_cut_off
        delete_command(self._store, self._job_id, self._call, but_input=awaits_us)


def call_node(
    store: ObjectStore,
    job_id: str,
    seat: Seat,
    command_line: Sequence[str],
    *,
    size: tuple[int, int] | None = None,
    requests: Requests | None = None,
) -> RemoteProcess:
    """Start a command on a node of the job.

    With ``size``, the command gets a terminal of that many rows and columns.

    Raises:
        CloudspotError: the node does not run the command; the message gives the reason.
    """
    beat = find_node_record(store, keys.heartbeat, job_id, *seat)
    if beat is None:
        raise CloudspotError(f"node {seat} of job {job_id} has never reported: it has not started yet")
    if not beat.agent:
        raise CloudspotError(f"node {seat} of job {job_id} runs no commands: run.exec is false there")
    rows, columns = size or (0, 0)
    call = RemoteCall(
        launch=seat.launch,
        rank=seat.rank,
        instance_id=beat.instance_id,
        agent=beat.agent,
        user=f"{_user()}@{socket.gethostname()}",
        words=tuple(command_line),
        rows=rows,
        columns=columns,
        at=clock_of(store).now(),
        writer=new_nonce(),
    )
    try:
        answer = _await_answer(store, job_id, seat, call)
    except BaseException:
        _withdraw(store, job_id, seat, call)
        raise
    if answer.refused:
        delete_command(store, job_id, call)
        raise CloudspotError(f"node {seat} of job {job_id} refused to run the command: {answer.refused}")
    channel = channel_of(store, job_id, call, answer, is_node=False, requests=requests)
    channel.start()
    return RemoteProcess(store, job_id, call, channel)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return str(os.getuid())


def _await_answer(store: ObjectStore, job_id: str, seat: Seat, call: RemoteCall) -> RemoteAnswer:
    end, put_at = time.monotonic() + ANSWER_SECONDS, -_REPEAT_SECONDS
    key = keys.remote_answer(job_id, *seat, call.writer)
    while time.monotonic() < end:
        if time.monotonic() >= put_at + _REPEAT_SECONDS:
            put_at = time.monotonic()
            store.put(keys.remote_call(job_id, *seat), codec.encode(call))
        answer = find_record(store, key, RemoteAnswer)
        if answer is not None:
            return answer
        time.sleep(_LOOK_SECONDS)
    raise CloudspotError(
        f"node {seat} of job {job_id} has not answered for {ANSWER_SECONDS:.0f} s: its machine is gone,"
        " or its agent is too old; see: cloudspot show"
    )


def _withdraw(store: ObjectStore, job_id: str, seat: Seat, call: RemoteCall) -> None:
    """Prevent the node from starting the command, or make the node end the command if it has been started."""
    ours = RemoteAnswer(refused="it was withdrawn", at=call.at, writer=new_nonce())
    with suppress(CloudspotError):  # the store is unreachable; the node ends the command once we are silent
        answer = create_record(store, keys.remote_answer(job_id, *seat, call.writer), ours)
        if find_record(store, keys.remote_call(job_id, *seat), RemoteCall) == call:
            store.delete(keys.remote_call(job_id, *seat))
        if answer.refused:
            delete_command(store, job_id, call)
            return
        channel = channel_of(store, job_id, call, answer, is_node=False)
        channel.start()
        RemoteProcess(store, job_id, call, channel).close()
