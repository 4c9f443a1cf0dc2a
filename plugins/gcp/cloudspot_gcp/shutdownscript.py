"""The machines' shutdown script, for the metadata key ``shutdown-script``: a second way to receive a notice.

The guest agent runs the script as root when the machine shuts down, because of a preemption or otherwise. The
script runs when the time of the metadata server's notice (``preemptionNoticeDuration``) is over, or together
with the notice if that has no duration. Source: Compute Engine documentation, "Run shutdown scripts": up to
30 seconds on a spot machine, best effort; 90 seconds on other machines (checked 2026-11).
"""

from __future__ import annotations

from typing import Final

KEY: Final = "shutdown-script"
"""The key in the instance's metadata."""
SOURCE: Final = "shutdown-script"
"""The source that the notice in the job's records names."""
SECONDS: Final = 25.0
"""The time on which a spot machine then counts, in seconds: five less than documented."""

# The boot script installs the command; before that, there is nothing to save.
SCRIPT: Final = f"""\
#!/bin/bash
# cloudspot: notifies the agent that this machine shuts down, and waits for it.
on_shutdown=${{CLOUDSPOT_NODE_DIR:-/var/lib/cloudspot}}/on-shutdown
[ ! -x "$on_shutdown" ] || exec "$on_shutdown" --source {SOURCE} --seconds {SECONDS:g}
"""
"""The script. The script contains no secret, and is the same on every machine."""
