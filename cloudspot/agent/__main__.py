"""``python -m cloudspot.agent``: the command of the boot script."""

from __future__ import annotations

import logging
import os

from cloudspot.agent.main import main

if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # sys.exit would wait for upload threads, which do nothing useful after the exit record, and the machine
    # is paid for until this process ends.
    os._exit(status)
