"""The command line, killed with SIGKILL at one of its HTTP requests: ``killed_at_call.py NUMBER WHEN WORD...``.

``WHEN`` is ``before``, when nothing of the request has left, or ``after``, when the server has answered and the
program does not know it yet. All SDKs make their requests with ``http.client``.
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
from typing import Any

from cloudspot.cli.main import main


def die_at(number: int, when: str) -> None:
    """Let the given request, counted from 1, be this process's last."""
    count = 0
    put_request, begin = http.client.HTTPConnection.putrequest, http.client.HTTPResponse.begin

    def counted(self: Any, *args: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        put_request(self, *args, **options)

    def answered(self: Any) -> None:
        begin(self)
        if count >= number and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    http.client.HTTPConnection.putrequest = counted  # type: ignore[method-assign]
    http.client.HTTPResponse.begin = answered  # type: ignore[method-assign]


if __name__ == "__main__":
    die_at(int(sys.argv[1]), sys.argv[2])
    sys.argv = ["cloudspot", *sys.argv[3:]]
    main()
