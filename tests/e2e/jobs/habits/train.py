"""Saves as one of many public scripts does, without a session, and tells elsewhere what it has saved and found.

``HABIT`` holds the habit as JSON, and ``TOLD`` is the file to which it tells, outside the machine. What a file holds
says of which save it is, so anybody can see whether a checkpoint is whole.
"""

import io
import json
import os
import shutil
import signal
import sys
import time
import zipfile
from pathlib import Path

NUM_LINES = 4000
NUM_PIECES = 10
TABLE = "model.safetensors.index.json"
NUMBERED = {
    "trainer": ("model.safetensors", "optimizer.pt", "trainer_state.json"),
    "table": ("a.safetensors", TABLE, "optimizer.pt"),
    "accelerate": ("model.safetensors", "optimizer.bin", "random_states_0.pkl"),
    "steps": ("model", "optimizer"),
    "pointer": ("model",),
}
"""Habits with a directory for each save, and its files in the order in which they are written."""
SINGLE = {
    "marker": ("out/model", "out/optimizer", "out/done"),
    "archive": ("out/last.pt",),
    "rename": ("out/last.bin",),
    "in place": ("out/last.bin",),
}
"""Habits that write the same files again in each save."""
DIRECTORY = {
    **dict.fromkeys(("trainer", "table", "accelerate"), "out/checkpoint-*"),
    **dict.fromkeys(("steps", "pointer"), "out/step-*"),
    **{kind: paths[0] for kind, paths in SINGLE.items()},
    "marker": "out",
}
"""``checkpoint.directory`` for each habit."""
POINTER = Path("out/latest")


def files_of(kind, save):
    """Return the paths of a save's files, in the order in which they are written."""
    if kind in SINGLE:
        return [Path(path) for path in SINGLE[kind]]
    directory = Path(DIRECTORY[kind].replace("*", str(save)))
    return [directory / name for name in NUMBERED[kind]]


def content_of(path, save):
    """Return what a file of a save holds."""
    if path.name == "done":
        return str(save).encode()
    if path.suffix == ".json":
        return json.dumps({"save": save, "weight_map": {"x": "a.safetensors"}}).encode()
    data = f"{save}\n".encode() * NUM_LINES + b"end\n"
    if path.name != "last.pt":
        return data
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data", data)
    return buffer.getvalue()


def save_in(path):
    """Return of which save a file is; raise ValueError if it is torn."""
    if path.name == "done":
        return int(path.read_text())
    if path.suffix == ".json":
        return int(json.loads(path.read_text())["save"])
    try:
        data = zipfile.ZipFile(path).read("data") if path.name == "last.pt" else path.read_bytes()
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(str(error)) from error
    *lines, last = data.split()
    if last != b"end" or len(lines) != NUM_LINES or len(set(lines)) != 1:
        raise ValueError("it is torn")
    return int(lines[0])


def found_save(kind, root=Path()):
    """Return the save from which a script goes on below a directory; 0: there is none; None: it is torn."""
    number = None
    if kind in NUMBERED:
        parent = (root / DIRECTORY[kind]).parent
        there = {int(path.name.rpartition("-")[2]) for path in parent.glob(Path(DIRECTORY[kind]).name)}
        if kind == "pointer":
            pointer = root / POINTER
            there = {int(pointer.read_text().rpartition("-")[2])} if pointer.exists() else set()
        number = max(there, default=0)
        if number == 0:
            return 0
    paths = [root / path for path in files_of(kind, number)]
    if not any(path.exists() for path in paths):
        return 0
    try:
        saves = {save_in(path) for path in paths}
    except (OSError, ValueError):
        return None
    return saves.pop() if len(saves) == 1 else None


def slowness():
    """Return how many times longer than its processor time something takes here: how busy the machine is."""
    began, used = time.monotonic(), time.process_time()
    while time.process_time() < used + 0.05:
        pass
    return (time.monotonic() - began) / 0.05


class Script:
    """The training."""

    def __init__(self, habit):
        self.kind, self.habit = habit["kind"], habit
        self.was_told = False

    def tell(self, what, **more):
        """Tell what has happened, in one write."""
        line = json.dumps({"what": what, "at": time.time(), **more}) + "\n"
        descriptor = os.open(os.environ["TOLD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    def write(self, path, data):
        """Write a file in pieces, in place or beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.with_name(f"{path.name}.tmp") if self.kind == "rename" else path
        size = -(-len(data) // NUM_PIECES)
        with target.open("wb", buffering=0) as file:
            for number in range(NUM_PIECES):
                file.write(data[number * size : (number + 1) * size])
                time.sleep(self.habit["write_seconds"] / NUM_PIECES)
        if target != path:
            target.replace(path)

    def save(self, save):
        """Make a checkpoint, and delete those that are too many."""
        self.tell("begin", save=save, slowness=slowness())
        paths = files_of(self.kind, save)
        for number, path in enumerate(paths):
            if number:
                time.sleep(self.habit["pause_seconds"])
            self.write(path, content_of(path, save))
        if self.kind == "pointer":
            POINTER.write_text(paths[0].parent.name)
        stamps = {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}
        self.tell("saved", save=save, stamps=stamps)
        if self.kind in NUMBERED:
            for path in Path("out").glob(Path(DIRECTORY[self.kind]).name):
                if int(path.name.rpartition("-")[2]) <= save - 2:
                    shutil.rmtree(path)

    def train(self):
        """Train for a while, and save; leave once told and saved."""
        found = found_save(self.kind)
        self.tell("start", found=found)
        for save in range((found or 0) + 1, self.habit["num_saves"] + 1):
            end = time.monotonic() + self.habit["interval_seconds"]
            while time.monotonic() < end and not self.was_told:
                time.sleep(0.05)
                if self.habit["has_log"]:
                    Path("out").mkdir(exist_ok=True)
                    with Path("out/log.csv").open("a") as log:
                        log.write(f"{save},0.5\n")
            self.save(save)
            print(f"saved {save}", flush=True)
            if self.was_told:
                self.tell("left", save=save)
                sys.exit(0)
        self.tell("end")


def main():
    script = Script(json.loads(os.environ["HABIT"]))
    if script.habit["answers"]:
        signal.signal(signal.SIGTERM, lambda *_: setattr(script, "was_told", True))
    script.train()


if __name__ == "__main__":
    main()
