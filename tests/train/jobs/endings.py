"""Trainings that end in every way, each in a process of its own, forked when torch is imported.

``python endings.py DIRECTORY`` makes ``DIRECTORY/NAME`` the hand-off directory of each, and prints the exit
statuses as JSON. Each ends as a script does: with atexit's functions, if by its own means.
"""

import gc
import importlib
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import cloudspot.train as spot
from cloudspot.train import handoff

kept = []
"""Iterators that nobody closes before the process ends."""


def open_session():
    return spot.session(model=torch.nn.Linear(2, 2))


def end_of_steps():
    for _ in open_session().steps(3):
        pass


def end_of_batches():
    loader = DataLoader(TensorDataset(torch.zeros(6, 2)), batch_size=2)
    for _ in open_session().batches(loader):
        pass


def no_loop():
    open_session()


def break_out_of_steps():
    for step in open_session().steps(100):
        if step == 2:
            break


def break_out_of_batches():
    for _ in open_session().batches(itertools.repeat(0)):
        break
    sys.exit(0)


def break_with_iterator_kept():
    kept.append(open_session().steps(100))
    for step in kept[0]:
        if step == 2:
            break


def return_out_of_steps():
    def train():
        for step in open_session().steps(100):
            if step == 2:
                return

    train()


def break_out_of_epochs():
    run = open_session()
    for epoch in run.epochs(5):
        for _ in run.batches([1, 2, 3]):
            pass
        if epoch == 1:
            break


def exit_0():
    for step in open_session().steps(100):
        if step == 2:
            sys.exit(0)


def exit_3():
    for _ in open_session().steps(100):
        sys.exit(3)


def caught_outside_of_the_loop():
    try:
        for step in open_session().steps(100):
            if step == 2:
                raise StopIteration
    except StopIteration:
        pass


def break_then_error():
    for step in open_session().steps(100):
        if step == 2:
            break
    raise ValueError("no such file")


def error():
    for _ in open_session().steps(100):
        raise ValueError("no such layer")


def error_with_iterator_kept():
    kept.append(open_session().steps(100))
    for _ in kept[0]:
        raise ValueError("no such layer")


def exit_at_once():
    for _ in open_session().steps(100):
        os._exit(0)


def exit_at_once_with_no_known_end():
    for _ in open_session().batches(itertools.repeat(0)):
        os._exit(0)


def sigterm_exits():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for _ in open_session().steps(100):
        os.kill(os.getpid(), signal.SIGTERM)


def sigterm_exits_by_a_late_handler():
    run = open_session()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for _ in run.steps(100):
        os.kill(os.getpid(), signal.SIGTERM)


def sigterm_exits_with_iterator_kept():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    kept.append(open_session().steps(100))
    for _ in kept[0]:
        os.kill(os.getpid(), signal.SIGTERM)


def sigterm_makes_it_break():
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    for step in open_session().steps(100):
        if told:
            break
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def sigterm_is_ignored():
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    for step in open_session().steps(3):
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
    assert told == [1]


def sigterm_without_a_handler():
    for _ in open_session().steps(100):
        os.kill(os.getpid(), signal.SIGTERM)


def forked_process_exits():
    for step in open_session().steps(3):
        if step == 1:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)


ENDINGS = [
    end_of_steps,
    end_of_batches,
    no_loop,
    break_out_of_steps,
    break_out_of_batches,
    break_with_iterator_kept,
    return_out_of_steps,
    break_out_of_epochs,
    exit_0,
    exit_3,
    caught_outside_of_the_loop,
    break_then_error,
    error,
    error_with_iterator_kept,
    exit_at_once,
    exit_at_once_with_no_known_end,
    sigterm_exits,
    sigterm_exits_by_a_late_handler,
    sigterm_exits_with_iterator_kept,
    sigterm_makes_it_break,
    sigterm_is_ignored,
    sigterm_without_a_handler,
    forked_process_exits,
]

if __name__ == "__main__":
    torch.set_num_threads(1)
    importlib.import_module("cloudspot.train.sessions.opening")  # once for all
    gc.freeze()
    statuses = {}
    for ending in ENDINGS:
        directory = Path(sys.argv[1], ending.__name__)
        handoff.seals_directory(directory).mkdir(parents=True)
        process = os.fork()
        if process == 0:
            os.environ[handoff.HANDOFF] = str(directory)
            ending()
            break
        statuses[ending.__name__] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    else:
        print(json.dumps(statuses))
