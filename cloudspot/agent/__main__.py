"""``python -m cloudspot.agent``: what the boot script runs."""

from __future__ import annotations

import sys

from cloudspot.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
