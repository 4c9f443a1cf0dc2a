import subprocess
import sys

import msgspec
import pytest

from cloudspot.decoding import Metrics, convert, decode
from cloudspot.jobstore.layout.records import CheckpointId

# Fresh types each round, whose parts the threads meet for the first time at once. With msgspec's own
# functions this ends with a segmentation fault, most often in the first hundred rounds.
RACE = """
import sys, threading, types
from cloudspot.decoding import convert, decode

sys.setswitchinterval(1e-6)
SOURCE = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct, frozen=True):
    a: int
    b: str | None = None
class Middle(msgspec.Struct, frozen=True):
    x: Inner
    y: tuple[Inner, ...] = ()
    z: dict[str, Inner] = {}
class Outer(msgspec.Struct, frozen=True):
    m: Middle
    n: tuple[Middle, ...] = ()
    i: Inner | None = None
'''
INNER = {"a": 1}
MIDDLE = {"x": INNER, "y": [INNER]}
VALUES = {"Outer": {"m": MIDDLE, "n": [MIDDLE], "i": INNER}, "Middle": MIDDLE, "Inner": INNER}

def read_bytes(value, kind):
    return decode(repr(value).replace("'", '"'), kind)

def work(barrier, read, value, kind):
    barrier.wait()
    read(value, kind)

for number in range(300):
    module = sys.modules[f"made{number}"] = types.ModuleType(f"made{number}")
    exec(SOURCE, module.__dict__)
    barrier = threading.Barrier(6)
    threads = [
        threading.Thread(target=work, args=(barrier, read, value, getattr(module, name)))
        for name, value in VALUES.items()
        for read in (convert, read_bytes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("whole")
"""


@pytest.mark.full
def test_threads_that_meet_a_type_for_the_first_time_do_not_end_the_process():
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", RACE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-2000:]


def test_a_value_is_of_the_type_that_was_asked_for():
    wanted = CheckpointId(2, 30)
    assert decode(b'{"generation": 2, "step": 30}', CheckpointId) == wanted
    assert convert({"generation": 2, "step": 30}, CheckpointId) == wanted
    assert decode('{"generation": 2, "step": 30}', CheckpointId) == wanted


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_only_what_a_training_reports_may_be_no_finite_number(loss):
    (found,) = decode(f'{{"loss": "{loss}"}}', Metrics).values()
    assert str(found) == loss
    with pytest.raises(msgspec.ValidationError):
        decode(f'{{"loss": "{loss}"}}', dict[str, float])


@pytest.mark.parametrize(
    "read",
    [
        lambda: decode(b'{"generation": "2", "step": 30}', CheckpointId),
        lambda: decode(b"nonsense", CheckpointId),
        lambda: convert({}, CheckpointId),
        lambda: convert({"generation": 2, "step": "30"}, CheckpointId),
    ],
    ids=["another type", "no JSON", "a field is missing", "a number in a string"],
)
def test_a_value_of_another_type_is_an_error(read):
    with pytest.raises(msgspec.DecodeError):
        read()
