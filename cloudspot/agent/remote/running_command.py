"""A command that a person runs on this node, from its start to the deletion of its objects."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from cloudspot.agent.node import Node
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.errors import CloudspotError
from cloudspot.host.bounded_reads import read_end
from cloudspot.host.kept_processes import KeptProcesses
from cloudspot.host.names import printable
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import RemoteAnswer, RemoteCall, RemoteCommand, new_nonce
from cloudspot.jobstore.remote import relay
from cloudspot.jobstore.remote.channel import DEFAULT_MAX_REQUESTS, ChannelEnded, Requests
from cloudspot.jobstore.remote.places import channel_of, delete_command
from cloudspot.jobstore.remote.relay import Frame, FrameReader, Kind

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often a command checks whether the node must leave; this is also how soon it ends then."""
CLOSE_SECONDS = 10.0
"""How long the node waits for the person to read why the command was ended."""
FULL_LOOK_SECONDS = 0.02
"""How often the command checks whether a program that reads slowly accepts more input."""
ERRORS_BYTES = 2000
"""The maximum size of the error message that is passed on if a relay cannot start."""
_READ_BYTES = 256 << 10
_COMMANDS = "remote-commands"


class RunningCommand:
    """Runs one command in its own threads, so it delays no other work of the node."""

    def __init__(
        self,
        context: NodeContext,
        runtime: Runtime,
        environment: Mapping[str, str],
        call: RemoteCall,
        answer: RemoteAnswer,
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._environment = environment
        self._call = call
        self._channel = channel_of(
            context.store, context.job_id, call, answer, is_node=True, requests=Requests(DEFAULT_MAX_REQUESTS)
        )
        self._directory = context.node.directory / _COMMANDS / call.writer
        self._cut_off: str | None = None
        self._status: int | None = None
        self._given_bytes = self._taken_bytes = 0
        """The bytes of the program's input given to its relay, and how many of them the program has read."""
        self._has_closed = threading.Event()
        """Set when the person has read the last frame or does not want to read more."""
        self._thread = threading.Thread(target=self._run, name=f"command {call.writer}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the command, or the deletion of its objects, is still in progress."""
        return self._thread.is_alive()

    def cut_off(self, why: str) -> None:
        """End the command soon, and give the person this reason."""
        self._cut_off = self._cut_off or why

    def _run(self) -> None:
        context, call = self._context, self._call
        begun = RemoteCommand(
            launch=call.launch,
            rank=call.rank,
            user=call.user,
            words=call.words,
            has_terminal=call.rows > 0,
            agent=context.agent,
            at=context.now(),
            writer=new_nonce(),
        )
        key = keys.remote_command(context.job_id, *context.seat, call.writer)
        try:
            self._channel.start()  # first, to report why if the record cannot be written
            create(context.store, key, codec.encode(begun))
            why = self._relay()
        except (CloudspotError, OSError) as error:
            why = str(error)
        finally:
            _processes(self._directory).kill()
        status = None if why else self._status
        with suppress(ChannelEnded):
            if status is None:
                self._channel.leave(Frame(Kind.MESSAGE, why.encode()), Frame(Kind.CLOSE))
            else:
                self._channel.send(Frame(Kind.STATUS, str(status).encode()))
        self._await_reader(CLOSE_SECONDS if why else math.inf)
        self._channel.end("it is over")
        ended = msgspec.structs.replace(begun, ended=context.now(), status=status, why=why)
        outcome = why or f"exit status {status}"
        _log.info("the command of %s has ended: %s", printable(call.user), outcome)
        with suppress(CloudspotError):  # the next agent, or a driver at the job's end, deletes the rest
            context.store.put(key, codec.encode(ended))
            delete_command(context.store, context.job_id, call)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _relay(self) -> str:
        """Run the program until it ends; return why it was ended early, or an empty string."""
        self._directory.mkdir(parents=True, exist_ok=True)
        call, runtime, ended = self._call, self._runtime, self._directory / "ended"
        python = runtime.keeper_python
        script = str(Path(relay.__file__).resolve())
        command, variables = runtime.command(
            _processes(self._directory).command(python, [python, "-IS", script], ended=ended),
            self._environment,
            ended=ended,
            has_input=True,
        )
        errors_path = self._directory / "errors"
        with errors_path.open("wb") as errors:
            process = subprocess.Popen(
                command,
                cwd=self._context.node.work,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        size = {"rows": call.rows, "columns": call.columns} if call.rows else {}
        start = json.dumps({"words": call.words, **size}).encode()
        passes_out = threading.Thread(target=self._pass_out, args=(process,), daemon=True)
        passes_out.start()
        threading.Thread(target=self._pass_in, args=(process, start), daemon=True).start()
        why = self._await_end(passes_out)
        ended.touch()
        _processes(self._directory).kill()
        process.kill()
        process.wait()
        passes_out.join(LOOK_SECONDS)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):  # it no longer reads
                stream.close()
        if self._status is None and not why:
            reason = read_end(errors_path, ERRORS_BYTES).decode(errors="replace").strip()
            why = f"the command cannot be run: {reason or 'its relay says nothing'}"
        return why

    def _await_end(self, output: threading.Thread) -> str:
        orders = self._context.orders
        while output.is_alive():
            if orders.reclaim is not None:
                return "the machine is being taken: the command was ended"
            if orders.pending:
                return "the node is leaving: the command was ended"
            if self._cut_off is not None:
                return self._cut_off
            if self._channel.is_left:
                return "the user has left"
            if self._channel.ended is not None:
                return self._channel.ended
            output.join(LOOK_SECONDS)
        return ""

    def _await_reader(self, seconds: float) -> None:
        """Wait until the person has read the last frame or is gone, for at most ``seconds``."""
        end = time.monotonic() + seconds
        while self._channel.ended is None and time.monotonic() < end:
            if self._has_closed.wait(LOOK_SECONDS):
                return
            if self._cut_off is not None:
                end = min(end, time.monotonic() + CLOSE_SECONDS)

    def _pass_in(self, process: subprocess.Popen[bytes], start: bytes) -> None:
        """Pass the person's frames to the relay, until the person closes the channel."""
        assert process.stdin is not None
        frame: Frame | None = Frame(Kind.START, start)
        with suppress(ChannelEnded):
            while frame is None or frame.kind is not Kind.CLOSE:
                if frame is not None:
                    self._given_bytes += len(frame.data) if frame.kind is Kind.INPUT else 0
                    with suppress(OSError, ValueError):  # it has ended
                        process.stdin.write(frame.encode())
                        process.stdin.flush()
                # Input that the program does not read must not delay a signal.
                is_full = process.poll() is None and self._num_waiting >= relay.MAX_WAITING_BYTES
                frame = self._channel.take(FULL_LOOK_SECONDS if is_full else 1.0, urgent_only=is_full)
            self._has_closed.set()

    @property
    def _num_waiting(self) -> int:
        return self._given_bytes - self._taken_bytes

    def _pass_out(self, process: subprocess.Popen[bytes]) -> None:
        """Pass the relay's frames to the person, but keep the program's status to send it last."""
        assert process.stdout is not None
        reader = FrameReader()
        with suppress(OSError, ValueError, ChannelEnded):
            while data := os.read(process.stdout.fileno(), _READ_BYTES):
                for frame in reader.feed(data):
                    if frame.kind is Kind.STATUS:
                        self._status = int(frame.data)
                        return
                    if frame.kind is Kind.TAKEN:
                        self._taken_bytes = int(frame.data)
                    else:
                        self._channel.send(frame)


def end_leftovers(node: Node) -> None:
    """End the commands that an earlier agent of this machine left running."""
    for directory in node.directory.glob(f"{_COMMANDS}/*"):
        (directory / "ended").touch()
        _processes(directory).kill()
        shutil.rmtree(directory, ignore_errors=True)


def _processes(directory: Path) -> KeptProcesses:
    return KeptProcesses(directory / "processes")
