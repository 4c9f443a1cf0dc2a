"""The container of a job that names an image, with the real engine where one runs here."""

import base64
import os
import pwd
import re
import resource
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.jobs.process_portrait import portrait_of
from support.jobs.real_registry import PASSWORD, USER, pushed, real_registry, registries_conf
from support.jobs.small_image import containers, kill_container, small_image, volumes, why_no_containers

from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.training.launching.trainer import check_torch
from cloudspot.agent.training.programs import container as under_test
from cloudspot.agent.training.programs.container import Container, runtime_of
from cloudspot.agent.training.programs.runtime import KeptSetupLost, Runtime, RuntimeLost
from cloudspot.errors import AuthError, CloudspotError, SpecError, TransientError
from cloudspot.host import job_containers
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.model import RegistryLogin
from cloudspot.registry import open_provider

DIGEST = "sha256:" + "0123456789abcdef" * 4
JOB = {"name": "boxed", "run": {"command": ["true"], "image": f"here/it@{DIGEST}"}}


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Iterator[str]:
    if why := why_no_containers():
        pytest.skip(why)
    with small_image(tmp_path_factory.mktemp("image")) as name:
        yield name


@pytest.fixture
def node(bench):
    return bench.node()


@pytest.fixture
def run(node, image):
    """``run(words, environment, **more)``: run a program in a container of the node; return what it prints."""
    container = Container(node, "python3", image)
    container.start(setup_is_done=False, check=lambda: None)

    def run(words, environment, **more):
        words, environment = container.command(words, environment)
        run.words = words
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, **more)
        return done.stdout + done.stderr

    run.container = container
    yield run
    container.stop()
    assert containers(node.directory) == []


def engine(directory: Path, name: str, script: str) -> None:
    """Put a stand-in for an engine into a directory."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.full
def test_programs_have_the_variables_of_the_job_and_the_image_and_none_of_the_agents(run, monkeypatch):
    monkeypatch.setenv("OF_THE_AGENT", "not for the job")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("TOKEN", "the agent's")
    secrets = {"TOKEN": "a secret\nof two lines = 2", "REGISTRY_KEY": "a secret 'that' \"engines\" $read"}
    given = {"LANG": "de_DE", "HOME": "/elsewhere", "PATH": "/usr/bin", **secrets}
    said = run(["python3", "-c", "import os; print(dict(os.environ))"], given)
    found = eval(said)
    assert found.pop("PATH") == f"{run.container.node.programs}:{given.pop('PATH')}"
    assert {name: found[name] for name in given} == given
    assert "OF_THE_AGENT" not in found
    assert not any("RENAMED" in name for name in found)
    assert not any("a secret" in word for word in run.words), "every user of the machine can read these"


@pytest.mark.full
def test_programs_see_the_nodes_files_its_processes_and_its_memory(run, node):
    (node.work / "code.txt").write_text("code")
    (node.arena / "slot").write_text("a checkpoint")
    script = (
        "import os, pathlib, sys; "
        "print(pathlib.Path('code.txt').read_text(), pathlib.Path(sys.argv[1], 'slot').read_text(), "
        "pathlib.Path('/proc', sys.argv[2], 'comm').exists(), os.getuid()); "
        "import cloudspot.train; print(cloudspot.train.__name__); pathlib.Path('made').write_text('x')"
    )
    environment = {"PYTHONPATH": str(node.python_path)}
    said = run(["python3", "-c", script, str(node.arena), str(os.getpid())], environment)
    assert said.startswith(f"code a checkpoint True {os.getuid()}\n")
    assert (node.work / "made").stat().st_uid == os.getuid()


@pytest.mark.full
def test_what_is_not_there_is_not_found_though_the_machine_has_it(run, node):
    assert run.container.has_program("python3", {})
    assert not run.container.has_program("git", {})
    assert Runtime(node, "python3").has_program("git", os.environ)
    script = node.work / "run.sh"
    script.write_text("#!/bin/sh\n")
    assert not run.container.has_program(str(script), {}), "nobody may run it"
    script.chmod(0o755)
    assert run.container.has_program(str(script), {})
    assert not run.container.has_program(str(node.work), {})


@pytest.mark.full
def test_a_container_that_is_gone_is_no_sign_of_a_missing_program(run):
    kill_container(*containers(run.container.node.directory))
    with pytest.raises(RuntimeLost, match=r"nothing can be run in the job's container: .*"):
        run.container.has_program("python3", {})
    with pytest.raises(RuntimeLost, match=r"nothing can be run in the job's container: .*"):
        check_torch({}, run.container)


@pytest.mark.full
def test_an_image_without_the_interpreter_or_without_torch_is_said(run):
    with pytest.raises(CloudspotError, match="python3 has no torch"):
        check_torch({}, run.container)
    run.container.python = "python9"
    with pytest.raises(CloudspotError, match="'python9' cannot be run"):
        check_torch({}, run.container)


@pytest.mark.full
def test_what_was_given_up_does_not_start_any_more(run, node):
    ended = node.directory / "ended"
    words, environment = run.container.command(["/bin/sh", "-c", "echo x > late"], {}, ended=ended)
    ended.touch()
    assert subprocess.run(words, env=environment, check=False).returncode == 137
    assert not (node.work / "late").exists()


@pytest.mark.full
def test_the_last_lines_are_in_the_log_though_the_engine_is_killed(run, node, wait_until):
    """The engine passes a program's output on, and lost what it had not yet when the agent killed it."""
    log = node.logs / "train.log"
    script = "read -r go < ready; echo the last line; exit 3"
    os.mkfifo(node.work / "ready")
    words, environment = run.container.command(["/bin/sh", "-c", script], {}, log=log)
    with subprocess.Popen(words, env=environment) as client, (node.work / "ready").open("w") as ready:
        client.kill()
        client.wait()
        ready.write("go\n")
    wait_until(lambda: log.exists() and log.read_text() == "the last line\n")


@pytest.mark.full
def test_the_images_own_variables_stay_and_its_modules_are_found_behind_ours(run, node):
    script = "import os; print(os.environ['OF_IMAGE'], os.environ['PYTHONPATH'])"
    assert run(["python3", "-c", script], {"PYTHONPATH": "/ours"}) == "image /ours:/of/image\n"


@pytest.mark.full
@pytest.mark.parametrize("python", ["own/bin/python", "/opt/own/bin/python", "own-python"])
def test_python_and_pip_are_the_trainings_as_soon_as_it_is_there(run, node, python):
    """The setup may only make it."""
    container = run.container
    container.python = python
    environment = container.with_programs({})
    assert run(["python3", "-c", "print('the image')"], environment) == "the image\n"
    target = python if python.startswith("/") else f"/usr/bin/{python}"
    target = str(node.work / python) if python.startswith("own/") else target
    made = f"mkdir -p {target.rpartition('/')[0]}; printf '#!/bin/sh\necho own $*' > {target}; chmod 755 {target}"
    assert run(["/bin/sh", "-c", made], environment) == ""
    assert run(["python3", "-c", "x"], environment) == "own -c x\n"
    assert run(["pip", "install", "it"], environment) == "own -m pip install it\n"


@pytest.mark.full
def test_a_later_agent_finds_the_container_with_what_the_setup_has_made(run, node, image):
    run(["/bin/sh", "-c", "echo x > /made"], {})
    later = Container(node, "python3", image)
    later.start(setup_is_done=True, check=lambda: None)
    words, environment = later.command(["cat", "/made"], {})
    assert subprocess.run(words, env=environment, capture_output=True, check=True).stdout == b"x\n"


@pytest.mark.full
def test_what_the_setup_has_made_in_a_container_is_kept_for_another_machine(run, node, image, bench):
    run(["/bin/sh", "-c", "echo x > /made"], {})
    run.container.keep("0" * 40)
    assert containers(node.directory) == []
    other = bench.node(machine="other")
    fresh = Container(other, "python3", image)
    fresh.start(setup_is_done=True, kept="0" * 40, check=lambda: None)
    try:
        words, environment = fresh.command(["cat", "/made"], {})
        assert subprocess.run(words, env=environment, capture_output=True, check=True).stdout == b"x\n"
    finally:
        fresh.stop()
        subprocess.run([fresh._engine, "rmi", f"localhost/cloudspot-setup:{'0' * 40}"], check=True)


@pytest.mark.full
def test_a_kept_setup_that_no_engine_has_is_told_apart(node, image):
    with pytest.raises(KeptSetupLost, match="the container in which the setup was run no longer exists"):
        Container(node, "python3", image).start(setup_is_done=True, kept="1" * 40, check=lambda: None)


@pytest.mark.full
def test_what_an_image_declares_as_volumes_is_not_kept_and_goes_with_the_container(node, tmp_path, image):
    before = volumes()
    with small_image(tmp_path, volumes=["/data"]) as with_volume:
        container = Container(node, "python3", with_volume)
        container.start(setup_is_done=False, check=lambda: None)
        try:
            with pytest.raises(
                CloudspotError, match=r'declares volumes \({"/data":{}}\), which are not kept in a machine'
            ):
                container.keep("0" * 40)
        finally:
            container.stop()
    assert volumes() == before


def test_an_image_without_a_registry_is_docker_hubs_and_an_engine_may_say_much(node, tmp_path, monkeypatch):
    script = f"""case "$*" in
    pull*) echo "$*" >> {tmp_path}/pulls; yes 'a line of an engine' | head -c 200000 >&2;;
    *inspect*) exit 1;;
    esac"""
    engine(tmp_path / "bin", "podman", script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for image in ("python:3.12@" + DIGEST, "pytorch/pytorch@" + DIGEST, "localhost:5000/it:1@" + DIGEST):
        Container(node, "python3", image).start(setup_is_done=False, check=lambda: None)
    names = ("docker.io/library/python", "docker.io/pytorch/pytorch", "localhost:5000/it")
    pulls = [f"pull --quiet {name}@{DIGEST}" for name in names]
    assert (tmp_path / "pulls").read_text().splitlines() == pulls


@pytest.mark.full
def test_a_container_that_is_gone_after_the_setup_is_not_made_anew(node, image):
    with pytest.raises(CloudspotError, match="has ended, so the changes that its setup made are lost"):
        Container(node, "python3", image).start(setup_is_done=True, check=lambda: None)


@pytest.mark.full
def test_a_pull_is_repeated_and_its_last_error_told(node, image, monkeypatch, caplog):
    monkeypatch.setattr(under_test, "NUM_PULLS", 2)
    monkeypatch.setattr(under_test, "PULL_WAIT_SECONDS", 0.01)
    away = Container(node, "python3", f"localhost:1/it:5@{DIGEST}")
    with pytest.raises(
        CloudspotError, match=r"localhost:1/it@sha256:0123456789ab cannot be pulled: .*refused"
    ):
        away.start(setup_is_done=False, check=lambda: None)
    assert len([record for record in caplog.records if "the pull of" in record.message]) == 2


def login(password):
    return RegistryLogin(user=USER, password=password, origin=f"the user {USER} of run.image_login")


PULLS = """
say() {{ echo "$@" >> {0}/said; env >> {0}/said; }}
case "$*" in
    *"pull --"*)
        say "$@"
        case "$1" in --config) file=$2/config.json;; *) file=$3;; esac
        stat -c %a "$file" "${{file%/*}}" >> {0}/files; cat "$file" >> {0}/files; echo >> {0}/files
        {1} ;;
    info|"run "*) ;;
    "context inspect "*) echo unix:///run/mine.sock ;;
    *) exit 1 ;;
esac
"""
PRIVATE = f"registry.example.com/it/denied@{DIGEST}"


@pytest.fixture
def pulls(node, tmp_path, monkeypatch):
    """``pulls(engine, script, find_login)``: start a container whose image that engine pulls like that."""
    monkeypatch.setattr(under_test, "PULL_WAIT_SECONDS", 0.01)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def pulls(name, script, find_login):
        for other in under_test.ENGINES:
            engine(tmp_path / "bin", other, PULLS.format(tmp_path, script) if other == name else "exit 1")
        try:
            Container(node, "python3", PRIVATE, find_login).start(setup_is_done=False, check=lambda: None)
        finally:
            assert list(node.arena.iterdir()) == []

    return pulls


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_engine_gets_the_log_in_in_a_private_file_that_is_gone_afterwards(pulls, tmp_path, caplog, name):
    caplog.set_level("DEBUG")
    asked = []

    def find_login(registry):
        asked.append(registry)
        return login(f"hush-{len(asked)}")

    again = f"[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; echo unavailable >&2; exit 1; }}"
    pulls(name, again, find_login)
    assert asked == ["registry.example.com"] * 2, "the first login may have expired"
    auths = [base64.b64encode(f"{USER}:hush-{number}".encode()).decode() for number in (1, 2)]
    each = '600\n700\n{{"auths": {{"registry.example.com": {{"auth": "{}"}}}}}}\n'
    assert (tmp_path / "files").read_text() == "".join(map(each.format, auths))
    said = (tmp_path / "said").read_text() + caplog.text
    # Docker takes the engine that is in use from the configuration which the login's takes the place of.
    assert ("--host unix:///run/mine.sock" in said) == (name == "docker")
    assert not any(secret in said for secret in ("hush", *auths))


@pytest.mark.parametrize(
    ("given", "says", "told"),
    [
        (login("hush"), "unauthorized: no", f"refuses the user {USER} of run.image_login: unauthorized: no"),
        (login("hush"), "denied: not yours", f"refuses the user {USER} of run.image_login: denied: not yours"),
        (None, "no basic auth credentials", "requires a login, such as run.image_login: no basic auth credentials"),
    ],
)  # fmt: skip
def test_a_registry_that_refuses_is_told_from_one_that_fails(pulls, given, says, told):
    with pytest.raises(
        AuthError, match=f"it/denied@sha256:0123456789ab cannot be pulled: registry.example.com {told}$"
    ):
        pulls("docker", f'echo "{says}" >&2; exit 1', lambda _: given)


def test_a_log_in_that_a_killed_agent_has_left_is_removed(pulls, node):
    (node.arena / "engine-abc").mkdir()
    (node.arena / "engine-abc" / "config.json").write_text("{}")
    pulls("docker", "exit 0", lambda _: None)


def test_variables_that_a_killed_agent_has_left_are_removed_though_the_container_runs(
    node, tmp_path, monkeypatch
):
    (node.arena / "engine-abc").mkdir()
    (node.arena / "engine-abc" / "variables").write_text("CLOUDSPOT_STORE=s3://the-bucket\n")
    engine(tmp_path / "bin", "podman", 'case "$1" in inspect) echo true;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    Container(node, "python3", f"it@{DIGEST}").start(setup_is_done=False, check=lambda: None)
    assert list(node.arena.iterdir()) == []


@pytest.mark.parametrize(
    "says",
    ["manifest unknown", "permission denied", "503 Service Unavailable", "no such manifest: it/denied"],
)
def test_what_else_fails_is_no_matter_of_rights(pulls, says):
    with pytest.raises(CloudspotError, match=f"cannot be pulled: {says}$") as failed:
        pulls("docker", f'echo "{says}" >&2; exit 1', lambda _: login("hush"))
    assert type(failed.value) is CloudspotError


@pytest.mark.parametrize("error", [AuthError, CloudspotError, TransientError])
def test_an_engines_own_log_in_will_do_where_the_cloud_gives_none(pulls, tmp_path, error):
    def find_login(_registry):
        raise error("logging in takes cloud:LogIn")

    pulls("docker", "exit 0", find_login)
    assert (tmp_path / "said").read_text().startswith(f"pull --quiet {PRIVATE}\n")
    told = "requires a login, such as run.image_login: " if error is not TransientError else ""
    with pytest.raises(CloudspotError, match=f"{told}unauthorized; logging in takes cloud:LogIn$") as failed:
        pulls("docker", "echo unauthorized >&2; exit 1", find_login)
    assert isinstance(failed.value, AuthError) is (error is not TransientError), "it may pass"


@pytest.mark.full
def test_a_real_engine_pulls_with_the_log_in_and_not_without(node, image, tmp_path, monkeypatch):
    monkeypatch.setattr(under_test, "NUM_PULLS", 1)
    with real_registry(tmp_path, is_private=True) as address, pushed(image, address, tmp_path) as name:
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(registries_conf(address, tmp_path)))
        for given, told in ((None, "requires a login"), (login("wrong"), f"refuses the user {USER} of")):
            with pytest.raises(AuthError, match=f"cannot be pulled: {address} {told}"):
                Container(node, "python3", name, lambda _, given=given: given).start(
                    setup_is_done=False, check=lambda: None
                )
        container = Container(node, "python3", name, lambda _: login(PASSWORD))
        container.start(setup_is_done=False, check=lambda: None)
        container.stop()


@pytest.mark.full
def test_podman_finds_the_log_in_for_dockers_own_registry_under_dockers_name(node, image):
    container = Container(node, "python3", f"it@{DIGEST}")
    container._engine = "podman"
    with container._pull_command("registry-1.docker.io", login("hush")) as words:
        found = subprocess.run(
            ["podman", "login", "--get-login", *words[2:], "docker.io"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert found.stdout == f"{USER}\n"


@pytest.mark.full
def test_an_order_to_leave_ends_a_pull_at_once(node, tmp_path, monkeypatch):
    engine(tmp_path / "bin", "docker", 'case "$1" in info) exit 0;; pull) exec sleep 600;; *) exit 1;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    num_looks = iter(range(3))

    def check():
        if next(num_looks, None) is None:
            raise LeavingError(Leaving("stopped", "as told"))

    with pytest.raises(LeavingError):
        Container(node, "python3", f"it@{DIGEST}").start(setup_is_done=False, check=check)


@pytest.mark.full
def test_a_machine_without_an_engine_says_what_is_missing(node, tmp_path, monkeypatch):
    engine(tmp_path / "bin", "docker", "echo first >&2; echo is the daemon running\\? >&2; exit 1")
    boxed = Container(node, "python3", f"it@{DIGEST}")
    monkeypatch.setattr(under_test, "START_SECONDS", 1.5)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(CloudspotError, match=r"neither works; docker: is the daemon running\?$"):
        boxed.start(setup_is_done=False, check=lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CloudspotError, match=r"needs docker or podman on the machine, but neither works$"):
        boxed.start(setup_is_done=False, check=lambda: None)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "options"), [("docker", "--gpus all"), ("podman", "--device nvidia.com/gpu=all")]
)
def test_gpus_are_handed_on(node, tmp_path, monkeypatch, name, options):
    script = f'echo "$@" >> {tmp_path}/said; case "$1" in inspect) exit 1;; esac'
    engine(tmp_path / "bin", name, script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(under_test, "_GPU_SIGNS", (tmp_path / "nothing", tmp_path / "bin"))
    Container(node, "python3", f"it@{DIGEST}").start(setup_is_done=False, check=lambda: None)
    (start,) = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("run ")]
    assert options in start


@pytest.fixture
def told(node, tmp_path, monkeypatch):
    """``told(engine)``: start a container with a stand-in; return its words and environment at each call."""

    def told(name):
        calls = tmp_path / f"calls-{name}"
        calls.mkdir()
        script = (
            f'n={calls}/$$; for word in "$@"; do printf "%s\\0" "$word" >> $n.words; done\n'
            f'cat /proc/$$/environ > $n.environment; case "$1" in inspect) exit 1;; run) '
            f'while [ "$1" != --env-file ]; do shift; done; cat "$2" > {tmp_path}/variables;; esac'
        )
        engine(tmp_path / "bin", name, script)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
        Container(node, "python3", f"it@{DIGEST}").start(setup_is_done=False, check=lambda: None)
        (tmp_path / "bin" / name).unlink()
        calls = [
            (path.read_text().split("\0")[:-1], path.with_suffix(".environment").read_text().split("\0"))
            for path in calls.glob("*.words")
        ]
        return {words[0]: (words, environment) for words, environment in calls}

    return told


def options_of(words):
    """Return the options with a value of an engine's ``run``, each with all its values."""
    found = {}
    for name, value in pairwise(words[: words.index("--entrypoint")]):
        if name.startswith("--"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", ["docker", "podman"])
def test_a_container_is_started_as_one_of_the_nodes_own_processes(node, told, tmp_path, monkeypatch, name):
    """It has the marks by which the agent finds them, the agent's user, and the time to save at a shutdown."""
    monkeypatch.setenv("CLOUDSPOT_NODE", "here")
    monkeypatch.setenv("OF_THE_AGENT", "not for the job")
    package = node.directory / "package"
    package.mkdir()
    (node.python_path / "package").symlink_to(package)
    monkeypatch.setattr(under_test.os, "getuid", lambda: 1234)
    monkeypatch.setattr(under_test.os, "getgid", lambda: 1235)
    for module in (under_test, job_containers):
        monkeypatch.setattr(module, "user_home", lambda: "/home/mine")
    limits = {
        resource.RLIMIT_NOFILE: (1024, 4096),
        resource.RLIMIT_NPROC: (-1, -1),
        resource.RLIMIT_MEMLOCK: (8, -1),
    }
    monkeypatch.setattr(under_test.resource, "getrlimit", lambda number: limits[number])
    words, _ = told(name)["run"]
    found, variables = options_of(words), tmp_path / "variables"
    assert found["--user"] == ["0:0" if name == "podman" else "1234:1235"]
    assert found["--stop-timeout"] == ["3600"]
    assert found["--ulimit"] == ["nofile=1024:4096", "nproc=32768:32768", "memlock=8:-1"]
    assert "CLOUDSPOT_NODE=here" in variables.read_text().splitlines()
    assert all(one.startswith("CLOUDSPOT_") for one in variables.read_text().splitlines())
    mounts = {f"{path}:{path}" for path in (node.directory, node.arena)}
    assert mounts <= {*found["--volume"]}
    assert f"{package}:{package}:ro" in found["--volume"]
    assert {f"{one.resolve()}:{one.resolve()}:ro" for one in node.python_path.iterdir()} <= {
        *found["--volume"]
    }
    assert found["--workdir"] == [str(node.work)]
    assert {
        "--detach",
        "--rm",
        "--pull=never",
        "--network=host",
        "--pid=host",
        "--ipc=host",
        "--pids-limit=-1",
    } < {*words}
    assert words[words.index("--entrypoint") + 2 :] == [
        f"docker.io/library/it@{DIGEST}",
        "-c",
        under_test._WAIT,
    ]


def test_a_stop_of_the_engine_does_not_end_what_the_container_waits_with(wait_until):
    """As at the machine's shutdown: the training would end before it has saved."""
    with subprocess.Popen(["/bin/sh", "-c", under_test._WAIT], start_new_session=True) as process:
        try:
            wait_until(lambda: signal.SIGTERM in portrait_of(process.pid).ignored)
            process.terminate()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_an_engine_itself_bears_no_mark_and_has_its_users_home(told, monkeypatch):
    """What it leaves running looks after the container, and must outlive the machine's marked processes."""
    monkeypatch.setenv("CLOUDSPOT_NODE", "here")
    monkeypatch.setenv("HOME", "/of/a/local/machine")
    calls = told("podman")
    assert {"info", "image", "rm", "run"} <= {*calls}
    for words, environment in calls.values():
        assert not [one for one in environment if one.startswith("CLOUDSPOT_")], words
        assert f"HOME={pwd.getpwuid(os.getuid()).pw_dir}" in environment


def test_a_pull_that_fails_waits_twice_as_long_before_each_further_one(node, tmp_path, monkeypatch):
    waits, check = [], lambda: None
    engine(tmp_path / "bin", "podman", 'case "$1" in info) ;; *) exit 1;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(under_test, "_pause", lambda seconds, asked: waits.append((seconds, asked)))
    with pytest.raises(CloudspotError, match="cannot be pulled"):
        Container(node, "python3", f"it@{DIGEST}").start(setup_is_done=False, check=check)
    assert waits == [(5.0, check), (10.0, check), (20.0, check)]


@pytest.mark.full
@pytest.mark.parametrize("name", ["docker", "podman"])
def test_no_value_of_cloudspots_own_variables_is_on_the_command_line_of_the_engine(
    node, tmp_path, monkeypatch, name
):
    """Every user of the machine can read that, and the environment of no process of another user."""
    script = f"""case "$1" in
    run)
        tr '\\0' '\\n' < /proc/$$/cmdline > {tmp_path}/words; env > {tmp_path}/environment
        while [ "$1" != --env-file ]; do shift; done
        stat -c '%a %U' "$2" "${{2%/*}}" > {tmp_path}/modes; cat "$2" > {tmp_path}/variables;;
    inspect) exit 1;;
    esac"""
    engine(tmp_path / "bin", name, script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("CLOUDSPOT_STORE", "s3://the-bucket/with spaces #and='quotes'")
    monkeypatch.setenv("CLOUDSPOT_MACHINE", "marked")
    Container(node, "python3", f"it@{DIGEST}").start(setup_is_done=False, check=lambda: None)
    for said in ("words", "environment"):
        assert not re.search("the-bucket|marked", (tmp_path / said).read_text())
    mine = pwd.getpwuid(os.getuid()).pw_name
    assert (tmp_path / "modes").read_text() == f"600 {mine}\n700 {mine}\n"
    found = (tmp_path / "variables").read_text().splitlines()
    assert {"CLOUDSPOT_STORE=s3://the-bucket/with spaces #and='quotes'", "CLOUDSPOT_MACHINE=marked"} <= {
        *found
    }
    assert all(line.startswith("CLOUDSPOT_") for line in found)
    assert list(node.arena.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "says"), [("two\nlines", "has more than one line"), ("not \udcff UTF-8", "is not UTF-8")]
)
def test_a_variable_that_no_engine_takes_is_refused_rather_than_cut(node, tmp_path, monkeypatch, value, says):
    engine(tmp_path / "bin", "podman", 'case "$1" in inspect) exit 1;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("CLOUDSPOT_NOTE", value)
    with pytest.raises(CloudspotError, match=f"^run.image: the machine's variable CLOUDSPOT_NOTE {says}$"):
        Container(node, "python3", f"it@{DIGEST}").start(setup_is_done=False, check=lambda: None)
    assert list(node.arena.iterdir()) == []


@pytest.mark.parametrize("cuts", [True, False])
def test_an_engine_that_changes_a_variable_is_not_used(node, tmp_path, monkeypatch, cuts):
    """As one version of podman does, which takes what follows a "#" for a comment."""
    script = f"""case "$*" in
    *Config.Env*) cat {tmp_path}/taken;;
    inspect*) exit 1;;
    kill*) echo killed >> {tmp_path}/did;;
    run*)
        while [ "$1" != --env-file ]; do shift; done
        echo started >> {tmp_path}/did
        {{ printf '["OF_IMAGE=image"'; sed 's/{"#.*" if cuts else "$"}//;s/.*/,"&"/' "$2"; echo ]; }} > {tmp_path}/taken
    esac"""
    engine(tmp_path / "bin", "podman", script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("CLOUDSPOT_NOTE", "before#after")
    boxed = Container(node, "python3", f"it@{DIGEST}")
    if cuts:
        with pytest.raises(
            CloudspotError, match=r"^run.image: podman changes the value of CLOUDSPOT_NOTE; use"
        ):
            boxed.start(setup_is_done=False, check=lambda: None)
    else:
        boxed.start(setup_is_done=False, check=lambda: None)
    did = (tmp_path / "did").read_text().split()
    assert did[did.index("started") + 1 :] == ["killed"] * cuts


@pytest.mark.full
def test_an_engine_takes_a_variable_as_it_is(node, image, monkeypatch):
    odd = "a b #c = 'd' \"e\" $F \\n \u00e9 "
    monkeypatch.setenv("CLOUDSPOT_NOTE", odd)
    container = Container(node, "python3", image)
    try:
        container.start(setup_is_done=False, check=lambda: None)
        words, own = container.command(
            ["python3", "-c", "import os; print([os.environ['CLOUDSPOT_NOTE']])"], {}
        )
        done = subprocess.run(words, env=own, capture_output=True, text=True, check=True)
    finally:
        container.stop()
    assert eval(done.stdout) == [odd]


def test_only_a_job_that_names_an_image_has_a_container(node):
    plain = {**JOB, "run": {"command": ["true"]}}
    assert type(runtime_of(node, spec_from_json(plain))) is Runtime
    boxed = runtime_of(node, spec_from_json(JOB))
    assert (type(boxed), boxed.python) == (Container, "python3")


def test_an_image_has_its_own_root_so_inputs_lie_in_the_working_directory():
    job = {**JOB, "data": {"images": {"url": "file:///x/", "path": "/data/images"}}}
    with pytest.raises(
        SpecError, match=r'data\.images\.path: "/data/images" must not be absolute with run\.image'
    ):
        spec_from_json(job)


@pytest.mark.full
def test_a_cache_of_inputs_stays_private(run, node):
    assert node.data_cache.stat().st_mode & 0o777 == 0o700


def test_pods_are_no_place_for_a_container():
    with pytest.raises(
        SpecError, match=r'run\.image: machines of the provider "kubernetes" cannot run containers'
    ):
        open_provider("kubernetes", spec_from_json(JOB))
