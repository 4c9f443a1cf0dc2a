"""Ends a machine whose supervisor was killed: ``python -m cloudspot.local.abandoned <directory>``.

The machine's ``shutdown`` runs it when no supervisor reacts, so that the machine's own timer ends it even
if nobody looks after it any more.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cloudspot.local.machines import MachineDirectory
from cloudspot.model import EndReason

if __name__ == "__main__":
    MachineDirectory(Path(sys.argv[1])).settle(reason=EndReason.SELF, unborn_seconds=0)
