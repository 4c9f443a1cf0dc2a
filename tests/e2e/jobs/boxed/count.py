"""Counts to COUNT_TO, saves every 20 steps and at SIGTERM; it knows nothing of cloudspot."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def save():
    directory = Path("checkpoints", f"checkpoint-{step}")
    directory.mkdir(parents=True)
    (directory / "state.json").write_text(json.dumps({"step": step}))


saved = sorted(Path("checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
step = json.loads((saved[-1] / "state.json").read_text())["step"] if saved else 0
asked = []
signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
token, made = os.environ["COUNT_TOKEN"], Path("/made-by-setup").read_text().strip()
print(f"starts at {step}: token of {len(token)}, {os.environ['GREETING']}, {made}", flush=True)
while step < int(os.environ["COUNT_TO"]):
    time.sleep(0.05)
    step += 1
    if step % 20 == 0 or asked:
        save()
    if asked:
        print(f"leaves at {step}", flush=True)
        sys.exit(0)
print(f"has counted to {step}", flush=True)
