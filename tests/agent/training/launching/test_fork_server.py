"""Programs that are forked from a process with torch: they are as if each had been started."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.jobs.marks import fork_servers, is_marked

from cloudspot.agent.node import Node
from cloudspot.agent.training.launching.fork_server import ForkServer, advice
from cloudspot.agent.training.launching.trainer import end_training, processes_of
from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.host.process_marks import marked_processes
from cloudspot.jobfile.spec import RunSpec
from cloudspot.train import handoff as files
from cloudspot.train.fork_server import fork_client
from cloudspot.train.fork_server.fork_server import MARK, unwanted_path
from cloudspot.train.fork_server.preloaded import AT_IMPORT

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows forks by their own environment"),
]
pytest.importorskip("torch")

SELF_PORTRAIT = """
import atexit, gc, json, os, sys, threading
def seen(path):
    return [one for one in open(path).read().split("\\0") if one]
main = sys.modules["__main__"]
json.dump({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "main": sorted((name, str(value).split(" at 0x")[0]) for name, value in vars(main).items()
                   if name.startswith("__")),
    "name": __name__, "directory": os.getcwd(), "environ": sorted(os.environ.items()),
    "seen_environ": sorted(seen("/proc/self/environ")), "seen_words": seen("/proc/self/cmdline"),
    "threads": threading.active_count(), "collects": [gc.isenabled(), gc.get_threshold()],
    "descriptors": sorted(set(os.listdir("/proc/self/fd")) & set("0123456789")),
    "signals": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)]
    if (signal := __import__("signal")) else [],
}, sys.stdout)
last = lambda: [repr(getattr(sys, "last_" + name, None)) for name in ("type", "value")]
atexit.register(lambda: print("the end", last(), file=sys.stderr))
if len(sys.argv) > 2:
    {}["no such key"]
"""
IS_FORKED = "import sys; print('forked' if 'torch' in sys.modules else 'started', flush=True)\n"


@dataclasses.dataclass
class Given:
    """A fork server that runs, and what it was started with."""

    node: Node
    environment: dict[str, str]
    own: ForkServer


@contextlib.contextmanager
def serving(root, script="", preload=(), own=(), **variables):
    node = Node("job", 1, "file:///store", "local", root / "node", sys.executable, root / "arena", "5" * 64)
    node.directory.mkdir(parents=True)
    node.create_directories()
    for name, text in [("train.py", script), *own]:
        (node.work / name).write_text(text)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # so that imports write files
    run = RunSpec(entrypoint="train.py", preload=preload)
    server = ForkServer(Runtime(node, sys.executable), run, environment)
    server.start()
    try:
        yield Given(node, environment, server)
    finally:
        end_training(node)
        server._process.wait()


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A directory from which all programs and the server import."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def server(tmp_path_factory, modules):
    path = os.pathsep.join(filter(None, (str(modules), os.environ.get("PYTHONPATH"))))
    with serving(tmp_path_factory.mktemp("node"), PYTHONPATH=path, OF_THE_SERVER="x") as given:
        yield given


@pytest.fixture
def start(server):
    begun = []

    def start(script, *arguments, is_forked=True, directory="plain", others=(), cwd=".", **variables):
        work = server.node.work
        (work / directory).mkdir(exist_ok=True)
        for name, text in [("train.py", script), *others]:
            (work / directory / name).parent.mkdir(parents=True, exist_ok=True)
            (work / directory / name).write_text(text)
        path = work / directory / "train.py" if cwd != "." else f"{directory}/train.py"
        words = [sys.executable, "-u", str(path), *arguments]
        begun.append(
            subprocess.Popen(
                [*(server.own.prefix if is_forked else ()), *words],
                cwd=work / cwd,
                env={**server.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("arguments", [("a b",), ("a", "and fails")])
def test_a_forked_program_sees_what_a_started_one_sees(start, arguments):
    told = []
    for is_forked in (True, False):
        process = start(SELF_PORTRAIT, *arguments, is_forked=is_forked, MINE="ä=1\n2")
        out, errors = process.communicate(timeout=100)
        told.append({"status": process.returncode, "errors": errors, **json.loads(out)})
    forked, started = told
    assert {name: (forked[name], one) for name, one in started.items() if forked[name] != one} == {}
    assert told[0]["status"] == len(arguments) - 1
    assert "the end" in told[0]["errors"]


@pytest.mark.parametrize(
    ("line", "status"),
    [("sys.exit(3)", 3), ("sys.exit('no')", 1), ("os._exit(4)", 4), ("os.kill(os.getpid(), 9)", 137)],
)
def test_it_ends_with_its_programs_status(start, line, status):
    process = start(f"{IS_FORKED}import os\n{line}\n")
    out, _ = process.communicate(timeout=100)
    assert (out, process.returncode) == ("forked\n", status)


def test_it_has_no_variable_of_the_servers_that_it_was_not_given(server):
    environment = {**server.environment}
    del environment["OF_THE_SERVER"]
    (server.node.work / "tell.py").write_text(
        "import os, sys\nprint(sorted(os.environ), 'torch' in sys.modules)\n"
    )
    words = [*server.own.prefix, sys.executable, "-u", "tell.py"]
    done = subprocess.run(
        words, cwd=server.node.work, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{sorted(environment)} True\n"


def test_each_draws_its_own_random_numbers(start):
    script = (
        "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1).item())\n"
    )
    drawn = [start(script).communicate(timeout=100)[0].split() for _ in range(2)]
    assert len({*drawn[0], *drawn[1]}) == 6


def test_the_cache_files_of_datasets_are_each_ones_own(tmp_path):
    """It names the result of a function that cannot be hashed at random, and reads a file of that name."""
    pytest.importorskip("datasets")
    script = (
        "from datasets.fingerprint import generate_random_fingerprint\nprint(generate_random_fingerprint())\n"
    )
    with serving(tmp_path, script, ("datasets",), HF_HUB_OFFLINE="1") as server:
        words = [*server.own.prefix, sys.executable, "train.py"]
        options = {"cwd": server.node.work, "env": server.environment, "capture_output": True, "text": True}
        drawn = {subprocess.run(words, check=True, timeout=100, **options).stdout for _ in range(2)}
    assert len(drawn) == 2


def test_a_program_and_what_watches_over_it_are_in_a_process_group_of_their_own(server, start):
    """A program that signals its group reaches no other program, and one of the others' groups not it."""
    ids = "[os.getpid(), os.getpgrp(), os.getppid(), os.getpgid(os.getppid()), os.getsid(0)]"
    process = start(f"import json, os\nprint(json.dumps({ids}))\n")
    pid, group, watcher, group_of_watcher, session = json.loads(process.communicate(timeout=100)[0])
    (serving_pid,) = fork_servers(server.node.directory)
    assert group == group_of_watcher == watcher
    assert session == serving_pid
    assert len({pid, watcher, serving_pid}) == 3


def test_a_program_can_begin_a_session_of_its_own(start):
    """As one that was started can: the leader of a process group cannot."""
    process = start(f"import os\nos.setsid()\nprint(os.getsid(0) == os.getpid())\n{IS_FORKED}sys.exit(3)\n")
    assert process.communicate(timeout=100)[0] == "True\nforked\n"
    assert process.returncode == 3


def test_a_program_that_signals_its_group_ends_alone(server, start):
    other = start("import time\nprint('ready')\ntime.sleep(100)\n")
    assert other.stdout.readline() == "ready\n"
    process = start("import os, signal\nos.killpg(0, signal.SIGKILL)\n")
    assert process.wait(100) == 137
    assert start(IS_FORKED).communicate(timeout=100)[0] == "forked\n"
    assert other.poll() is None


def test_a_module_is_found_that_was_added_since_the_server_looked(start, modules):
    """Within the resolution of the directory's time, by which Python knows that it has changed."""
    before = modules.stat()
    (modules / "added_late.py").write_text("print('added')\n")
    os.utime(modules, ns=(before.st_atime_ns, before.st_mtime_ns))
    process = start(f"{IS_FORKED}import added_late\n")
    out, errors = process.communicate(timeout=100)
    assert out == "forked\nadded\n", errors


def test_the_server_is_started_away_from_the_agents_terminal_and_files(server):
    """It outlives the agent, and Ctrl-C in the agent's terminal must not end the training."""
    pid = server.own._process.pid
    assert os.getsid(pid) == os.getpgid(pid) == pid
    seen = Path("/proc") / str(pid)
    assert (seen / "cwd").resolve() == server.node.work.resolve()
    streams = [str((seen / "fd" / number).readlink()) for number in "012"]
    assert streams[0].startswith("socket:")
    assert streams[1:] == [str(server.node.fork_server_log)] * 2


def test_signals_reach_the_program(start):
    process = start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready')\n"
        "time.sleep(100)\n"
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(100) == 7


def test_a_signal_that_comes_as_soon_as_the_program_may_begin_reaches_it(tmp_path):
    path = str(tmp_path / "socket")
    with fork_client.listen_at(path) as listener:
        for _ in range(20):
            program = subprocess.Popen(["sleep", "100"])
            client = subprocess.Popen(
                [sys.executable, "-IS", fork_client.__file__, path, "python", "train.py"]
            )
            connection, _ = listener.accept()
            with connection:
                connection.sendall(fork_client.ANSWER % program.pid)
                while not connection.recv(1 << 20).endswith(fork_client.GO):
                    pass
                client.terminate()
                assert program.wait(10) == -signal.SIGTERM
                connection.sendall(fork_client.ANSWER % 143)
            assert client.wait(10) == 143


def test_a_program_that_is_interrupted_ends_as_python_does(start):
    script = "import atexit, os, signal\natexit.register(print, 'bye')\nos.kill(os.getpid(), signal.SIGINT)\n"
    process = start(script)
    out, errors = process.communicate(timeout=100)
    assert (out, errors.splitlines()[-1], process.returncode) == ("bye\n", "KeyboardInterrupt", 130)


def test_a_signal_that_comes_when_the_program_has_just_ended_changes_nothing(monkeypatch):
    monkeypatch.setattr(fork_client.os, "kill", lambda *_: (_ for _ in ()).throw(ProcessLookupError))
    fork_client._signal(1, signal.SIGTERM)


def test_a_program_ends_with_its_client_and_carries_its_marks(start, wait_until):
    process = start("import os, time\nprint(os.getpid())\ntime.sleep(100)\n", SOME_MARK="x")
    pid = int(process.stdout.readline())
    assert is_marked(pid, "SOME_MARK", "x")
    assert {pid, process.pid} < set(marked_processes("SOME_MARK", "x"))
    process.kill()
    wait_until(lambda: not is_marked(pid, "SOME_MARK", "x"))


def test_a_stopped_program_goes_on_with_its_marks(start):
    """As every machine's processes are stopped and continued: by their marks."""
    process = start("import time\nprint('ready')\ntime.sleep(0.3)\nprint('done')\n", SOME_MARK="y")
    assert process.stdout.readline() == "ready\n"
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in marked_processes("SOME_MARK", "y"):
            os.kill(pid, number)
        time.sleep(0.05)
    assert process.communicate(timeout=100)[0] == "done\n"


@pytest.mark.parametrize(
    ("why", "given"),
    [
        (
            "OMP_NUM_THREADS differs, and was read when torch was imported",
            {"OMP_NUM_THREADS": "2"},
        ),
        (
            "TORCHINDUCTOR_MAX_AUTOTUNE differs, and was read when torch._dynamo was imported",
            {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"},
        ),
        ("PYTHONHASHSEED differs, and Python reads it before the program starts", {"PYTHONHASHSEED": "1"}),
        ("its environment is too large", {"LARGE": "x" * 100_000}),
        ("it starts in another directory", {"cwd": "plain"}),
        ("it has its own typing_extensions", {"directory": "own", "others": [("typing_extensions.py", "")]}),
    ],
)
def test_what_would_not_run_the_same_is_started(server, start, why, given):
    process = start(given.pop("script", IS_FORKED), **given)
    assert process.communicate(timeout=100)[0] == "started\n"
    assert why in server.node.fork_server_log.read_text()


def test_no_module_of_the_jobs_is_imported_in_place_of_the_clients_own(start, tmp_path):
    """It stands in for a program that may not even use it."""
    (tmp_path / "select.py").write_text("raise SystemExit('of the job')\n")
    process = start(IS_FORKED, PYTHONPATH=str(tmp_path))
    assert process.communicate(timeout=100) == ("started\n", "")


TELL = "print(os.getpid(), 'torch' in sys.modules, os.environ.get('OMP_NUM_THREADS'))\n"
BEGIN = f"import os, sys\n{TELL}"


def lines_of(process):
    """Return what a program has printed, without its process id, which is always the same."""
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    told = [line.split() for line in out.splitlines() if line[:1].isdigit()]  # Gloo prints, too
    assert len({line[0] for line in told}) == 1
    return [" ".join(line[1:]) for line in told], errors


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['OMP_NUM_THREADS'] = '2'",
        "os.environ.update(OMP_NUM_THREADS='2')",
        "import numpy, settings",  # which leaves bytecode behind
        "open(__file__).close(); os.listdir('.'); os.environ['OMP_NUM_THREADS'] = '2'",
        "print(os.getpid(), 'hello'); os.chdir('/'); os.environ['OMP_NUM_THREADS'] = '2'",
    ],
)
def test_a_script_that_sets_what_torch_reads_before_it_imports_it_starts_over(server, start, line):
    others = [("settings.py", "import os\nos.environ['OMP_NUM_THREADS'] = '2'\n")]
    shutil.rmtree(server.node.work / "early" / "__pycache__", ignore_errors=True)
    script = f"{BEGIN}{line}\nimport torch\n{TELL}print(os.getpid(), torch.get_num_threads())\n"
    process = start(script, directory="early", others=others)
    told, errors = lines_of(process)
    told = [one for one in told if one != "hello"]
    assert told == ["True 1", "False 1", "True 2", "2"], "the same process, forked and then started"
    assert errors == ("cloudspot: OMP_NUM_THREADS comes after torch was imported: this process starts over\n")
    assert server.own.prefix, "so does each later start"


def test_a_script_that_starts_over_sees_what_a_started_one_sees(start):
    script = f"import os\nos.environ['OMP_NUM_THREADS'] = '3'\n{SELF_PORTRAIT}"
    forked, started = (
        json.loads(start(script, "a b", is_forked=is_forked, MINE="ä").communicate(timeout=100)[0])
        for is_forked in (True, False)
    )
    assert {name: (forked[name], one) for name, one in started.items() if forked[name] != one} == {}


@pytest.mark.parametrize(
    "act",
    [
        "open('made', 'w')",
        "os.mkdir('made')",
        "import socket; socket.socket()",
        "import subprocess; subprocess.run(['true'])",
        "os.waitpid(os.fork() or os._exit(0), 0)",
        "os.system('true')",
        # No audit event tells of the next two: native code opens the sockets and starts the process.
        "__import__('torch').distributed.init_process_group('gloo', 'file://' + os.path.abspath('group'), rank=0, world_size=1)",
        "import multiprocessing as mp; mp.get_context('spawn').Process(target=print).start()",
    ],
)
def test_a_script_that_has_acted_goes_on_and_later_starts_are_ordinary_ones(server, start, act, caplog):
    for made in server.node.work.glob("made"):
        made.rmdir() if made.is_dir() else made.unlink()
    (server.node.work / "group").unlink(missing_ok=True)
    script = f"""
import os, sys
if __name__ == "__main__":
    {TELL}    {act}
    os.environ["TORCHDYNAMO_VERBOSE"] = "1"
    import torch._dynamo
    {TELL}"""
    told, errors = lines_of(start(script))
    assert told == ["True 1", "True 1"]
    assert errors == (
        "cloudspot: TORCHDYNAMO_VERBOSE has no effect: torch._dynamo was imported before the script began "
        "(run.preload, run.fork_server); later starts on this machine are ordinary ones\n"
    )
    assert server.own.prefix == ()
    other = ForkServer(Runtime(server.node, sys.executable), RunSpec(entrypoint="train.py"), {})
    assert other.prefix == (), "an agent that is started again knows it, too"
    unwanted_path(str(server.node.fork_server)).unlink()


def test_a_fork_server_that_is_not_wanted_ends_and_no_other_one_starts(tmp_path, caplog):
    with serving(tmp_path, f"import os\nos.mkdir('made')\nos.environ['MKL_X'] = '1'\n{IS_FORKED}") as given:
        with running(given) as process:
            assert process.stdout.readline() == "forked\n"
        for _ in range(2):
            given.own.start()
            assert fork_servers(given.node.directory) == ()
        assert caplog.messages == [
            "the training starts without the fork server from now on; its log says why"
        ]


@pytest.mark.parametrize(
    "lines",
    [
        "import torch\nos.environ['OMP_NUM_THREADS'] = '3'",
        "from torch import nn\nos.environ['OMP_NUM_THREADS'] = '3'",
        "import torch.nn.functional\nos.environ['OMP_NUM_THREADS'] = '3'",
        "from importlib import import_module\nimport_module('torch')\nos.environ['OMP_NUM_THREADS'] = '3'",
        "__import__('torch', fromlist=['nn'])\nos.environ['OMP_NUM_THREADS'] = '3'",
        "os.environ['OMP_NUM_THREADS'] = '1'",
        "os.environ['TORCH_NCCL_TRACE_BUFFER_SIZE'] = '3'",
        "os.environ['NCCL_DEBUG'] = 'INFO'",
        "os.environ['MY_OMP'] = '3'",
        "os.environ.pop('KMP_AFFINITY', None)",
        "import torch._dynamo\nos.environ['TORCHDYNAMO_VERBOSE'] = '1'",
    ],
)
def test_what_would_make_no_difference_to_a_started_script_makes_none_to_a_forked_one(server, start, lines):
    process = start(f"import os\n{lines}\n{IS_FORKED}")
    assert process.communicate(timeout=100) == ("forked\n", "")
    assert server.own.prefix


def test_a_variable_counts_until_the_module_is_imported_that_reads_it(start):
    """Of torch's own modules, too: importing torch alone does not import its compiler."""
    script = f"import os, torch\nos.environ['TORCHDYNAMO_VERBOSE'] = '1'\n{IS_FORKED}"
    process = start(f"{script}import torch._dynamo\nprint(torch._dynamo.config.verbose)\n")
    out, errors = process.communicate(timeout=100)
    assert out == "forked\nTrue\n", "it is forked no more, and imports torch itself"
    assert "TORCHDYNAMO_VERBOSE comes after torch._dynamo was imported" in errors


def test_no_variable_is_missing_from_the_list_of_those_that_native_code_reads(tmp_path):
    """Of those that it reads while torch, NumPy and torch's compiler are imported."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for a getenv() that reports its callers")
    (tmp_path / "reporting.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n"
        "static char *report(const char *by, const char *name, void *caller) {\n"
        "  Dl_info info;\n"
        '  if (dladdr(caller, &info)) fprintf(stderr, "\\ngetenv\\t%s\\t%s\\n", name, info.dli_fname);\n'
        "  return ((char *(*)(const char *))dlsym(RTLD_NEXT, by))(name);\n}\n"
        'char *getenv(const char *name) { return report("getenv", name, __builtin_return_address(0)); }\n'
        "char *secure_getenv(const char *name) "
        '{ return report("secure_getenv", name, __builtin_return_address(0)); }\n'
    )
    words = [compiler, "-shared", "-fPIC", "-o", "reporting.so", "reporting.c", "-ldl"]
    subprocess.run(words, cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import numpy, torch, torch._dynamo"],
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "reporting.so")},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    reports = [line.split("\t")[1:] for line in done.stderr.splitlines() if line.startswith("getenv\t")]
    found = {name for name, caller in reports if "site-packages" in caller}
    assert "OMP_NUM_THREADS" in found
    assert {name for name in found if not AT_IMPORT.match(name)} == set()


SLOW = "import time\nend = time.perf_counter() + 0.2\nwhile time.perf_counter() < end:\n    pass\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A directory with packages that are as if they were installed."""
    root = tmp_path_factory.mktemp("installed")
    (root / "listed.py").write_text(
        "import os\nprint('imported')\nLEVEL = os.environ.get('LEVEL')\n"
        "os.environ.update(SET_HERE='x', GIVEN='x')\nclass Trainer:\n    pass\n"
    )
    (root / "shared.py").write_text("WHERE = 'installed'\n")
    (root / "user_of_shared.py").write_text("import shared\n")
    (root / "other_user.py").write_text("import importlib\nimportlib.import_module('shared')\n")
    (root / "slow.py").write_text(SLOW)
    (root / "slow_by_rank.py").write_text(f"{SLOW}import os\nRANK = os.environ.get('LOCAL_RANK')\n")
    (root / "slow_thread.py").write_text(
        f"{SLOW}import threading\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n"
    )
    return root


@pytest.fixture(scope="module")
def preloading(tmp_path_factory, installed):
    path = os.pathsep.join((str(installed), *sys.path))
    preload = ("listed.Trainer", "other_user", "user_of_shared", "shared", "not_there")
    root = tmp_path_factory.mktemp("preloading")
    with serving(root, preload=preload, PYTHONPATH=path, GIVEN="mine") as given:
        yield given


def run_in(given, script, *, words=("-u", "train.py"), **variables):
    """Return what a script of the server's prints, and its standard error."""
    (given.node.work / "train.py").write_text(script)
    done = subprocess.run(
        [*given.own.prefix, sys.executable, *words],
        cwd=given.node.work,
        env={**given.environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines(), done.stderr


def test_what_the_job_file_lists_is_imported_once(preloading):
    """And the environment is as the script's own import would have left it."""
    script = (
        "import os\nprint('SET_HERE' in os.environ)\nfrom listed import Trainer\n"
        "print(os.environ['SET_HERE'], os.environ['GIVEN'])\n"
    )
    expected = ["False", "x x"]
    assert run_in(preloading, script)[0] == run_in(preloading, script, RANK="1")[0] == expected
    assert run_in(preloading, f"{script}{IS_FORKED}", LEVEL="2")[0] == ["False", "imported", "x x", "started"]
    log = preloading.node.fork_server_log.read_text()
    assert log.splitlines().count("imported") == 1
    assert "LEVEL differs, and was read when listed.Trainer was imported" in log
    assert "run.preload: not_there cannot be imported: ModuleNotFoundError" in log


def test_torchrun_is_handed_no_variable_that_an_import_has_set(preloading):
    (preloading.node.work / "tell.py").write_text("import os\nprint(os.environ.get('SET_HERE'))\n")
    assert run_in(preloading, "", words=("-m", "tell"))[0] == ["None"]


def test_a_script_that_sets_what_a_listed_package_reads_starts_over(preloading):
    script = f"import os\nos.environ['LEVEL'] = '3'\nimport listed\nprint(listed.LEVEL)\n{IS_FORKED}"
    told, errors = run_in(preloading, script)
    assert told == ["imported", "3", "started"]
    assert "LEVEL comes after listed.Trainer was imported" in errors


@pytest.mark.parametrize("act", ["", "open('made', 'w')\n"])
def test_a_package_of_the_jobs_own_is_never_shadowed(preloading, act):
    (preloading.node.work / "lib").mkdir(exist_ok=True)
    (preloading.node.work / "lib" / "shared.py").write_text("WHERE = 'own'\n")
    script = f"import sys\n{act}sys.path.insert(0, 'lib')\nimport shared\nprint(shared.WHERE)\n{IS_FORKED}"
    told, errors = run_in(preloading, script)
    assert told == ["own", "forked" if act else "started"]
    assert "shared.py, now the first shared on sys.path, " in errors
    assert ("is imported all the same: " in errors) == bool(act)
    unwanted = unwanted_path(str(preloading.node.fork_server))
    assert unwanted.exists() == bool(act)
    unwanted.unlink(missing_ok=True)


@pytest.mark.parametrize("act", ["", "open('made', 'w')\n"])
@pytest.mark.parametrize("first", ["import shared", "import user_of_shared", "import other_user"])
def test_a_package_that_is_imported_already_stays_the_one_it_is(preloading, act, first):
    """As in a started script, where another directory on ``sys.path`` comes too late."""
    (preloading.node.work / "lib").mkdir(exist_ok=True)
    (preloading.node.work / "lib" / "shared.py").write_text("WHERE = 'own'\n")
    script = f"import sys\n{act}{first}\nsys.path.insert(0, 'lib')\nimport shared\nprint(shared.WHERE)\n{IS_FORKED}"
    assert run_in(preloading, script) == (["installed", "forked"], "")


def test_a_package_beside_the_script_is_the_jobs_own(tmp_path, installed):
    path = os.pathsep.join((str(installed), *sys.path))
    own = [("shared.py", "WHERE = 'own'\n")]
    with serving(tmp_path, preload=("shared",), own=own, PYTHONPATH=path) as given:
        assert run_in(given, f"import shared\nprint(shared.WHERE)\n{IS_FORKED}")[0] == ["own", "forked"]
        log = given.node.fork_server_log.read_text()
        assert "run.preload: shared is the job's own module; each process imports it" in log


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("slow_by_rank", "LOCAL_RANK differs, and was read when slow_by_rank was imported"),
        ("slow_thread", "one of the imports has started a thread"),
    ],
)
def test_a_package_that_cannot_be_shared_makes_no_rank_believe_it_is_another(tmp_path, installed, name, why):
    path = os.pathsep.join((str(installed), *sys.path))
    with serving(tmp_path, preload=(name,), PYTHONPATH=path) as given:
        script = f"{IS_FORKED}import {name}\nprint(getattr({name}, 'RANK', 1))\n"
        assert run_in(given, script, LOCAL_RANK="1")[0] == ["started", "1"]
        assert why in given.node.fork_server_log.read_text()


def test_a_script_measures_what_could_be_imported_once(preloading):
    handoff = preloading.node.handoff(7)
    handoff.mkdir(parents=True)
    (preloading.node.work / "mine.py").write_text("from slow import time, end\nimport slow_by_rank\n")
    script = "import mine, slow_thread, listed, json\n"
    run_in(preloading, script, RANK="2", LOCAL_RANK="0", **{files.HANDOFF: str(handoff)})
    found = json.loads(files.imports_path(handoff, 2).read_text())["seconds"]
    assert list(found) == ["slow.time", "slow.end"]
    assert sum(found.values()) >= 0.2
    assert advice(("listed",), found) is None, "not worth a line"
    assert advice(("listed",), {"slow.time": 1.24, "slow.end": 0.0, "not a name": 9.0}) == (
        'run.preload = ["listed", "slow.time", "slow.end"] in the job file would save 1.2 s of each later '
        "start on a machine"
    )


def test_what_has_to_be_imported_before_torch_is(tmp_path):
    """Comet sees nothing of a training whose torch was there before it."""
    (tmp_path / "comet_ml.py").write_text("import sys\nprint('torch' in sys.modules)\n")
    path = os.pathsep.join((str(tmp_path), *sys.path))
    with serving(tmp_path / "there", "import comet_ml, torch\n", PYTHONPATH=path) as server:
        words = [*server.own.prefix, sys.executable, "-u", "train.py"]
        done = subprocess.run(
            words, cwd=server.node.work, env=server.environment, capture_output=True, check=True, text=True
        )
        assert done.stdout == "False\n"
        assert "comet_ml is installed" in server.node.fork_server_log.read_text()


def test_torchrun_is_forked_without_a_warning(server):
    words = [sys.executable, "-m", "torch.distributed.run", "--help"]
    forked, started = (
        subprocess.run([*prefix, *words], env=server.environment, capture_output=True, text=True, check=False)
        for prefix in (server.own.prefix, ())
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (0, started.stdout, started.stderr)


def test_it_is_started_once_and_ends_with_the_training(server, start):
    """Without it programs are started."""
    (pid,) = fork_servers(server.node.directory)
    server.own.start()
    assert fork_servers(server.node.directory) == (pid,)
    handoff = server.node.handoff(1)
    handoff.mkdir(parents=True)
    process = start("import time\nprint('ready')\ntime.sleep(100)\n", **{files.HANDOFF: str(handoff)})
    assert process.stdout.readline() == "ready\n"
    assert len(processes_of(handoff).pids()) == 1
    end_training(server.node)
    assert processes_of(handoff).pids() == set()
    assert process.wait(100) == 137
    assert fork_servers(server.node.directory) == ()
    assert start(IS_FORKED).communicate(timeout=100)[0] == "started\n"


@pytest.mark.parametrize(
    ("line", "status"),
    [("", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("os.abort()", 134)],
)
def test_a_program_outlives_a_server_that_is_killed_and_its_status_is_known(tmp_path, line, status):
    script = f"import os, sys\nprint('torch' in sys.modules, flush=True)\nsys.stdin.readline()\n{line}\n"
    with serving(tmp_path, script) as given, running(given) as process:
        assert process.stdout.readline() == "True\n"
        kill_server(given)
        process.stdin.write("go on\n")
        process.stdin.close()
        assert process.wait(100) == status


def waiting(at_sigterm):
    """Return a script that prints its process id and waits; ``at_sigterm`` is what it does at that signal."""
    return (
        "import os, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: {at_sigterm})\n"
        "print(os.getpid(), flush=True)\n"
        "while True:\n    time.sleep(0.1)\n"
    )


def test_a_program_is_sent_signals_and_ends_with_its_client_when_the_server_was_killed(tmp_path, wait_until):
    script = waiting("print('heard', flush=True)")
    with serving(tmp_path, script) as given, running(given, SOME_MARK=str(tmp_path)) as process:
        pid = int(process.stdout.readline())
        kill_server(given)
        process.terminate()
        assert process.stdout.readline() == "heard\n"
        process.kill()
        wait_until(lambda: not is_marked(pid, "SOME_MARK", str(tmp_path)))
        wait_until(lambda: not marked_processes("SOME_MARK", str(tmp_path)))


def test_a_signal_to_all_processes_of_a_machine_leaves_the_programs_status_known(tmp_path):
    script = waiting("sys.exit(7)")
    with serving(tmp_path, script) as given, running(given, SOME_MARK=str(tmp_path)) as process:
        assert int(process.stdout.readline())
        pids = marked_processes("SOME_MARK", str(tmp_path))
        assert len(pids) == 3, "the client, the program, and what watches over it"
        for pid in (*marked_processes(MARK, str(given.node.fork_server)), *pids):  # its keeper, too
            os.kill(pid, signal.SIGTERM)
        assert process.wait(100) == 7


def test_a_server_that_was_killed_is_replaced_at_the_next_start(tmp_path, caplog):
    with serving(tmp_path, IS_FORKED) as given:
        with running(given) as process:
            assert process.stdout.readline() == "forked\n"
        kill_server(given)
        with running(given) as process:
            assert process.stdout.readline() == "started\n"
        # A thread that another test has left may log as well.
        assert not [one.getMessage() for one in caplog.records if "store failed" not in one.getMessage()]
        given.own.start()
        assert caplog.messages == ["the fork server has ended: another one starts, and imports torch anew"]
        given.own.start()
        assert len(caplog.messages) == 1
        with running(given) as process:
            assert process.stdout.readline() == "forked\n"


def test_a_client_that_waits_for_a_server_starts_the_program_if_that_is_killed(tmp_path):
    with serving(tmp_path, IS_FORKED) as given, running(given) as process:
        kill_server(given)  # which still imports torch
        assert process.stdout.readline() == "started\n"


def kill_server(given):
    end = time.monotonic() + 30.0
    while not (pids := fork_servers(given.node.directory)):  # its keeper is yet to record it
        assert time.monotonic() < end
        time.sleep(0.01)
    (pid,) = pids
    os.kill(pid, signal.SIGKILL)
    given.own._process.wait()


@contextlib.contextmanager
def running(given, **variables):
    process = subprocess.Popen(
        [*given.own.prefix, sys.executable, "-u", "train.py"],
        cwd=given.node.work,
        env={**given.environment, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    "run",
    [
        RunSpec(entrypoint="train.py", fork_server=False),
        RunSpec(entrypoint="train.py", launcher="none"),
        RunSpec(command=("python", "train.py"), launcher="torchrun"),
    ],
)
def test_other_trainings_get_none(server, run):
    before = fork_servers(server.node.directory)
    other = ForkServer(Runtime(server.node, sys.executable), run, server.environment)
    other.start()
    assert other.prefix == ()
    assert fork_servers(server.node.directory) == before
