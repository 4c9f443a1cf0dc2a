"""Every error a user can meet on this side: the real program, its exact line and exit status, and nothing done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloudspot.local.filestore import FileStore
from cloudspot.registry import store_schemes

pytestmark = pytest.mark.full


JOB = 'name = "digits"\n[run]\nentrypoint = "train.py"\n'
MIB = 1 << 20
# A store whose objects can be listed and not read, as of a service that fails in the middle.
DYING_STORE = """
from cloudspot.errors import TransientError
from cloudspot.hookspecs import hookimpl
from cloudspot.local.filestore import FileStore

class Dying(FileStore):
    def get(self, key):
        raise TransientError(f"{self.url}: read of {key}: the service does not answer")

@hookimpl
def cloudspot_object_store(url):
    store = Dying(url.replace("dying:", "file:"))
    store.url = url
    return store
"""


# A cloud that brings no store of its own, as all of them do but `local`.
BARE_PROVIDER = """
from cloudspot.hookspecs import hookimpl
from cloudspot.local.provider import LocalProvider

class Bare(LocalProvider):
    name = "bare"

    def default_store(self):
        return None

@hookimpl
def cloudspot_provider(name):
    return Bare
"""


@dataclass(frozen=True)
class Case:
    """A command that cannot work, and what it says: ``{here}`` is the directory, ``{store}`` the store's URL."""

    name: str
    command: str
    line: str
    status: int = 2
    job: str | bytes = JOB
    files: dict[str, str | int] = field(default_factory=dict)
    environ: dict[str, str | None] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    """Ids of jobs that the store holds."""


STRANGE_NAME = "must be at most 48 lower-case letters, digits and hyphens (not at either end)"
CASES = [
    # --- the job file as a file
    Case("missing file", "run nowhere.toml", "nowhere.toml: no such file"),
    Case("a directory", "run .", ". cannot be read: Is a directory"),
    Case("an empty file", "run", "job.toml: name: missing; it has no default", job=""),
    Case(
        "binary garbage",
        "run",
        "job.toml: line 2 is not UTF-8 text, so this is not a TOML file",
        job=b"#\n\xff\xfe\0",
    ),
    Case(
        "a huge file",
        "run",
        "job.toml has more than 1 MiB, which is too large for a file of settings",
        job="#" * (MIB + 1),
    ),
    Case(
        "TOML syntax",
        "run",
        "job.toml: line 5: Expected '=' after a key in a key/value pair",
        job=JOB + "\nx y\n",
    ),
    Case(
        "TOML that breaks off",
        "run",
        "job.toml: line 4: Expected ']' at the end of a table declaration at the end of the file",
        job=JOB + "[spot",
    ),
    Case(
        "duplicate key",
        "run",
        "job.toml: line 4: Cannot overwrite a value",
        job=JOB + 'entrypoint = "b.py"\n# end\n',
    ),
    Case(
        "CRLF and a wrong line",
        "run",
        'job.toml: line 2: Invalid value; text needs quotes: nodes = "two"',
        job='name = "digits"\r\nnodes = two\r\n',
    ),
    Case(
        "BOM and a wrong field",
        "run",
        "job.toml: nodez: unknown field; did you mean nodes?",
        job="\ufeffnodez = 1\n" + JOB,
    ),
    # --- its fields
    Case(
        "unknown field",
        "run",
        "job.toml: run.entrypiont: unknown field; did you mean run.entrypoint?",
        job=JOB.replace("point", "piont"),
    ),
    Case(
        "wrong type",
        "run",
        'job.toml: procs_per_node: expected an integer, got "two"',
        job='procs_per_node = "two"\n' + JOB,
    ),
    Case(
        "min > max",
        "run",
        "job.toml: nodes.min must be <= nodes.max: got 4 > 2",
        job="nodes = { min = 4, max = 2 }\n" + JOB,
    ),
    Case("no nodes", "run", "job.toml: nodes: expected an integer >= 1, got 0", job="nodes = 0\n" + JOB),
    Case(
        "negative duration",
        "run",
        "job.toml: spot.max_wait: expected a number >= 0, got -5",
        job=JOB + "[spot]\nmax_wait = -5\n",
    ),
    Case(
        "negative duration in words",
        "run",
        'job.toml: spot.max_wait: expected a duration such as "90s", "10m" or "1h30m", got "-5m"',
        job=JOB + '[spot]\nmax_wait = "-5m"\n',
    ),
    Case(
        "strange name",
        "run",
        f'job.toml: name: "My Job" {STRANGE_NAME}; did you mean "my-job"?',
        job=JOB.replace("digits", "My Job"),
    ),
    Case(
        "empty entrypoint",
        "run",
        'job.toml: run.entrypoint: "" must be a path inside the working directory, such as "src/train.py"',
        job=JOB.replace("train.py", ""),
    ),
    Case(
        "entrypoint outside",
        "run",
        'job.toml: run.entrypoint: "../x.py" must be a path inside the working directory, such as "src/train.py"',
        job=JOB.replace("train", "../x"),
    ),
    Case(
        "entrypoint not there",
        "run",
        'run.entrypoint: "other.py" is not a file in the working directory {here}',
        job=JOB.replace("train", "other"),
    ),
    Case(
        "entrypoint is ignored",
        "run",
        "run.entrypoint: 'train.py' in {here} is ignored by .gitignore or .cloudspotignore, or is not a file inside it",
        files={".gitignore": "*.py\n"},
    ),
    Case(
        "workdir not there",
        "run",
        'run.workdir: "nowhere" is not a directory ({here}/nowhere)',
        job=JOB + 'workdir = "nowhere"\n',
    ),
    Case(
        "a bundle too large",
        "run",
        "the code has 104.0 MiB, more than 100.0 MiB; list files that are not code in .cloudspotignore; largest: data.bin (90.0 MiB), weights.pt (14.0 MiB)",
        files={"data.bin": 90 * MIB, "weights.pt": 14 * MIB},
    ),
    Case(
        "a secret that is not set",
        "run",
        "secrets: NOT_SET_ANYWHERE is not set in the environment; export it first",
        job=JOB + 'secrets = ["NOT_SET_ANYWHERE"]\n',
    ),
    Case(
        "a wrong option of the provider",
        "run",
        "providers.local.notise: unknown field; did you mean providers.local.notice?",
        job=JOB + "[providers.local]\nnotise = 1\n",
    ),
    Case(
        "another currency",
        "run",
        "limits.max_cost is in EUR, but provider 'local' charges USD: give it in USD",
        job=JOB + '[limits]\nmax_cost = "5 EUR"\n',
    ),
    # --- the command line
    Case(
        "--set without value",
        "run --set nodes",
        "--set: expected FIELD=VALUE, as in --set limits.max_cost=20",
    ),
    Case(
        "--set of an unknown field", "run --set nodez=2", "--set: nodez: unknown field; did you mean nodes?"
    ),
    Case("--set into a value", "run --set name.x=2", "--set name.x: name is not a table in the job file"),
    Case("--set of a wrong value", "run --set nodes=0", "--set: nodes: expected an integer >= 1, got 0"),
    Case("unknown command", "rnu", "No such command 'rnu'. Did you mean 'run'? (see: cloudspot --help)"),
    Case(
        "unknown option",
        "run --detatch",
        "No such option '--detatch'. Did you mean '--detach'? (see: cloudspot run --help)",
    ),
    Case("missing id", "show", "Missing argument 'ID'. (see: cloudspot show --help)"),
    Case("options that contradict", "run --detach --dry-run", "give --dry-run or --detach, not both"),
    Case(
        "--name that is no id",
        "run --name A_B",
        "--name must be 1 to 63 lower-case letters, digits and hyphens (not at either end): got 'A_B'",
    ),
    # --- provider and store
    Case(
        "unknown provider",
        "run --provider moon",
        'no provider "moon" is installed; the known ones are local, aliyun, aws, bare, broken, gcp, kubernetes',
        3,
    ),
    Case(
        "nearly a provider",
        "run --provider lcoal",
        'no provider "lcoal" is installed; did you mean "local"?',
        3,
    ),
    Case(
        "a broken plugin",
        "run --provider broken",
        'provider "broken" of cloudspot-broken 1.0 is broken: its module raised ImportError: no such library',
        3,
    ),
    Case(
        "a missing store",
        "run --provider bare",
        "no store: provider 'bare' has no default; set store in the job file, or give --store or CLOUDSPOT_STORE",
        environ={"CLOUDSPOT_STORE": None},
    ),
    Case(
        "a store that is none",
        "run --store nowhere",
        '--store: "nowhere" is neither a URL such as file:///data/jobs nor a store in {here}/.config/cloudspot/config.toml; no stores are defined there',
    ),
    Case(
        "a store in nobody's hands",
        "run --store moon://bucket/x",
        "no installed plugin opens moon:// URLs, only {schemes}; install the plugin of that store",
        3,
    ),
    Case(
        "a relative store",
        "run --store file://jobs",
        "store must be file:///absolute/path: got 'file://jobs'",
    ),
    Case(
        "a store below a file",
        "run --store file:///dev/null/x",
        "store file:///dev/null/x: a file is in the way of its directory",
    ),
    Case(
        "credentials in the job file's store",
        "run",
        "job.toml: store: must not contain credentials; each machine that uses it finds its own",
        job='store = "s3://key:secret@bucket"\n' + JOB,
    ),
    Case(
        "a malformed config file",
        "run",
        "{here}/.config/cloudspot/config.toml: line 2: Expected ']' at the end of a table declaration at the end of the file",
        files={".config/cloudspot/config.toml": "\n[stores"},
        environ={"CLOUDSPOT_STORE": None},
    ),
    Case(
        "a config file that is not there",
        "run",
        "{here}/no.toml: no such file",
        environ={"CLOUDSPOT_CONFIG": "{here}/no.toml", "CLOUDSPOT_STORE": None},
    ),
    Case(
        "a home that is no path",
        "run",
        "CLOUDSPOT_LOCAL_HOME must be an absolute path: got 'home'",
        environ={"CLOUDSPOT_LOCAL_HOME": "home", "CLOUDSPOT_STORE": None},
    ),
    # --- jobs
    Case(
        "a name that is taken",
        "run --name digits-7k3f",
        "job 'digits-7k3f' already exists in {store}; choose another name (this store: CLOUDSPOT_STORE)",
        jobs=("digits-7k3f",),
    ),
    Case(
        "no such job",
        "show gone",
        "no job 'gone' in {store}; list them with: cloudspot ps --store {store} (this store: CLOUDSPOT_STORE)",
        5,
        jobs=("digits-7k3f",),
    ),
    Case(
        "an id with slashes",
        "show a/../b",
        "'a/../b' is not a job id; ids are lower-case letters, digits and hyphens",
        5,
    ),
    Case("an empty id", "show ''", "'' is not a job id; ids are lower-case letters, digits and hyphens", 5),
    Case(
        "an ambiguous prefix",
        "stop digits",
        "'digits' matches 2 jobs: digits-1111, digits-2222",
        5,
        jobs=("digits-1111", "digits-2222"),
    ),
    Case(
        "nothing to reclaim",
        "preempt digits",
        "job digits-1111 has no running machine; see: cloudspot show digits-1111 --store {store} (this store: CLOUDSPOT_STORE)",
        1,
        jobs=("digits-1111",),
    ),
    Case(
        "a notice that is no duration",
        "preempt digits --notice soon",
        '--notice: expected a duration such as "90s", "10m" or "1h30m", got "soon"',
        jobs=("digits-1111",),
    ),
    Case(
        "a store that dies in the middle of ps",
        "ps --store dying://{here}/bucket",
        "dying://{here}/bucket: read of jobs/digits-1111/summary: the service does not answer",
        7,
        jobs=("digits-1111",),
    ),
    Case(
        "a store that dies in the middle of show",
        "show digits --store dying://{here}/bucket",
        "dying://{here}/bucket: read of jobs/digits-1111/spec: the service does not answer",
        7,
        jobs=("digits-1111",),
    ),
    # --- terminals
    Case(
        "ASCII only",
        "run",
        f'job.toml: name: "gr??er" {STRANGE_NAME}; did you mean "gr-er"?',
        job=JOB.replace("digits", "größer"),
        environ={"PYTHONIOENCODING": "ascii"},
    ),
    Case(
        "Latin-1",
        "run",
        f'job.toml: name: "größv" {STRANGE_NAME}; did you mean "gr"?',
        job=JOB.replace("digits", "größ↓"),
        environ={"PYTHONIOENCODING": "latin-1"},
    ),
]


class Desk:
    """A directory with a job file, where someone types commands."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.store = f"file://{here}/bucket"
        (here / "train.py").write_text("import cloudspot.train\nprint('hello')\n")
        (here / "job.toml").write_text(JOB)
        plugins = here / "plugins"
        plugins.mkdir()
        install(plugins, "cloudspot.stores", "dying", DYING_STORE)
        install(plugins, "cloudspot.providers", "bare", BARE_PROVIDER)
        install(plugins, "cloudspot.providers", "broken", "raise ImportError('no such library')")
        (here / ".cloudspotignore").write_text("plugins\n")
        self.environ = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("CLOUDSPOT_", "XDG_", "PYTHON"))
            },
            "HOME": str(here),
            "XDG_CONFIG_HOME": str(here / ".config"),
            "CLOUDSPOT_LOCAL_HOME": str(here / "home"),
            "CLOUDSPOT_STORE": self.store,
            "PYTHONPATH": os.pathsep.join([str(plugins), *sys.path]),
        }

    def type(self, command, environ=None):
        """Run a command as a shell would; its output and exit status."""
        script = f"exec {sys.executable} -m cloudspot {self.fill(command)}"
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.here,
            env=self.full(environ),
            capture_output=True,
            text=True,
            encoding=(environ or {}).get("PYTHONIOENCODING"),
            timeout=120,
        )

    def full(self, environ):
        """Return the whole environment of a command that is given these variables."""
        given = {name: value and self.fill(value) for name, value in (environ or {}).items()}
        return {name: value for name, value in {**self.environ, **given}.items() if value is not None}

    def fill(self, text):
        schemes = ", ".join(sorted({"dying://", *(f"{name}://" for name in store_schemes())}))
        filled = text.replace("{here}", str(self.here)).replace("{store}", self.store)
        return filled.replace("{schemes}", schemes)

    def what_is_there(self):
        """Return all that a command could have stored or launched."""
        roots = [self.here / "bucket", self.here / "home", self.here / "jobs"]
        return sorted(str(path.relative_to(self.here)) for root in roots for path in root.rglob("*"))


WARM_PROGRAM = """
import importlib, json, os, pkgutil, shlex, sys, traceback
import cloudspot.cli
from cloudspot.cli.main import main
for module in pkgutil.walk_packages(cloudspot.cli.__path__, "cloudspot.cli."):
    importlib.import_module(module.name)

def become(asked):
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    sys.path[:0] = [path for path in asked["environ"]["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    importlib.invalidate_caches()
    sys.argv = ["cloudspot", *shlex.split(asked["command"])]
    for stream, path in enumerate((os.devnull, asked["stdout"], asked["stderr"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), stream)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        become(json.loads(line))
        try:
            main()
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""The real program with everything imported: it becomes a process of its own for each command."""


@pytest.fixture(scope="session")
def type_warm():
    """``type_warm(desk, command, environ)``: as ``Desk.type``, without the time to start Python and import."""
    with subprocess.Popen(
        [sys.executable, "-c", WARM_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:

        def type_(desk, command, environ):
            asked = {"command": desk.fill(command), "cwd": str(desk.here), "environ": desk.full(environ)}
            paths = {name: desk.here.parent / name for name in ("stdout", "stderr")}
            program.stdin.write(
                json.dumps({**asked, **{name: str(path) for name, path in paths.items()}}) + "\n"
            )
            program.stdin.flush()
            status = int(program.stdout.readline())
            said = {name: path.read_text() for name, path in paths.items()}
            return subprocess.CompletedProcess(command, status, **said)

        yield type_
        program.stdin.close()


def install(directory: Path, group: str, name: str, code: str) -> None:
    """Install a plugin as pip would."""
    (directory / f"{name}_plugin.py").write_text(code)
    info = directory / f"{name}_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cloudspot-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}_plugin\n")


@pytest.fixture
def desk():
    """A desk of one's own, outside pytest's directory, which any pytest that starts closes to other users."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name) / "desk"
        here.mkdir()
        yield Desk(here)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_one_line_with_its_status_and_nothing_is_launched_or_stored(desk, jobs, type_warm, case):
    if isinstance(case.job, bytes):
        (desk.here / "job.toml").write_bytes(case.job)
    else:
        (desk.here / "job.toml").write_text(case.job, newline="")
    for name, content in case.files.items():
        path = desk.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, int):
            with path.open("wb") as file:
                file.truncate(content)
        else:
            path.write_text(content)
    jobs.store = type(jobs.store)(desk.store)
    for job_id in case.jobs:
        jobs.submit(job_id)
    before = desk.what_is_there()
    # The encoding of the streams is settled when Python starts.
    type_ = Desk.type if "PYTHONIOENCODING" in case.environ else type_warm
    done = type_(desk, case.command, case.environ)
    assert (done.stderr, done.stdout, done.returncode) == (
        desk.fill(f"error: {case.line}\n"),
        "",
        case.status,
    )
    assert desk.what_is_there() == before


def test_debug_shows_where_it_came_from_before_and_after_the_command(desk):
    for command in ("--debug run nowhere.toml", "run nowhere.toml --debug"):
        done = desk.type(command)
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.splitlines()[-1] == "error: nowhere.toml: no such file"
        assert done.returncode == 2


# --- nobody reads, or nothing can be written ----------------------------------------------------


@pytest.mark.parametrize(
    "command", ["plan --json", "ps", "--help", "run --help", "completion bash", "providers"]
)
@pytest.mark.parametrize("buffering", [None, "1"])
def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word(desk, command, buffering):
    FileStore(f"file://{desk.here}/home/store").establish()
    environ = {name: value for name, value in desk.environ.items() if name != "CLOUDSPOT_STORE"}
    if buffering:
        environ["PYTHONUNBUFFERED"] = buffering
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cloudspot", *command.split()],
            cwd=desk.here,
            env=environ,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(write)
    assert (done.stderr, done.returncode) == ("", 141)


@pytest.mark.parametrize("command", ["plan", "ps", "--help", "completion fish"])
def test_a_full_disk_below_standard_output_is_one_line(desk, command):
    FileStore(f"file://{desk.here}/home/store").establish()
    done = desk.type(f"{command} > /dev/full", environ={"CLOUDSPOT_STORE": None})
    assert (done.stderr, done.returncode) == (
        "error: standard output cannot be written: No space left on device\n",
        1,
    )


def test_closed_standard_streams_are_nobodys_business(desk):
    done = desk.type("plan >&-")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert desk.type("plan <&- >&- 2>&-").returncode == 0
    assert desk.type("run nowhere.toml 2>&-").returncode == 2


# --- rights -------------------------------------------------------------------------------------


BECOME = """
import importlib, importlib.resources, os, pkgutil, sys
for name in ("cli", "controller", "jobstore", "local"):
    package = importlib.import_module(f"cloudspot.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"cloudspot.{name}."):
        importlib.import_module(module.name)
"".encode("utf-8-sig"), importlib.resources.files("cloudspot.cli")  # these import something too
importlib.import_module("cloudspot.cli.commands.init").job_file_text("x", "train.py", has_session=True)  # it reads a file
uid = int(sys.argv.pop(1))
os.setgroups([])
os.setgid(65534)
os.setuid(uid)
from cloudspot.cli.main import main
main()
"""
"""Runs the program as somebody else, who need not be able to read the packages that it consists of."""
NOBODY = 65534


@pytest.fixture
def nobody(desk):
    """Run commands as somebody who owns nothing here, and may read and enter everything."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")

    def run(command, *, uid=NOBODY, **environ):
        full = {**desk.environ, **environ}
        for parent in (desk.here, *desk.here.parents[:-1]):
            parent.chmod(parent.stat().st_mode | 0o055)
        return subprocess.run(
            [sys.executable, "-c", BECOME, str(uid), *command.split()],
            cwd=desk.here,
            env={name: value for name, value in full.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_a_job_file_that_may_not_be_read_is_named(desk, nobody):
    (desk.here / "job.toml").chmod(0o600)
    done = nobody("run")
    assert (done.stderr, done.returncode) == ("error: job.toml cannot be read: Permission denied\n", 2)


def test_code_that_may_not_be_read_is_named(desk, nobody):
    (desk.here / "data.csv").write_text("x")
    (desk.here / "data.csv").chmod(0o600)
    done = nobody("run")
    assert (done.stderr, done.returncode) == (
        f"error: {desk.here}/data.csv cannot be read: Permission denied\n",
        2,
    )


def test_a_store_that_may_not_be_written_is_named(desk, nobody):
    (desk.here / "bucket").mkdir(mode=0o755)
    done = nobody("run")
    assert done.stderr.startswith(f"error: {desk.store}: cannot write store-id: Permission denied")
    assert done.stderr.endswith("(this store: CLOUDSPOT_STORE)\n")
    assert (done.stderr.count("\n"), done.returncode) == (1, 4)
    assert desk.what_is_there() == []


def test_a_store_that_may_not_be_read_is_named(desk, nobody, jobs):
    (desk.here / "bucket").mkdir(mode=0o700)
    done = nobody("ps")
    assert desk.store in done.stderr
    assert (done.stderr.count("\n"), done.returncode) == (1, 4)


def test_a_home_that_may_not_be_written_is_named(desk, nobody):
    done = nobody("run", CLOUDSPOT_LOCAL_HOME=None, CLOUDSPOT_STORE=None)
    assert done.stderr.startswith(
        f"error: file://{desk.here}/.local/state/cloudspot/store: cannot write store-id: Permission denied"
    )
    assert (done.stderr.count("\n"), done.returncode) == (1, 4)
    done = nobody("init")
    assert (done.stderr, done.returncode) == (
        "error: job.toml already exists; to replace it, add --force\n",
        2,
    )
    (desk.here / "job.toml").unlink()
    done = nobody("init")
    assert (done.stderr, done.returncode) == ("error: job.toml cannot be written: Permission denied\n", 1)


def test_a_user_without_a_home_is_told_what_to_set(desk, nobody):
    # Of user 4000000 the system knows no home either.
    nowhere = dict.fromkeys(("HOME", "CLOUDSPOT_LOCAL_HOME", "CLOUDSPOT_STORE", "XDG_CONFIG_HOME"))
    done = nobody("ps", uid=4_000_000, **nowhere)
    assert (done.stderr, done.returncode) == (
        "error: this user has no home directory; set CLOUDSPOT_LOCAL_HOME to an absolute path\n",
        2,
    )
