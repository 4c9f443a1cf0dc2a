"""Runs a program on a node and relays its streams in frames; defines the format of the frames.

The module runs as ``python -IS relay.py`` in the job's environment, inside the job's container if there is
one. The relay reads frames from its standard input, the first of which names the program, and writes frames
to its standard output. The end of the input means that the agent is gone, so the relay ends the program. It
needs only the standard library, because a container may run it with the container's own Python.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import json
import os
import selectors
import signal
import struct
import termios
from collections import deque
from typing import NamedTuple

MAX_FRAME_BYTES = 256 << 10
"""The maximum number of bytes that a frame holds."""
_HEADER = struct.Struct(">BI")
_READ_BYTES = 64 << 10
MAX_WAITING_BYTES = 1 << 20
"""The most input that waits for the program to read it; when there is more, the agent passes on only signals.
"""
_ACKNOWLEDGED_BYTES = 64 << 10
"""The most bytes that the program reads before the agent is notified."""
_PIPE_BYTES = 1 << 20
"""The most bytes that a pipe holds: no more than this of an output can be left after the program's end."""
_LEAVE_SECONDS = 2.0
"""The time that the program may take to end after SIGHUP before it is killed."""
_NOT_FOUND, _NOT_RUN = 127, 126


class Kind(enum.IntEnum):
    """The kind of a frame's content."""

    START = 0
    """The program's ``words``, and ``rows`` and ``columns`` if it gets a terminal, in JSON."""
    INPUT = 1
    END_OF_INPUT = 2
    SIZE = 3
    """The terminal's rows and columns, in JSON."""
    SIGNAL = 4
    """The name of a signal for the program's process group, such as ``INT``."""
    OUTPUT = 5
    ERRORS = 6
    """Bytes of standard error. With a terminal, standard error is part of ``OUTPUT``."""
    STATUS = 7
    """The program's exit status as a shell reports it, a number as text, in the program's last frame."""
    MESSAGE = 8
    """A sentence for the person at the other end."""
    TAKEN = 9
    """How many bytes this end has taken in total, of frames or of the program's input; a number as text."""
    ALIVE = 10
    CLOSE = 11
    """This end has left: it neither sends nor reads anything more."""


class Frame(NamedTuple):
    """A message of one kind, the unit in which the streams are relayed."""

    kind: Kind
    data: bytes = b""

    @property
    def size(self) -> int:
        """The frame's length in bytes when encoded."""
        return _HEADER.size + len(self.data)

    def encode(self) -> bytes:
        """Return the frame's bytes."""
        return _HEADER.pack(self.kind, len(self.data)) + self.data


class FrameReader:
    """Assembles frames from bytes that arrive in chunks of any size."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether the bytes received so far end between two frames."""
        return not self._rest

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete.

        Raises:
            ValueError: the bytes do not form frames.
        """
        self._rest += data
        found, at = [], 0
        while len(self._rest) - at >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._rest, at)
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes is too large")
            end = at + _HEADER.size + size
            if end > len(self._rest):
                break
            found.append(Frame(Kind(kind), bytes(self._rest[at + _HEADER.size : end])))
            at = end
        del self._rest[:at]
        return found


def size_frame(rows: int, columns: int) -> Frame:
    """Return the frame with the size of a terminal."""
    return Frame(Kind.SIZE, json.dumps({"rows": rows, "columns": columns}).encode())


class _Program:
    """The program, and the input that it has not read yet."""

    def __init__(self, argv: list[str], size: tuple[int, int] | None) -> None:
        self.pid = 0
        self.status: int | None = None
        self._waiting: deque[bytes] = deque()
        self.num_taken = 0
        """How many bytes of its input the program has read or will never read."""
        self._input_ended = False
        self.terminal: int | None = None
        if size is not None:
            self.terminal, theirs = os.openpty()
            self.resize(*size)
            self.input, self.outputs = self.terminal, {self.terminal: Kind.OUTPUT}
            given, ours = (theirs, theirs, theirs), []
        else:
            theirs, self.input = os.pipe()
            output, out = os.pipe()
            errors, err = os.pipe()
            self.outputs = {output: Kind.OUTPUT, errors: Kind.ERRORS}
            given, ours = (theirs, out, err), [out, err]
        self._spawn(argv, given)
        for each in {theirs, *ours}:
            os.close(each)
        os.set_blocking(self.input, False)

    def _spawn(self, argv: list[str], given: tuple[int, int, int]) -> None:
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            if self.terminal is not None:
                fcntl.ioctl(given[0], termios.TIOCSCTTY, 0)
            for stream, each in enumerate(given):
                os.dup2(each, stream)
            for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.closerange(3, 4096)
            os.execvp(argv[0], argv)  # noqa: S606 - the caller chose the program
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
            os._exit(_NOT_FOUND if error.errno == errno.ENOENT else _NOT_RUN)

    def resize(self, rows: int, columns: int) -> None:
        if self.terminal is not None:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, name: str) -> None:
        number = getattr(signal, f"SIG{name}", None)
        if isinstance(number, signal.Signals) and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    @property
    def wants_to_read(self) -> bool:
        return bool(self._waiting)

    def give(self, data: bytes) -> None:
        if self.input >= 0:
            self._waiting.append(data)
        else:
            self.num_taken += len(data)

    def end_input(self) -> None:
        if self.terminal is not None:
            self.give(b"\x04")  # Ctrl-D
        else:
            self._input_ended = True
            self.pass_on()

    def pass_on(self) -> None:
        """Write as much waiting input as the program reads, and close the program's input after its end."""
        try:
            while self._waiting and self.input >= 0:
                written = os.write(self.input, self._waiting[0])
                self.num_taken += written
                rest = self._waiting.popleft()[written:]
                if rest:
                    self._waiting.appendleft(rest)
        except BlockingIOError:
            return
        except OSError:  # the program reads no more
            self.num_taken += sum(map(len, self._waiting))
            self._waiting.clear()
            self._input_ended = self.terminal is None
        if self._input_ended and not self._waiting and self.input >= 0:
            os.close(self.input)
            self.input = -1

    def look(self) -> None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code


def _write_frame(frame: Frame) -> None:
    data = memoryview(frame.encode())
    while data:
        data = data[os.write(1, data) :]


def _relay(program: _Program, reader: FrameReader, given: list[Frame]) -> None:
    """Relay until the program has ended and its output is passed on, or until the relay's own input ends."""
    selector = selectors.DefaultSelector()
    open_outputs = set(program.outputs)
    for each in open_outputs:
        selector.register(each, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    num_acknowledged = 0
    while True:
        for frame in given:
            _take(program, frame)
        given = []
        if program.wants_to_read:
            program.pass_on()
        if program.num_taken - num_acknowledged >= _ACKNOWLEDGED_BYTES or (
            program.num_taken > num_acknowledged and not program.wants_to_read
        ):
            num_acknowledged = program.num_taken
            _write_frame(Frame(Kind.TAKEN, str(num_acknowledged).encode()))
        program.look()
        if program.status is not None:
            _read_the_rest(program, selector, open_outputs)
            return
        for fd in _ready(selector, 0.05 if program.wants_to_read else 0.2):
            if fd == 0:
                data = os.read(0, _READ_BYTES)
                if not data:
                    return
                given += reader.feed(data)
        _read_outputs(program, selector, open_outputs, seconds=0.0)


def _read_the_rest(program: _Program, selector: selectors.BaseSelector, open_outputs: set[int]) -> None:
    """Pass on the output that the program wrote before its end.

    Processes that the program left behind may keep its outputs open and write forever.
    """
    for _ in range(_PIPE_BYTES // _READ_BYTES + 1):
        if not _read_outputs(program, selector, open_outputs, seconds=0.0):
            break
    if open_outputs:
        _write_frame(
            Frame(Kind.MESSAGE, b"the command has ended; processes that it has left behind are ended too")
        )


def _ready(selector: selectors.BaseSelector, seconds: float) -> list[int]:
    return [key.fd for key, _ in selector.select(seconds)]


def _read_outputs(
    program: _Program, selector: selectors.BaseSelector, open_outputs: set[int], *, seconds: float
) -> bool:
    """Pass on the program's output so far. Return whether there was any output."""
    has_read = False
    for fd in _ready(selector, seconds):
        if fd not in open_outputs:
            continue
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            continue
        except OSError:  # Linux reports in this way that nobody has the terminal open any more
            data = b""
        if data:
            has_read = True
            _write_frame(Frame(program.outputs[fd], data))
        else:
            selector.unregister(fd)
            open_outputs.remove(fd)
    return has_read


def _take(program: _Program, frame: Frame) -> None:
    if frame.kind is Kind.INPUT:
        program.give(frame.data)
    elif frame.kind is Kind.END_OF_INPUT:
        program.end_input()
    elif frame.kind is Kind.SIZE:
        size = json.loads(frame.data)
        program.resize(size["rows"], size["columns"])
    elif frame.kind is Kind.SIGNAL:
        program.signal(frame.data.decode())


def main() -> None:
    """Run the program that the first frame names."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    reader = FrameReader()
    frames: list[Frame] = []
    while not frames:
        data = os.read(0, _READ_BYTES)
        if not data:
            return
        frames = reader.feed(data)
    start = json.loads(frames.pop(0).data)
    size = (start["rows"], start["columns"]) if "rows" in start else None
    program = _Program(start["words"], size)
    with contextlib.suppress(BrokenPipeError):
        _relay(program, reader, frames)
    if program.status is None:
        program.signal("HUP")
        signal.alarm(int(_LEAVE_SECONDS))
        signal.signal(signal.SIGALRM, lambda *_: program.signal("KILL"))
        _, status = os.waitpid(program.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        program.status = code if code >= 0 else 128 - code
    with contextlib.suppress(BrokenPipeError):
        _write_frame(Frame(Kind.STATUS, str(program.status).encode()))


if __name__ == "__main__":
    main()
