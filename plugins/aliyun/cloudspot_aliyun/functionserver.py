"""The HTTP server that Function Compute starts; it passes each event to the driver's handler.

The server uses only the standard library, so it can report a missing package. Source: Function Compute,
"Event handlers" and "Specifications" of custom runtimes, "Configure environment variables", "Timer triggers"
and "Configure event triggers for Alibaba Cloud services" (checked 2026-11).
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

PORT: Final = 9000
INTERRUPTION: Final = "ecs:Instance:PreemptibleInstanceInterruption"
"""The type of the event by which ECS announces a reclaim."""
NOTICE_SECONDS: Final = 5.0
"""The same value as in cloudspot.plugin.functionchecks."""
LOG_CHARACTERS: Final = 500
_KEYS: Final = {
    "x-fc-access-key-id": "ALIBABA_CLOUD_ACCESS_KEY_ID",
    "x-fc-access-key-secret": "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
    "x-fc-security-token": "ALIBABA_CLOUD_SECURITY_TOKEN",
}
"""Each event brings a new key of the role; the environment's key is from the start of the instance."""


def event_of(body: bytes) -> dict[str, Any]:
    """Return the handler's event: a timer's payload, the wait after a notice, or the caller's own event."""
    event = json.loads(body or b"{}")
    if isinstance(event, list):  # EventBridge may send several events at once.
        event = event[0] if event else {}
    if not isinstance(event, dict):
        return {}
    if "triggerTime" in event:
        event = json.loads(event.get("payload") or "{}")
    elif event.get("type") == INTERRUPTION:
        event = {"wait_seconds": NOTICE_SECONDS}
    return dict(event)


def answer(body: bytes, handler: str) -> tuple[bool, dict[str, Any]]:
    """Run ``module.function`` for the event; return whether it failed, and the response."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            module, _, name = handler.rpartition(".")
            result = getattr(importlib.import_module(module), name)(event_of(body))
    except Exception as error:  # noqa: BLE001 - any error is reported to the caller
        _print(printed.getvalue() + traceback.format_exc())
        return True, {"errorMessage": str(error) or repr(error), "log": printed.getvalue()[-LOG_CHARACTERS:]}
    _print(printed.getvalue())
    return False, result


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer /invoke."""
        length = self.headers.get("Content-Length") or "0"
        if not re.fullmatch("[0-9]{1,8}", length):
            self.send_error(413)
            return
        body = self.rfile.read(int(length))
        request = self.headers.get("x-fc-request-id", "")
        os.environ.update({name: self.headers[one] for one, name in _KEYS.items() if self.headers.get(one)})
        # Function Compute needs these lines before and after a run.
        _print(f"FC Invoke Start RequestId: {request}\n")
        has_failed, result = answer(body, os.environ["FC_FUNCTION_HANDLER"])
        _print(f"FC Invoke End RequestId: {request}\n")
        content = json.dumps(result).encode()
        status = 404 if has_failed else 200
        self.send_response(status)
        self.send_header("x-fc-status", str(status))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


def main() -> None:
    """Serve one event after another, for the whole life of the instance."""
    port = int(os.environ.get("FC_CUSTOM_LISTEN_PORT") or PORT)
    HTTPServer(("0.0.0.0", port), _Handler).serve_forever()  # noqa: S104 - the instance's own network


if __name__ == "__main__":
    main()
