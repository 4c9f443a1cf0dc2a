"""How an emulated function is started: apart from all that is installed here, and from this terminal."""

import io
import json
import os
import sys
import zipfile

import pytest
from support.jobs.process_portrait import left_open, portrait_of

from cloudspot.emulation.function_process import FunctionProcess

SEEN = """
import importlib.util, json, os, sys
names = ("mine", "cloudspot", "pytest")
print(json.dumps([[importlib.util.find_spec(one) is not None for one in names], dict(os.environ), sys.argv]))
print("done", flush=True)
sys.stdin.read()
import time
time.sleep(30)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows how a process was started")
def test_a_function_sees_its_own_code_and_variables_and_nothing_else_that_is_here(
    tmp_path, monkeypatch, wait_until
):
    monkeypatch.setenv("OF_THE_HOST", "not for functions")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("mine.py", "")
    process = FunctionProcess(archive.getvalue(), tmp_path)
    with left_open(tmp_path / "of-the-host"):
        process.start(["-c", SEEN, "word"], {"OF_THE_FUNCTION": "1"})
    try:
        said = []
        wait_until(lambda: said.append(process.printed()) or "done" in "".join(said))
        seen = portrait_of(process._process.pid)
        assert process.is_alive
    finally:
        process.close()
    found, environment, words = json.loads("".join(said).splitlines()[0])
    assert found == [True, False, False]
    assert environment.keys() - {"LC_CTYPE"} == {"OF_THE_FUNCTION", "PATH"}
    assert words == ["-c", "word"]
    assert seen.leads_its_session
    assert seen.directory == process.code_path
    assert seen.streams[0] == "/dev/null"
    assert str(tmp_path / "of-the-host") not in seen.files
    assert not process.is_alive
    assert os.getpgid(0) != seen.group
