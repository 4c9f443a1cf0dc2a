"""The machines' shutdown script, for the metadata key ``shutdown-script``: a second way to hear a notice.

The guest agent runs it as root when the machine is shut down, by a preemption or otherwise: after the
metadata server's notice has run out (``preemptionNoticeDuration``), or together with it if there is none.
Source: Compute Engine documentation, "Run shutdown scripts": up to 30 seconds on a spot machine, best
effort, 90 on another (checked 2026-11).
"""

from __future__ import annotations

from typing import Final

KEY: Final = "shutdown-script"
"""The key in the instance's metadata."""
SOURCE: Final = "shutdown-script"
"""What the job's notice names as its source."""
SECONDS: Final = 25.0
"""How long we count on a spot machine to have then: five seconds less than documented."""

# The boot script installs the command; before that there is nothing to save.
SCRIPT: Final = f"""\
#!/bin/bash
# cloudspot: tells the agent that this machine goes down, and waits for it.
on_shutdown=${{CLOUDSPOT_NODE_DIR:-/var/lib/cloudspot}}/on-shutdown
[ ! -x "$on_shutdown" ] || exec "$on_shutdown" --source {SOURCE} --seconds {SECONDS:g}
"""
"""It holds no secret, and is the same on every machine."""
