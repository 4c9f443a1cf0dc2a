"""Run a command with an emulated cloud around it, for ``cloudspot sandbox``.

There are three processes. The *conductor* starts the other two and passes on signals; the *cloud* serves the
APIs and hosts the machines, out of reach of the terminal's signals; the *command* is the user's. If the host
supports it, all of them run enclosed, so that no process outlives the conductor.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cloudspot.decoding import decode
from cloudspot.emulation.cloud import EmulatedCloud, EmulatedMachine
from cloudspot.emulation.local_machine_host import Plan, emulated
from cloudspot.emulation.spot_plan import Spell, SpotPlan
from cloudspot.errors import CloudspotError, PluginError, SpecError
from cloudspot.hookspecs import SANDBOX_VARIABLE
from cloudspot.host.locks import lock, try_lock
from cloudspot.jobfile.tables import convert
from cloudspot.jobstore.jobs.state_home import HOME, state_home
from cloudspot.local import enclosure, namespaces
from cloudspot.local.machine_records import PlannedReclaim
from cloudspot.local.machines import erase
from cloudspot.local.network import has_bridge
from cloudspot.local.options import LocalOptions, RandomReclaims, Reclaim
from cloudspot.model import Market

_log = logging.getLogger(__name__)

_DEFAULT_RECLAIM = "launch=1,rank=0,after_share=0.5"
NOT_EXECUTABLE = 126
"""The exit status for a command that cannot be run, as in shells."""


@dataclass(frozen=True)
class Sandbox:
    """The parameters of the emulated cloud around the command."""

    cloud: type[EmulatedCloud]
    plan: Plan
    spot_plan: SpotPlan
    directory: Path
    is_isolated: bool
    is_bare: bool = False
    """Whether its account starts out with only an administrator."""
    contrary: frozenset[str] = frozenset()
    """See ``EmulatedCloud.contraries``."""

    def planned(self, machine: EmulatedMachine) -> tuple[PlannedReclaim, ...]:
        """Return the planned reclaims of a machine that starts now."""
        if machine.market is Market.SPOT:
            self.spot_plan.begin()
        return self.plan(machine)


def parse_reclaims(texts: Sequence[str], *, notice_seconds: float) -> Plan:
    """Return the plan for the values of ``--reclaim``; by default, the first machine is reclaimed midway.

    A value is ``none``, or has the fields of an entry in ``[[providers.local.reclaims]]``, such as
    ``launch=1,rank=0,after_steps=300,notice=2m``, or of ``[providers.local.random_reclaims]``. The default
    length of a notice is the one that the machine requested, or else ``notice_seconds``.

    Raises:
        SpecError: a value is invalid.
    """
    _options(texts, notice_seconds)  # so that an invalid value is reported before anything starts

    def plan(machine: EmulatedMachine) -> tuple[PlannedReclaim, ...]:
        if machine.job is None or machine.market is not Market.SPOT:
            return ()
        usual = notice_seconds if machine.notice_seconds is None else machine.notice_seconds
        options = _options(texts, usual)
        return options.planned_reclaims(launch=machine.job.launch, rank=machine.job.rank)

    return plan


def _options(texts: Sequence[str], notice_seconds: float) -> LocalOptions:
    reclaims: list[Reclaim] = []
    chance: RandomReclaims | None = None
    for text in texts or (_DEFAULT_RECLAIM,):
        if text == "none":
            if len(texts) > 1:
                raise SpecError("--reclaim: none cannot be combined with other values")
            continue
        example = '"none" or, for example, launch=1,rank=0,after_steps=300,notice=2m'
        table = {"notice": notice_seconds, **_parse_pairs("--reclaim", text, example)}
        try:
            if "mean" in table:
                chance = convert(table, RandomReclaims)
            else:
                reclaims.append(convert(table, Reclaim))
        except SpecError as error:
            raise SpecError(f"--reclaim {text}: {error}") from None
    return LocalOptions(reclaims=tuple(reclaims), random_reclaims=chance)


def parse_market(texts: Sequence[str], cloud: type[EmulatedCloud]) -> SpotPlan:
    """Return the plan of the spot market for the values of ``--market``.

    A value has the fields of a :class:`Spell`, such as ``zone=us-east-1a,after=30s,lasts=1m,capacity=0``.

    Raises:
        SpecError: a value is invalid, or the emulated cloud does not support it.
    """
    spells = []
    for text in texts:
        pairs = _parse_pairs("--market", text, "after=30s,lasts=1m,capacity=0")
        try:
            spells.append(convert(pairs, Spell))
        except SpecError as error:
            raise SpecError(f"--market {text}: {error}") from None
    plan = SpotPlan(spells)
    try:
        cloud().follow(plan)
    except SpecError as error:
        raise SpecError(f"--market: {error}") from None
    return plan


def why_not_isolated() -> str | None:
    """Return why the machines of a sandbox started here cannot be isolated, or None if they can."""
    is_within = SANDBOX_VARIABLE in os.environ
    if is_within and not has_bridge():
        return "the machines of the sandbox around it are not isolated either"
    return enclosure.why_not(shares_network=is_within)


def check_command(command: Sequence[str]) -> None:
    """Check that the command exists before anything is started.

    Raises:
        SpecError: the command's program is not found.
    """
    if shutil.which(command[0], path=_path()) is None:
        raise SpecError(f"COMMAND: there is no program {command[0]!r}")


@contextmanager
def sandbox_directory(name: str, *, keep: bool) -> Iterator[Path]:
    """Create a directory for one sandbox; it is deleted at the end or, after a kill, by the next sandbox."""
    home = state_home() / "sandboxes"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(home)
    path = home / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    path.mkdir(mode=0o700)
    try:
        with lock(path / "lock"):
            if keep:
                (path / "keep").touch()
            yield path
    finally:
        if not keep:
            erase(path)


def run_in_sandbox(sandbox: Sandbox, command: Sequence[str]) -> int:
    """Run the command with the emulated cloud around it, and return its exit status.

    Raises:
        CloudspotError: the cloud does not start.
    """
    report = sandbox.directory / "failure.json"

    def conduct() -> int:
        try:
            return _conduct(sandbox, command)
        except CloudspotError as error:
            failure = {"message": str(error), "is_plugins": isinstance(error, PluginError)}
            report.write_text(json.dumps(failure), encoding="utf-8")
            return type(error).exit_code

    sys.stdout.flush()  # so that forked processes do not write it again
    sys.stderr.flush()
    if sandbox.is_isolated:
        # If a sandbox runs within another one, COMMAND can reach both clouds.
        status = enclosure.run_enclosed(conduct, shares_network=SANDBOX_VARIABLE in os.environ)
    else:
        status = conduct()
    if report.exists():
        failure = json.loads(report.read_text(encoding="utf-8"))
        raise (PluginError if failure["is_plugins"] else CloudspotError)(failure["message"])
    return status


def _conduct(sandbox: Sandbox, command: Sequence[str]) -> int:
    # The cloud ends when our end of the leash is closed, even if we are killed; no other process inherits it.
    leash, hand = os.pipe()
    reader, writer = os.pipe()

    def be_cloud() -> int:
        os.close(hand)
        os.close(reader)
        return _serve(sandbox, leash, writer)

    cloud = enclosure.fork(be_cloud)
    os.close(leash)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as ready:
            answer = json.loads(ready.read() or b'{"error": "its process ended before it was ready"}')
        if "error" in answer:
            log = f"; see {sandbox.directory / 'cloud.log'}"
            raise CloudspotError(f"the emulated {sandbox.cloud.name} did not start: {answer['error']}{log}")
        early = signal.sigpending() & set(enclosure.FORWARDED)
        if early:  # a signal arrived while the cloud was starting
            return 128 + int(min(early))
        environment = _command_environment(sandbox, answer["environment"])
        child = enclosure.fork(lambda: _execute(command, environment))
        return enclosure.stand_in_for(child)
    finally:
        os.close(hand)
        with suppress(ChildProcessError):
            os.waitpid(cloud, 0)


def _serve(sandbox: Sandbox, leash: int, writer: int) -> int:
    """Run the cloud until the conductor's end of the leash is closed."""
    os.setsid()  # so that the terminal's Ctrl-C reaches only the command
    if sys.platform == "linux":
        namespaces.die_with_parent()
    log = sandbox.directory / "cloud.log"
    with log.open("ab", buffering=0) as output, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    with os.fdopen(writer, "wb") as answer:
        try:
            cloud = sandbox.cloud()
            cloud.is_bare = sandbox.is_bare
            cloud.contrary = sandbox.contrary
            cloud.follow(sandbox.spot_plan)
            with emulated(
                cloud, sandbox.directory / "state", is_isolated=sandbox.is_isolated, plan=sandbox.planned
            ):
                answer.write(json.dumps({"environment": dict(cloud.environment())}).encode())
                answer.close()
                os.read(leash, 1)
        except Exception as error:  # noqa: BLE001 # any error is reported to the user
            _log.exception("the cloud failed")
            if answer.closed:
                return 1
            answer.write(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
            return 1
    return 0


def _execute(command: Sequence[str], environment: Mapping[str, str]) -> int:
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 # the user's own command
    except OSError as error:
        sys.stderr.write(f"cloudspot: cannot run {command[0]}: {error.strerror}\n")
    return NOT_EXECUTABLE


def _command_environment(sandbox: Sandbox, added: Mapping[str, str]) -> dict[str, str]:
    cloud = sandbox.cloud
    own = {}
    if sandbox.is_bare:
        # A setup in the sandbox must not change the user's own config file or the record of a real account.
        own = {
            "CLOUDSPOT_CONFIG": str(sandbox.directory / "config.toml"),
            HOME: str(sandbox.directory / "home"),
        }
        (sandbox.directory / "config.toml").touch()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not any(name.startswith(prefix) for prefix in cloud.foreign_variables)
    }
    return {**kept, **added, **own, "PATH": _path(), SANDBOX_VARIABLE: cloud.name}


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))


def _parse_pairs(option: str, text: str, example: str) -> dict[str, object]:
    table: dict[str, object] = {}
    for pair in text.split(","):
        name, sign, value = pair.partition("=")
        if not sign or not name or not value:
            raise SpecError(f'{option} {text}: "{pair}" is not FIELD=VALUE; write {example}')
        try:
            table[name] = decode(value, Any)
        except msgspec.DecodeError:
            table[name] = value
    return table


def _sweep(home: Path) -> None:
    """Delete the directories of sandboxes that were killed."""
    for path in home.iterdir():
        if (path / "keep").exists() or not path.is_dir():
            continue
        with try_lock(path / "lock") as is_free:
            if is_free:
                erase(path)
