"""Strategies for what servers and services may answer, and a server that gives such answers."""

import re
import socket
import threading
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from hypothesis import strategies as st
from support.records.odd_values import HOSTILE, TEXTS, odd_bytes

NUMBERS = (
    *(
        "",
        "-1",
        "0",
        "1",
        "7",
        "1_000",
        " 7",
        "+7",
        "\u0663",
        "\u00b2",
        "1e3",
        "0x10",
        "1.5",
        "nan",
        "NaN",
        "inf",
    ),
    *(
        "-inf",
        "Infinity",
        "1e999",
        "9" * 20,
        "9" * 5000,
        str(10**16),
        str(2**63),
        str(2**64),
        "-" + "9" * 5000,
    ),
)
MOMENTS = (
    *("2026-13-45 08:22:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59"),
    *("2026-11-20T08:30:00", "2026-11-20T08:30Z", "Thu, 01 Jan 0001 00:00:00 +2359", "today", "1e300"),
)
texts = st.sampled_from([*NUMBERS, *MOMENTS, *TEXTS, HOSTILE]) | st.integers().map(str) | st.text(max_size=8)
"""What may stand where a number, a time or a name is expected."""
_STATUSES = (200, 206, 204, 301, 308, 400, 401, 403, 404, 409, 412, 416, 500, 503, 999)


class Answer(NamedTuple):
    """What goes over the wire."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def as_bytes(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Odd", *(f"{name}: {value}" for name, value in self.headers)]
        # A line break in a header would only begin another header.
        head = "\r\n".join(re.sub(r"[\r\n]", " ", line) for line in lines)
        return head.encode("utf-8", "replace") + b"\r\nConnection: close\r\n\r\n" + self.body


@st.composite
def answers(draw, headers: dict[str, str], body: st.SearchStrategy, *, status: int = 200) -> Answer:
    """Return an answer, of which at most one of status, headers and body is usually odd."""
    kind = draw(st.sampled_from(["header", "body", "body", "status", "all"]))
    is_odd = {name: kind == "all" and draw(st.booleans()) for name in headers}
    if kind == "header" and headers:
        is_odd[draw(st.sampled_from(sorted(headers)))] = True
    said = {name: draw(st.none() | texts) if is_odd[name] else value for name, value in headers.items()}
    data = draw(body)
    if "Content-Length" not in said:
        said["Content-Length"] = str(len(data))
    found = draw(st.sampled_from(_STATUSES)) if kind in {"status", "all"} else status
    return Answer(found, tuple((name, value) for name, value in said.items() if value is not None), data)


def odd_json(healthy: bytes) -> st.SearchStrategy:
    """Return JSON with some of its values odd, now and then no JSON at all, and sometimes as it was."""
    return st.just(healthy) | odd_bytes(healthy, Any)


@st.composite
def odd_xml(draw, healthy: bytes) -> bytes:
    """Return XML with some of its texts odd, or a part of it."""
    text = healthy.decode()
    places = [match.span(1) for match in re.finditer(">([^<>]+)<", text)]
    for start, end in sorted(draw(st.lists(st.sampled_from(places), max_size=2, unique=True)), reverse=True):
        odd = "".join(one for one in draw(texts) if one.isprintable())
        text = text[:start] + escape(odd) + text[end:]
    data = text.encode("utf-8", "replace")
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data


class AnsweringServer:
    """Answers every request with ``answer``, one after the other, and closes the connection."""

    def __init__(self) -> None:
        self.answer = b""
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.url = f"http://{self.address}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(5.0)
                    self._answer(connection)
                except OSError:
                    continue

    def _answer(self, connection: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            more = connection.recv(1 << 16)
            if not more:
                return
            asked += more
        head, _, body = asked.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        while length is not None and len(body) < int(length[1]):
            body += connection.recv(1 << 16)
        connection.sendall(self.answer)
