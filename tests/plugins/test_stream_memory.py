"""What memory a long stream to a cloud's store takes, whatever its length."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full


BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "object_store.py"
MAX_MEGABYTES = 200
"""Of the whole process: Python, the SDK and the parts that are on their way."""


# The small one is longer than the bound: a stream that is kept anywhere breaks it.
@pytest.mark.parametrize("gib", [0.5, pytest.param(5, marks=pytest.mark.soak)])
@pytest.mark.parametrize("scheme", ["s3", "gs", "oss"])
def test_a_stream_takes_the_memory_of_a_few_parts_however_long_it_is(scheme, gib):
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), scheme, "--stream-gib", str(gib)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(
        r"a stream of ([\d.]+) GB: \d+ MB/s, at most (\d+) MB in memory, \d+ MB .*\n", done.stdout
    )
    assert found is not None, done.stdout
    assert float(found[1]) == round(gib * (1 << 30) / 1e9, 2)
    assert int(found[2]) < MAX_MEGABYTES
