"""``cloudspot cp``: copy a file to or from one of a job's nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cloudspot.cli.jobs import open_job
from cloudspot.cli.remote.nodes import call, choose_nodes, max_requests_option, python_command
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import node_option, store_option
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.host.size_text import size_text
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.remote import file_copy
from cloudspot.jobstore.remote.calling import RemoteProcess
from cloudspot.jobstore.remote.channel import ChannelEnded
from cloudspot.jobstore.remote.file_copy import CopyError
from cloudspot.jobstore.remote.relay import MAX_FRAME_BYTES, Frame, Kind

_PROGRAM = python_command("cloudspot.jobstore.remote.file_copy")
_MAX_LINE_BYTES = 64 << 20


@click.command("cp")
@click.argument("source")
@click.argument("target")
@node_option(help="The node, such as 2.0. Default: the first node that trains.")
@max_requests_option
@store_option
def cp(source: str, target: str, node: Seat | None, max_requests: int, store_url: str | None) -> None:
    """Copy a file to or from one of a job's nodes.

    One of SOURCE and TARGET is ID:PATH, where PATH is relative to the training's working directory. The file
    is verified by its hash, and appears only once it is complete. To continue an interrupted copy, run the
    same command again.
    """
    from_node, to_node = _split(source), _split(target)
    if (from_node is None) == (to_node is None):
        raise SpecError(
            "cp: either SOURCE or TARGET must be ID:PATH, a file on a node, and the other a file on this "
            "computer"
        )
    job_id, remote = from_node or to_node or ("", "")
    job = open_job(store_url, job_id)
    seat = choose_nodes(job, node)[0]
    local = Path(source if to_node else target)
    try:
        about = file_copy.describe(local) if to_node else None
        process = call(job, seat, _PROGRAM, most=max_requests)
        try:
            connection = _Connection(process)
            path, num_bytes, moved = (
                _send(connection, local, remote, about) if about else _fetch(connection, remote, local)
            )
        except ChannelEnded as error:
            raise CloudspotError(
                f"the copy was interrupted: {process.message or error}; repeat the command to continue"
            ) from None
        finally:
            process.close()
    except CopyError as error:
        raise CloudspotError(str(error)) from None
    size = size_text(num_bytes)
    there = "" if moved == num_bytes else f", {size_text(num_bytes - moved)} of them were there already"
    output.echo(f"copied {path}: {size}{there}")


def _split(text: str) -> tuple[str, str] | None:
    """Return the job and the path of ``ID:PATH``, or None for a path on this computer."""
    job_id, colon, path = text.partition(":")
    return (job_id, path or ".") if colon and "/" not in job_id and job_id else None


class _Connection:
    """The connection to the node's side of the copy, which exchanges lines and blocks."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process = process
        self._rest = bytearray()

    def send_message(self, message: dict[str, Any]) -> None:
        self.send(json.dumps(message).encode() + b"\n")

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_FRAME_BYTES):
            self._process.channel.send(Frame(Kind.INPUT, data[start : start + MAX_FRAME_BYTES]))

    def receive_message(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            CopyError: the node refused the copy.
        """
        while (end := self._rest.find(b"\n")) < 0:
            if len(self._rest) > _MAX_LINE_BYTES or not self._more():
                raise CopyError(f"the node's program ended with status {self._process.status}")
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        message: dict[str, Any] = json.loads(line)
        if "refused" in message:
            raise CopyError(f"on the node: {message['refused']}")
        return message

    def read(self, most: int) -> bytes:
        """Return up to ``most`` bytes, or none at the end."""
        while not self._rest:
            if not self._more():
                return b""
        data = bytes(self._rest[:most])
        del self._rest[:most]
        return data

    def has_answer(self) -> bool:
        """Return whether the node has sent a message or has ended."""
        frame = self._process.frames(seconds=0.0)
        if frame is not None and frame.kind is Kind.OUTPUT:
            self._rest += frame.data
        return b"\n" in self._rest or self._process.status is not None

    def _more(self) -> bool:
        while self._process.status is None:
            frame = self._process.frames()
            if frame is not None and frame.kind is Kind.OUTPUT:
                self._rest += frame.data
                return True
            if frame is not None and frame.kind is Kind.ERRORS:
                output.warn(frame.data.decode(errors="replace").strip())
        return False


def _send(connection: _Connection, local: Path, remote: str, about: dict[str, Any]) -> tuple[str, int, int]:
    connection.send_message({"do": "write", "path": remote, "name": local.name, "about": about})
    reply = connection.receive_message()
    start, rest = file_copy.read_from(local, reply["has"])
    connection.send_message({"start": start})
    with transfer(f"to {reply['path']}", about["size"] - start) as advance:
        for block in rest:
            if connection.has_answer():
                break
            connection.send(block)
            advance(len(block))
    connection.receive_message()
    return reply["path"], about["size"], about["size"] - start


def _fetch(connection: _Connection, remote: str, local: Path) -> tuple[str, int, int]:
    connection.send_message({"do": "read", "path": remote})
    reply = connection.receive_message()
    # Use the requested name: the node must not choose which local file is replaced.
    path = local / Path(remote).name if local.is_dir() else local
    with file_copy.writing(path) as file:
        connection.send_message({"has": file_copy.blocks_of(file_copy.partial_of(path))})
        start = connection.receive_message()["start"]
        size = reply["about"]["size"]
        with transfer(f"to {path}", size - start) as advance:

            def read(most: int) -> bytes:
                data = connection.read(most)
                advance(len(data))
                return data

            file_copy.write_from(path, file, reply["about"], start, read)
    return str(path), size, size - start
