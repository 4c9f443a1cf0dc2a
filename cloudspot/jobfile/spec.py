"""The job file: ``job.toml`` as typed values, and what is wrong with it in the user's own terms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from cloudspot.errors import SpecError
from cloudspot.jobfile.quantities import (
    Duration,
    PositiveDuration,
    Size,
    or_word,
    parse_duration,
    parse_money,
    parse_size,
)
from cloudspot.jobfile.tables import CREDENTIAL_NAME, FieldError, convert
from cloudspot.jobfile.tables import Path as FieldPath
from cloudspot.jobfile.toml import apply_override, read_toml
from cloudspot.model import Resources

__all__ = [
    "CheckpointSpec",
    "JobSpec",
    "LimitsSpec",
    "LogsSpec",
    "Nodes",
    "ResourcesSpec",
    "RunSpec",
    "SpotSpec",
    "check_files",
    "check_store_url",
    "decode_options",
    "load_job",
    "parse_duration",
    "parse_size",
    "spec_from_json",
    "spec_to_json",
]

Options = TypeVar("Options", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=0)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1)]

MAX_NAME_LENGTH: Final = 48
"""Characters of a job's name: a job id is a DNS label of 63, and the rest is room for its suffix."""
MAX_WORLD_SIZE: Final = 9999
"""Training processes of a job: the keys in the bucket give a rank four digits."""

_NAME: Final = re.compile(rf"[a-z0-9](?:[a-z0-9-]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Nodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``nodes``: how many equal machines; an integer N in the file stands for N to N."""

    min: PositiveCount
    """With fewer machines the job does not run."""
    max: PositiveCount
    """So many are launched."""


class ResourcesSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[resources]``: what one node must have at the least; what is left out, the provider chooses."""

    accelerator: str | None = None
    """The vendor's or the provider's name, such as ``"A100"``."""
    accelerator_count: Count = 0
    """How many of them; 0 stands for 1 where ``accelerator`` is given."""
    cpus: Count = 0
    """Virtual CPUs."""
    memory: Size = 0
    """Of the machine, not of the accelerator."""
    disk: Size = 0
    """Room on its disk."""

    def to_model(self) -> Resources:
        """Return the resources as the provisioners take them."""
        return Resources(
            accelerator=self.accelerator,
            accelerator_count=self.accelerator_count or (1 if self.accelerator else 0),
            cpus=self.cpus,
            memory_bytes=self.memory,
            disk_bytes=self.disk,
        )


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[run]``: the code, and how it starts."""

    workdir: str = "."
    """The directory that is sent to the machines and run in, relative to the job file. In a git checkout its
    code is what git tracks or would add, elsewhere what ``.gitignore`` does not name. ``.cloudspotignore``,
    written like ``.gitignore``, leaves out more or brings files back. ``.git``, ``.env`` and ``.env.*`` are
    never sent."""
    setup: str | None = None
    """Shell commands, run in the working directory once on each machine before the training."""
    entrypoint: str
    """The training script, inside ``run.workdir``. ``torchrun`` starts it."""
    args: tuple[str, ...] = ()
    """The script's arguments."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment of setup and training. Stored with the job for all to read who may read the store; a
    variable that looks like a credential is refused. Names that begin with ``CLOUDSPOT_`` are cloudspot's
    own."""
    python: str | None = None
    """The interpreter for setup and training; left out: the provider's."""
    secrets: tuple[str, ...] = ()
    """Names of variables of your own environment, whose values setup and training get. They are stored
    apart from the job when it is submitted, deleted when it ends, and appear in no record, log or request."""


class SpotSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[spot]``: which market, and when waiting for it ends."""

    policy: Literal["spot", "spot-then-on-demand", "on-demand"] = "spot-then-on-demand"
    """``"spot"`` takes nothing else and waits. ``"spot-then-on-demand"`` buys on demand when there is no
    spot machine. ``"on-demand"`` takes nothing else."""
    max_wait: Duration | None = None
    """How long the job is without a machine, since it last ran or was submitted, before it buys on demand,
    or with ``"spot"`` fails; left out: 10 minutes, and without end with ``"spot"``."""
    deadline: PositiveDuration | None = None
    """After the submission: when the job should be done. When it would come too late otherwise,
    ``"spot-then-on-demand"`` prefers machines on demand. It ends nothing."""


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[checkpoint]``: how often, how many, and whose."""

    interval: Annotated[PositiveDuration | None, or_word("auto")] = None
    """Between two checkpoints of a session. ``"auto"`` weighs what a save costs against how often machines
    go without notice."""
    keep: PositiveCount = 3
    """How many of the newest good checkpoints stay in the store."""
    directory: str | None = None
    """For scripts that write their own: which directories, inside ``run.workdir``, such as
    ``"output/checkpoint-*"``. The number that a name ends with is its step. Left out: the script uses a
    session."""
    complete_file: str | None = None
    """A file inside such a directory that the script writes last. Without one, a directory is complete when
    it has not changed for 10 s while the script was running."""


class LogsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[logs]``: how the nodes' logs are delivered."""

    flush_seconds: PositiveDuration = msgspec.field(default=2.0, name="flush")
    """How long a line may wait on the machine before it is sent."""


class LimitsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[limits]``: what ends the job before its time.

    At ``max_cost`` and ``max_runtime`` it saves a checkpoint and stops.
    """

    max_cost: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """What may be spent on machines, in all."""
    currency: str | None = None
    """Three letters, as ISO 4217 has them; ``max_cost = "40 USD"`` sets it. Left out: that of the offers."""
    max_runtime: PositiveDuration | None = None
    """How long machines may run, over all launches; several nodes count once."""
    max_restarts: Count = 3
    """How many failures are followed by another try. A reclaim is no failure."""
    stuck_after: Annotated[PositiveDuration | None, or_word("off")] = 1800.0
    """A training with a session that makes no step for so long is restarted, and leaves its stack traces in
    the log."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A valid job file."""

    name: str
    """Lower-case letters, digits and inner hyphens, 48 at most. Job ids begin with it."""
    store: str | None = None
    """Where everything about the job lies, such as ``"file:///data/cloudspot"``. Without credentials. Left
    out: the one that the command line names, or the provider's default."""
    nodes: Nodes = Nodes(min=1, max=1)
    """How many equal machines. With fewer than ``min`` the job does not run."""
    procs_per_node: PositiveCount = 1
    """Training processes on a machine (``torchrun --nproc-per-node``). With ``nodes.max`` at most 9999 in
    all."""
    resources: ResourcesSpec = ResourcesSpec()
    run: RunSpec
    spot: SpotSpec = SpotSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    logs: LogsSpec = LogsSpec()
    limits: LimitsSpec = LimitsSpec()
    providers: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """One table a provider, ``[providers.NAME]``. Only the table of the provider that runs the job is read,
    and its plugin says what may stand in it; so one file can serve several."""


def load_job(path: Path, *, overrides: Sequence[str] = ()) -> JobSpec:
    """Read and check the job file; each of ``overrides`` is ``a.b=c`` as given to ``--set``.

    The value of an override is read as TOML where it is TOML, else as a string. Whether the named
    files exist is for :func:`check_files`, and a provider's table for :func:`decode_options`.

    Raises:
        SpecError: names the file, the field, what was found and, where there is one, the nearest right name.
    """
    raw = read_toml(path)
    changed = [apply_override(raw, text, JobSpec) for text in overrides]
    try:
        return _decode(raw)
    except FieldError as error:
        # The field itself, one inside of it, or the table that an override made of a plain field.
        is_ours = any(error.path[: len(key)] == key[: len(error.path)] for key in changed if error.path)
        raise SpecError(f"{'--set' if is_ours else path}: {error}") from None


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """Return the spec as JSON values, durations in seconds and sizes in bytes."""
    value: dict[str, Any] = msgspec.to_builtins(spec)
    return value


def spec_from_json(value: Mapping[str, Any]) -> JobSpec:
    """Return the spec that ``spec_to_json`` was given.

    Raises:
        SpecError: the value is no such spec, or one of a newer cloudspot.
    """
    try:
        return _decode(value)
    except FieldError as error:
        raise SpecError(f"stored job: {error}; was it submitted by another version of cloudspot?") from None


def decode_options(spec: JobSpec, provider_name: str, options_type: type[Options]) -> Options:
    """Return the table ``[providers.NAME]`` as the plugin's own type; an absent table is an empty one.

    Raises:
        SpecError: names ``providers.NAME.field`` and what was found.
    """
    return convert(spec.providers.get(provider_name, {}), options_type, at=("providers", provider_name))


def check_files(spec: JobSpec, base: Path) -> Path:
    """Return the working directory, absolute; ``base`` is the job file's directory.

    Raises:
        SpecError: the working directory or the entry point does not exist.
    """
    workdir = (base / spec.run.workdir).resolve()
    if not workdir.is_dir():
        raise FieldError(("run", "workdir"), f'"{spec.run.workdir}" is no directory ({workdir})')
    if not (workdir / spec.run.entrypoint).is_file():
        raise FieldError(
            ("run", "entrypoint"), f'"{spec.run.entrypoint}" is no file in the working directory {workdir}'
        )
    return workdir


def check_store_url(url: str, path: FieldPath) -> None:
    """Refuse what is no URL of a store, or holds credentials; ``path`` is the field that holds it.

    Raises:
        FieldError: it is none, or holds some, which are not shown.
    """
    match = re.fullmatch(r"([a-z][a-z0-9+.-]*)://([^/]*)(/.*)?", url)
    if match is None:
        raise FieldError(
            path, f'"{url}" is no URL; expected one such as file:///absolute/path or s3://bucket/prefix'
        )
    if "@" in match[2]:
        # Not shown: it may hold a password.
        raise FieldError(path, "must not hold credentials; the provider finds them in its own way")


def _decode(raw: Mapping[str, Any]) -> JobSpec:
    """Return the checked spec."""
    value = dict(raw)
    nodes = value.get("nodes")
    if isinstance(nodes, int) and not isinstance(nodes, bool):
        if nodes < 1:
            raise FieldError(("nodes",), f"expected an integer >= 1, got {nodes}")
        value["nodes"] = {"min": nodes, "max": nodes}
    elif nodes is not None and not isinstance(nodes, Mapping):
        raise FieldError(("nodes",), "expected an integer or a table { min = 1, max = 2 }")
    if isinstance(value.get("limits"), Mapping):
        value["limits"] = _split_money(value["limits"])
    spec = convert(value, JobSpec)
    _check(spec)
    return spec


def _split_money(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with ``max_cost = "12.50 USD"`` as an amount and a currency."""
    result = dict(limits)
    if isinstance(limits.get("max_cost"), str):
        try:
            result["max_cost"], currency = parse_money(limits["max_cost"])
        except ValueError as error:
            raise FieldError(("limits", "max_cost"), str(error)) from None
        if currency is not None and result.setdefault("currency", currency) != currency:
            raise FieldError(
                ("limits", "currency"),
                f'"{result["currency"]}" contradicts max_cost = "{limits["max_cost"]}"',
            )
    return result


def _check(spec: JobSpec) -> None:
    """Refuse what is well typed and still wrong."""
    if not _NAME.fullmatch(spec.name):
        near = re.sub(r"[^a-z0-9]+", "-", spec.name.lower())[:MAX_NAME_LENGTH].strip("-")
        raise FieldError(
            ("name",),
            f'"{spec.name}" must be lower-case letters, digits and inner hyphens, {MAX_NAME_LENGTH} at most'
            + (f'; did you mean "{near}"?' if near else ""),
        )
    if spec.nodes.min > spec.nodes.max:
        raise FieldError((), f"nodes.min must be <= nodes.max: got {spec.nodes.min} > {spec.nodes.max}")
    if spec.nodes.max * spec.procs_per_node > MAX_WORLD_SIZE:
        found = f"{spec.nodes.max} * {spec.procs_per_node}"
        raise FieldError((), f"nodes.max * procs_per_node must be <= {MAX_WORLD_SIZE}: got {found}")
    if spec.store is not None:
        check_store_url(spec.store, ("store",))
    _check_inside(("run", "entrypoint"), spec.run.entrypoint)
    if spec.checkpoint.directory is not None:
        _check_inside(("checkpoint", "directory"), spec.checkpoint.directory)
    if spec.checkpoint.complete_file is not None:
        _check_inside(("checkpoint", "complete_file"), spec.checkpoint.complete_file)
        if spec.checkpoint.directory is None:
            raise FieldError(("checkpoint", "complete_file"), "has no effect without checkpoint.directory")
    _check_environment(spec.run)


def _check_inside(path: FieldPath, value: str) -> None:
    """Refuse a path that leads out of the working directory."""
    if not value or value.startswith(("/", "~")) or ".." in value.split("/") or "\\" in value:
        raise FieldError(
            path, f'"{value}" must be a path inside the working directory, such as "src/train.py"'
        )


def _check_environment(run: RunSpec) -> None:
    """Refuse names that the nodes' shell cannot set, and secrets in the wrong place."""
    for i, name in enumerate(run.secrets):
        _check_variable(("run", "secrets", i), name)
        if name in run.secrets[:i]:
            raise FieldError(("run", "secrets"), f"names {name} twice")
        if name in run.env:
            raise FieldError(
                ("run", "env", name),
                "is also in run.secrets; leave it out here: its value comes from your environment",
            )
    for name, value in run.env.items():
        _check_variable(("run", "env"), name)
        if "\0" in value:
            raise FieldError(("run", "env", name), "must not hold a zero byte")
        if value and CREDENTIAL_NAME.fullmatch(name):
            raise FieldError(
                ("run", "env", name),
                f'looks like a credential, and run.env is stored for all to read; use secrets = ["{name}"]',
            )


def _check_variable(path: FieldPath, name: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise FieldError(path, f"{name!r} is no name of an environment variable")
    if name.startswith("CLOUDSPOT_"):
        raise FieldError(path, f"{name!r}: the names CLOUDSPOT_... are cloudspot's own")
