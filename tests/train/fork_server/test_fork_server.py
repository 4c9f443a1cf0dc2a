"""What the fork server refuses to fork; see tests/agent/training/launching/test_fork_server.py for programs that it forks."""

import os
import sys
from pathlib import Path

import pytest

from cloudspot.train.fork_server import fork_server
from cloudspot.train.fork_server.fork_server import Program
from cloudspot.train.fork_server.preloaded import Preloaded

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux shows forks by their own environment"
)

HERE = {"HOME": "/home/mine", "OMP_NUM_THREADS": "1"}


class Room:
    """Holds any environment."""

    @staticmethod
    def holds(_program):
        return True


@pytest.fixture
def why_not(tmp_path, monkeypatch):
    """``why_not(environment, words)``: why the server of ``HERE`` would not fork a program."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("threading.active_count", lambda: 1)  # the tests before may have left threads behind

    def why_not(environment=HERE, words=("python", "-u", "train.py")):
        program = Program(os.fsencode(tmp_path), words, environment)
        return fork_server._why_not(program, HERE, Room(), Preloaded())

    return why_not


@pytest.mark.parametrize(
    "name", ["PYTHONHASHSEED", "PYTHONPATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "LC_ALL"]
)
def test_a_variable_that_is_read_at_the_start_must_be_the_servers_own(why_not, name):
    assert why_not({**HERE, name: "9"}) == f"{name} differs, and Python reads it before the program starts"


READ_BY_TORCH = (
    *("OMP_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "TORCH_DISTRIBUTED_DEBUG", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
)


@pytest.mark.parametrize("name", READ_BY_TORCH)
def test_a_variable_that_native_code_reads_must_be_the_servers_own(why_not, name):
    expected = f"{name} differs, and was read when torch was imported"
    assert why_not({**HERE, name: "9"}) == expected


def test_a_variable_that_native_code_reads_must_not_be_missing(why_not):
    assert why_not({"HOME": "/home/mine"}).startswith("OMP_NUM_THREADS differs, and was read when torch was")


def test_variables_of_a_start_are_others_at_each(why_not):
    others = {
        "HOME": "/elsewhere", "RANK": "1", "MASTER_ADDR": "10.0.0.1", "TORCHELASTIC_RUN_ID": "job-2",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "CLOUDSPOT_GENERATION": "2", "MY_OMP_NUM": "3",
    }  # fmt: skip
    assert why_not({**HERE, **others}) == ""


@pytest.mark.parametrize("device", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128"])
@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_forked_from_a_process_that_has_opened_a_gpu(
    why_not, tmp_path, monkeypatch, device, is_link
):
    """CUDA cannot be used in a fork of a process that has. The device lies elsewhere here, where we may make one."""
    path = tmp_path / device.lstrip("/")
    path.parent.mkdir(parents=True)
    path.touch()
    if is_link:
        (tmp_path / "link").symlink_to(path)
    devices = tuple(f"{tmp_path}{one}" for one in fork_server._DEVICES)
    monkeypatch.setattr(fork_server, "_DEVICES", devices)
    assert why_not() == ""
    with (tmp_path / "link" if is_link else path).open():
        assert why_not() == f"{path} is in use here, and a forked process could not use it"
    assert why_not() == ""


def test_a_program_that_starts_elsewhere_is_refused(why_not, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert why_not() == "it starts in another directory"


@pytest.mark.parametrize(
    ("words", "module", "arguments", "directory"),
    [
        (("python", "-u", "a/train.py", "-m", "x"), None, ["a/train.py", "-m", "x"], "a"),
        (("python", "a/train.py"), None, ["a/train.py"], "a"),
        (("python", "-u", "-m", "torch.distributed.run", "-u"), "torch.distributed.run", ["-m", "-u"], ""),
        (("python", "-m", "tell", "train.py"), "tell", ["-m", "train.py"], ""),
    ],
)
def test_words_are_understood_as_python_does(tmp_path, words, module, arguments, directory):
    (tmp_path / "a").mkdir()
    program = Program(os.fsencode(tmp_path), words, {})
    assert (program.module, program.arguments) == (module, arguments)
    assert Path(program.import_directory) == tmp_path / directory


def test_a_module_of_the_programs_own_that_is_imported_already_is_refused(why_not, tmp_path):
    for name in ("json", "notpackage"):
        (tmp_path / name).mkdir()
    assert why_not() == "", "a directory alone shadows nothing"
    (tmp_path / "json" / "__init__.py").touch()
    assert why_not() == "it has its own json, but another one was imported here"
    (tmp_path / "json" / "__init__.py").unlink()
    (tmp_path / "socket.cpython-311-x86_64-linux-gnu.so").touch()
    assert why_not() == "it has its own socket, but another one was imported here"
