"""``python -m cloudspot.agent``: what the boot script runs."""

from __future__ import annotations

import logging
import os

from cloudspot.agent.main import main

if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Not sys.exit, which waits for upload threads: after the exit record nobody needs them, and
    # the machine is paid for until this process has ended.
    os._exit(status)
