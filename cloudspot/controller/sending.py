"""Send one message in a child process, so that a notifier that hangs or dies does not delay the driver.

``send`` starts the child, which runs this module as a program. The child reads an order, and answers with a
line of JSON for each URL as soon as the URL's result is known.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError
from cloudspot.host.guarded_connections import Permit, guard_connections, permit
from cloudspot.model import Message
from cloudspot.registry import open_notifier

SEND_SECONDS = 20.0
"""A URL that has not accepted a message after this long counts as failed."""

REFUSED = (
    "leads to an address that is not on the internet; only the computer that submitted the job sends there, "
    "and only if the job file itself names the host: attach to the job there, or use a public address"
)


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    through: str
    message: Message
    urls: dict[str, str]
    """The URLs by the names under which they may be shown."""
    own: tuple[str, ...]
    """The names of the URLs that this computer's user has chosen."""

    def __repr__(self) -> str:
        return f"_Order({self.through}, {', '.join(self.urls)})"


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    error: str | None


def send(
    through: str,
    message: Message,
    urls: Mapping[str, str],
    *,
    own: Collection[str],
    seconds: float = SEND_SECONDS,
) -> dict[str, str]:
    """Send the message to all URLs in parallel; return the error of each URL that failed, by name.

    Only the ``own`` URLs, which this computer's user has chosen, may lead to addresses outside the public
    internet. The other URLs, and the redirects of their servers, may have been chosen by any writer of the
    bucket.

    The call takes at most ``seconds`` and raises nothing. The function is safe in any thread.
    """
    order = msgspec.json.encode(_Order(through=through, message=message, urls=dict(urls), own=tuple(own)))
    # The child finds the same modules from "/", its working directory, where no relative file URL leads to
    # our files.
    path = os.pathsep.join(str(Path(one).absolute()) for one in sys.path)
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, str(seconds)],
            cwd="/",
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver.
        )
    except OSError as error:
        return dict.fromkeys(urls, f"could not be asked: {error.strerror}")
    otherwise = "could not be asked: its process failed"
    try:
        output, _ = child.communicate(order, timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        otherwise = f"did not answer within {seconds:g} s"
    answers: dict[str, str | None] = {}
    with suppress(msgspec.DecodeError):
        answers.update(
            (one.name, one.error) for one in (decode(line, _Answer) for line in output.splitlines())
        )
    found = {name: answers.get(name, otherwise) for name in urls}
    return {name: error for name, error in found.items() if error is not None}


def main() -> None:
    """Run the child, which carries out the order on the standard input."""
    # The alarm ends the child if its parent has died.
    signal.alarm(int(float(sys.argv[1])) + 5)
    out = os.dup(1)
    os.dup2(2, 1)  # Libraries must not print among the answers.
    order: _Order = decode(sys.stdin.buffer.read(), _Order)
    notifier = open_notifier(order.through)
    guard_connections(threads_inherit={*order.urls} <= {*order.own})

    def attempt(name: str, url: str) -> None:
        error: str | None = None
        granted = Permit(may_be_private=name in order.own)
        permit.set(granted)
        try:
            notifier.send(url, order.message)
        except CloudspotError as refused:
            error = str(refused)
        if error is not None and granted.has_refused:
            error = REFUSED
        os.write(out, msgspec.json.encode(_Answer(name=name, error=error)) + b"\n")

    threads = [threading.Thread(target=attempt, args=one) for one in order.urls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
