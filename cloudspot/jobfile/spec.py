"""The job file, ``job.toml``, as typed values; errors name its fields as the user wrote them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec

from cloudspot import decoding
from cloudspot.errors import SpecError
from cloudspot.jobfile.data import DataName, DataSpec, check_data
from cloudspot.jobfile.image import ImageLogin, image_parts
from cloudspot.jobfile.notify import NotifySpec
from cloudspot.jobfile.quantities import MONEY, Duration, PositiveDuration, Size, or_word, parse_money
from cloudspot.jobfile.rules import (
    INSIDE,
    INSIDE_WRONG,
    ONCE,
    Argument,
    Inside,
    Needs,
    OneOf,
    TableRule,
    Url,
    Variable,
    text_like,
)
from cloudspot.jobfile.tables import CREDENTIAL_NAME, FieldError, convert
from cloudspot.jobfile.tables import Path as FieldPath
from cloudspot.jobfile.toml import apply_override, read_toml
from cloudspot.model import Resources

Options = TypeVar("Options", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=0)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1)]

MAX_NAME_LENGTH: Final = 48
"""The maximum length of a job's name, in characters. A job id is a DNS label of up to 63 characters and also
has a suffix."""
MAX_WORLD_SIZE: Final = 9999
"""The maximum number of training processes in a job: a rank has four digits in the bucket's keys."""

POLICIES: Final = ("spot", "spot-then-on-demand", "deadline", "on-demand")
"""The market policies that need no plugin."""
TRACKERS: Final = ("mlflow", "tensorboard", "wandb")
"""The experiment trackers that the plugin in this repository supports; other plugins may add more."""
SIGNALS: Final = ("SIGTERM", "SIGUSR1")
"""The signals that can notify a script."""
_SIGNAL_NAME: Final = "SIG[A-Z0-9]+"
MODULE: Final = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
LABEL_NAME: Final = "[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
MAX_STRING_BYTES: Final = 127 << 10
"""The maximum size of one variable or argument, in bytes. Linux starts no program with a string of 128 KiB;
the limit includes a zero byte and a variable's name, which machines may lengthen (execve(2), MAX_ARG_STRLEN).
"""
MAX_START_BYTES: Final = 1 << 20
"""The maximum total size of all variables and arguments from the job file, in bytes. For these, the secrets
and the machine's own variables, Linux allows a quarter of the stack limit, usually 2 MiB (execve(2))."""


def _name_problem(name: str) -> str:
    near = re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_NAME_LENGTH].strip("-")
    hint = f'; did you mean "{near}"?' if near else ""
    return (
        f'"{name}" must be at most {MAX_NAME_LENGTH} lower-case letters, digits and hyphens '
        f"(not at either end){hint}"
    )


def _notice_problem(text: str) -> str:
    if re.fullmatch(_SIGNAL_NAME, text):
        return f"expected {' or '.join(_quoted(SIGNALS))} or the path of a file"
    return INSIDE_WRONG.replace("{}", text)


def _quoted(names: Iterable[str]) -> list[str]:
    return [f'"{name}"' for name in names]


_TORCHRUN: Final = "an entrypoint that torchrun starts"
_Name = Annotated[
    str, text_like(rf"[a-z0-9](?:[a-z0-9-]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?", _name_problem)
]
_LabelName = Annotated[
    str, text_like(LABEL_NAME, '"{}" must be at most 63 letters, digits, "_", "." and "-", such as "team"')
]
_LabelValue = Annotated[
    str,
    text_like(
        "[A-Za-z0-9](?:[A-Za-z0-9 _.,:@/+-]{0,61}[A-Za-z0-9])?",
        '"{}" must be at most 63 letters, digits, spaces and "_.,:@/+-", such as "vision"',
    ),
]
_Accelerator = Annotated[str, text_like("[^,]*", '"{}" names several accelerators; name one')]
_Image = Annotated[
    str,
    text_like(
        "[A-Za-z0-9][A-Za-z0-9._/:-]{0,250}(?:@sha256:[0-9a-f]{64})?",
        'expected NAME:TAG or NAME@sha256:..., got "{}"',
    ),
]
_Module = Annotated[str, text_like(MODULE, '"{}" is not the name of a module, such as "transformers"')]
_Policy = Annotated[
    str,
    text_like(
        "[a-z][a-z0-9-]*",
        f'expected one of {", ".join(_quoted(sorted(POLICIES)))}, or the name of a plugin\'s; got "{{}}"',
        known=tuple(sorted(POLICIES)),
    ),
]
_Tracker = Annotated[
    str, text_like("[a-z][a-z0-9-]*", '"{}" is not the name of a tracker, such as "wandb"', known=TRACKERS)
]
_Insides = Annotated[tuple[Inside, ...], msgspec.Meta(extra_json_schema={"minItems": 1})]
_OnNotice = Annotated[
    str, text_like(rf"{'|'.join(SIGNALS)}|(?!{_SIGNAL_NAME}$){INSIDE}", _notice_problem, known=SIGNALS)
]


class Nodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``nodes``: the number of equal machines. An integer N sets both ``min`` and ``max``."""

    min: PositiveCount
    """The minimum number of machines on which the job trains."""
    max: PositiveCount
    """The maximum number of machines that train. While nodes are being replaced, twice as many may run."""
    hold: Duration | None = None
    """How long nodes keep their machines, state and setup if fewer than ``min`` are left and none is being
    started, in total since the newest checkpoint."""
    drive: bool = False
    """Whether a node that gets a notice, or whose training has ended, drives the job once more. The nodes'
    role then needs the permissions of a driver."""


class ResourcesSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[resources]``: the minimum resources of one node.

    The provider chooses the resources that are omitted.
    """

    accelerator: _Accelerator | None = None
    """The accelerator's name as used by its vendor or the provider, such as ``"A100"``."""
    accelerator_count: Count = 0
    """The number of accelerators; with ``accelerator``, 0 means 1."""
    cpus: Count = 0
    """The number of virtual CPUs."""
    memory: Size = 0
    """The machine's memory, excluding the accelerators' memory."""
    disk: Size = 0
    """The size of the machine's disk."""

    def to_model(self) -> Resources:
        """Return the resources in the form that provisioners accept."""
        return Resources(
            accelerator=self.accelerator,
            accelerator_count=self.accelerator_count or (1 if self.accelerator else 0),
            cpus=self.cpus,
            memory_bytes=self.memory,
            disk_bytes=self.disk,
        )


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[run]``: the code to run and how to start it."""

    workdir: str = "."
    """The directory that is sent to the machines and becomes their working directory, relative to the job
    file. In a git checkout, its code consists of the files that git tracks or would add; elsewhere, of all
    files that ``.gitignore`` does not exclude. ``.cloudspotignore``, with the syntax of ``.gitignore``,
    excludes more files or includes them again. ``.git``, ``.env`` and ``.env.*`` are never sent. A checkout
    that git refuses to list, such as one that belongs to another user, is refused."""
    setup: str | None = None
    """Shell commands that run once on each machine, in the working directory, before the training. In these
    commands, ``python`` and ``pip`` are the same as for the training. Two failures in a row with the same
    error end the job."""
    setup_files: tuple[str, ...] | None = None
    """The files of the code that ``setup`` reads, such as ``["requirements.txt", "csrc/*"]``. An image made
    by ``cloudspot image bake`` is used until one of these files changes, or ``setup``, ``env``, ``python`` or
    ``image`` does. By default, a change of any file of the code counts."""
    entrypoint: Inside | None = None
    """The training script, inside ``run.workdir``. A job file has either this field or ``run.command``."""
    command: Annotated[tuple[Argument, ...], msgspec.Meta(extra_json_schema={"minItems": 1})] | None = None
    """The training command, as a list: ``["accelerate", "launch", "train.py"]``. It runs without a shell; if
    a command needs a shell, name it: ``["bash", "-c", "..."]``."""
    launcher: Literal["torchrun", "none"] | None = None
    """``"torchrun"`` starts ``procs_per_node`` processes on each node; ``"none"`` starts one, which may start
    others. The default is ``"torchrun"`` for an entrypoint and ``"none"`` for a command."""
    args: tuple[Argument, ...] = ()
    """Arguments of the script, or additional arguments of the command. They are passed exactly as written:
    without a shell, and without expanding torchrun's macros such as ``${local_rank}``."""
    env: dict[Variable, Argument] = msgspec.field(default_factory=dict)
    """Environment variables for setup and training. Anyone who can read the store can read them, so a
    variable that looks like a credential is refused. Names that begin with ``CLOUDSPOT_`` are reserved. A
    variable, the setup and each word of the command may be up to 127 KiB long."""
    python: str | None = None
    """The interpreter for setup and training; the default is the provider's. In both, ``python``,
    ``python3``, ``pip`` and ``pip3`` are those of this interpreter, and its directory comes first on PATH
    unless it is in an image. If the setup creates the interpreter, give its path relative to the working
    directory, such as ``".venv/bin/python"``."""
    image: _Image | None = None
    """A container image: ``NAME:TAG`` or ``NAME@sha256:...``. On each machine, setup and training then run in
    a container of this image, which needs docker or podman. When the job is submitted, a tag is replaced with
    its digest. Without an image, setup and training run on the machine itself."""
    image_login: ImageLogin | None = None
    """The login for the registry of a private image: ``{ user = "...", secret = "..." }``, where ``secret``
    is the name in ``run.secrets`` that holds the password. Without it, machines log in to their own cloud's
    registries with their role, and to other registries according to the settings of their container engine.
    """
    fork_server: bool = True
    """Whether a process on each machine imports torch and ``preload`` while the machine prepares. torchrun
    and the processes of the entrypoint are then forked from it, so that a restart does not repeat these
    imports. A program that would behave differently is started in the usual way. Linux only."""
    preload: tuple[_Module, ...] = ()
    """Modules, or objects in modules, that this process imports in addition to torch:
    ``["transformers.Trainer"]``. The script's own imports of them then take no time. ``cloudspot show`` names
    modules that would save seconds if listed here. If a module starts a thread when it is imported, or reads
    a variable that differs between processes, such as ``LOCAL_RANK``, every process is started in the usual
    way, and the agent's log reports it. Random values that a module draws on import are the same in all
    processes of a machine. The list has no effect if ``fork_server`` is false."""
    secrets: Annotated[tuple[Variable, ...], ONCE] = ()
    """Names of variables in your own environment whose values setup and training receive. The values are
    stored apart from the job on submission, are deleted when a driver finds that the job has ended, and
    appear in no record, log or request."""

    outputs: tuple[Inside, ...] | None = None
    """Patterns of files and directories inside ``run.workdir`` that are kept in the store regardless of their
    size, such as ``["out/unet", "*.zip"]``; ``[]`` keeps none. By default, all files that the training writes
    there are kept, up to 1 GiB in total, except checkpoints, inputs, caches and [some
    more](outputs.md#what-is-not-kept). They are part of the job's [artifacts](cli.md#cloudspot-artifacts),
    and the next machine gets them back."""

    trackers: Annotated[tuple[_Tracker, ...], ONCE] = ()
    """The experiment trackers whose run continues as a single run across reclaims, moves and resumes:
    ``"mlflow"``, ``"tensorboard"``, ``"wandb"``, or the tracker of another plugin; see
    [Trackers](trackers.md)."""

    exec: bool = True
    """Whether anyone with write access to the store may [run commands](remote.md) on the job's nodes while it
    runs. In any case, such a person can run code on the job's next machine."""

    rules: ClassVar[tuple[TableRule, ...]] = (
        OneOf(("entrypoint", "command"), "needs entrypoint, a script, or command, a list; {} there"),
        Needs("preload", "entrypoint", called=_TORCHRUN),
        Needs("image_login", "image"),
        Needs("image_login", "secrets"),
    )

    @property
    def launcher_or_default(self) -> Literal["torchrun", "none"]:
        """The launcher, or its default for an entrypoint or a command."""
        return self.launcher or ("torchrun" if self.command is None else "none")

    def command_line(self, python: str) -> tuple[str, ...]:
        """Return the command line of one training process; ``python`` runs the entrypoint, if any."""
        if self.command is not None:
            return (*self.command, *self.args)
        assert self.entrypoint is not None, "checked when the job file was read"
        return (python, "-u", self.entrypoint, *self.args)


class SpotSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[spot]``: the market on which to buy, and how long to wait for spot machines."""

    policy: _Policy = "spot-then-on-demand"
    """``"spot"`` waits for spot machines. ``"spot-then-on-demand"`` buys on demand when no spot machine is
    available, and returns to spot when that pays off. ``"deadline"`` finishes by ``deadline`` at the least
    expected cost. ``"on-demand"`` buys only on demand. Plugins can add policies."""
    options: dict[str, Any] = {}
    """The options of a plugin's policy."""
    max_wait: Duration | None = None
    """How long the job may be without a machine since it last ran, was submitted or was resumed. After that,
    the job buys on demand. With ``"spot"``, it is suspended instead: ``cloudspot run`` ends, and a driver
    launches the job once there is capacity. The default is 10 minutes, or no limit with ``"spot"``.
    ``"deadline"`` and plugins' policies ignore it."""
    deadline: PositiveDuration | None = None
    """For ``"deadline"`` or a plugin's policy: the time within which the job should finish, counted from its
    submission or resumption. A late job does not stop; it continues on demand."""
    length: PositiveDuration | None = None
    """How long the job trains if its machines are not reclaimed. Plans use this value until the training has
    reported its steps and its pace. The default is three quarters of ``deadline``."""


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[checkpoint]``: how often checkpoints are made, how many are kept, and how they are written."""

    interval: Annotated[PositiveDuration | None, or_word("auto")] = None
    """The time between two checkpoints of a session. ``"auto"`` weighs the cost of a save against the
    expected losses that no drain or surviving rank prevents: at first it assumes one such loss per node and
    day, later the job's own rate, and never less than one per week for the whole job. The resulting interval
    is at least 30 s, at least one and a half times as long as an upload, and at most 30 minutes."""
    keep: PositiveCount = 3
    """How many of the newest valid checkpoints stay in the store."""
    compression: Literal["none", "zstd"] = "none"
    """With ``"zstd"``, checkpoints, including those of ``directory``, are uploaded with lossless compression.
    Compression uses the machines' processors, and up to 0.5 GB of their memory. Data that would shrink by
    less than a tenth is sent uncompressed. The last save before the end of a machine or of the training is
    also sent uncompressed, unless compression made the previous save faster."""
    rescue: bool = True
    """Whether the ranks of a session that survive the loss of others save their state, so that no step is
    repeated; see [after a silent death](failure-modes.md#silent-deaths)."""
    hand_over: bool = True
    """Whether each rank sends the state that it alone has, such as its random generators, to a rank on
    another machine at each step, so that the resume after its loss is exact. To receive it, ranks listen at
    their machines' addresses, on ports that the system chooses."""
    directory: Inside | _Insides | None = None
    """The checkpoints of a script that writes its own: a pattern, or a list of patterns, of directories or
    files inside ``run.workdir``, such as ``"output/checkpoint-*"`` or ``"checkpoint.pth.tar"``. ``"."``
    stands for everything that the script writes there. The number at the end of a name, ignoring suffixes
    such as ``.pt`` or ``_steps``, is its step, unless that number ends a date such as
    ``2026-11-20_15-30-53``. Each directory is a checkpoint; files with the same step form one checkpoint, and
    files without a step belong to every checkpoint. A link in a directory is saved as the file that it points
    to, if that file is in the same directory. Without this field, the script uses a session. See [which
    states count as complete, and which files beside them belong to
    them](frameworks.md#complete-checkpoints)."""
    exclude: tuple[Inside, ...] = ()
    """Patterns of names, or of paths inside ``run.workdir``, that are not part of a checkpoint, such as
    ``["cache", "*.tmp"]``; an excluded directory is excluded with its content. ``__pycache__``, ``.git``,
    ``.venv``, inputs and the file of ``on_notice`` are always excluded."""
    nodes: Literal["first", "all"] = "first"
    """The nodes whose files form a checkpoint of ``directory``: only the first node, where rank 0 runs, or
    all nodes, if each writes its own shards. With ``"all"``, the names of checkpoints end with their steps:
    files of one step belong together, and are committed once every node has uploaded its own. Each node gets
    its own files back; if the number of nodes has changed, every node gets all files. See [scripts that shard
    their state](frameworks.md#sharded-state-of-a-script)."""
    complete_file: Inside | None = None
    """The file that the script writes last, in such a directory or beside such files. The checkpoint is
    complete while this file is at least as new as all its other files and no process has one of them open for
    writing. A checkpoint that has only lost files since then is being deleted, and is not saved again. If
    this file is older, or is the only file, the rule that applies without this field decides; while it is
    missing, the checkpoint is not complete."""
    incomplete_file: Inside | None = None
    """A file that exists while the checkpoint is not complete. Once this file is gone, and nothing has
    changed for 2 s while the script was running, the checkpoint is complete. Without ``complete_file``, the
    default is ``"checkpoint-is-incomplete.txt"``, the file that the Hugging Face Trainer uses."""
    on_notice: _OnNotice | None = None
    """How a script without a session is asked to save and exit before its machine ends or the job stops:
    ``"SIGTERM"``, ``"SIGUSR1"``, or the path of a file inside ``run.workdir`` that then appears. Until a save
    has been measured, the script is asked at once; after that, it is asked when the time left is three times
    a save and its upload, or one minute if that is longer. The script's next save is uploaded as soon as it
    is complete; if there is no save in time, the newest complete state counts. A script that was asked to
    save has not finished, whatever its exit status."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns of ``directory``, or none if the script uses a session."""
        found = self.directory if self.directory is not None else ()
        return (found,) if isinstance(found, str) else found

    rules: ClassVar[tuple[TableRule, ...]] = (
        OneOf(
            ("complete_file", "incomplete_file"),
            "has complete_file and incomplete_file; give at most one",
            is_needed=False,
        ),
        *(
            Needs(field, "directory")
            for field in ("complete_file", "exclude", "incomplete_file", "on_notice")
        ),
        Needs("nodes", "directory", value="all"),
    )


class LogsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[logs]``: how logs are delivered."""

    flush_seconds: PositiveDuration = msgspec.field(default=2.0, name="flush")
    """How long a line may wait on its machine before it is sent. With more than five nodes, all nodes except
    the first wait 0.4 s per node if that is longer."""


class LimitsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[limits]``: limits that end the job early.

    At ``max_runtime``, and before it would exceed ``max_cost``, the job saves a checkpoint and stops.
    """

    max_cost: Annotated[float, msgspec.Meta(gt=0), MONEY] | None = None
    """The maximum total cost of the machines. It includes their boot disks and public addresses if ``plan``
    states their prices, the transfer of checkpoints and other files of the job to another region, and the
    cost of stopping. Requests to the store, storage, inputs and other traffic are not included."""
    currency: str | None = None
    """The ISO 4217 code, such as ``USD``; ``max_cost = "40 USD"`` sets it too. The default is the currency of
    the offers."""
    max_runtime: PositiveDuration | None = None
    """The maximum total time during which at least one machine runs."""
    max_restarts: Count = 3
    """How many failures without a new checkpoint between them lead to another attempt. Reclaims do not count
    as failures."""
    stuck_after: Annotated[PositiveDuration | None, or_word("off")] = 1800.0
    """A training with a session that completes no step for this long is restarted; the log contains its stack
    traces."""
    idle_after: PositiveDuration | None = None
    """The time after which a training node counts as *idle*: it has completed no step, stored no checkpoint,
    and each check with ``nvidia-smi`` found every GPU less than 5 % busy. On a machine without GPUs, and
    outside the loop of a session, the training must also have used less than 5 % of a core for each of
    ``procs_per_node``."""
    on_idle: Literal["warn", "stop"] = "warn"
    """``"warn"`` names idle nodes; ``"stop"`` also saves and ends the job, with or without a driver, once all
    nodes are idle."""

    keep_failed: PositiveDuration | None = None
    """When the job has failed for good, the machine of the rank that failed first is kept for this long, for
    ``cloudspot shell`` and similar commands. The machine is billed: it ends earlier if ``max_cost`` or
    ``max_runtime`` would be exceeded, and on ``cloudspot stop``. If omitted, the machine ends at once."""

    rules: ClassVar[tuple[TableRule, ...]] = (Needs("on_idle", "idle_after", value="stop"),)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A valid job file."""

    name: _Name
    """At most 48 lower-case letters, digits and hyphens (not at either end). Job ids begin with the name."""
    labels: Annotated[dict[_LabelName, _LabelValue], msgspec.Meta(max_length=16)] = msgspec.field(
        default_factory=dict
    )
    """Labels of the job, such as ``{ team = "vision", ticket = "ML-12" }``. ``cloudspot cost`` groups by
    them, ``show`` displays them, and on Kubernetes the pods carry them. A job has at most 16 labels; a name
    has up to 63 letters, digits, ``_``, ``.`` and ``-``, and a value may also contain spaces and ``,:@/+``.
    """
    store: Url | None = None
    """The URL below which all data of the job is kept, such as ``"file:///data/cloudspot"``, without
    credentials. ``--store`` and ``CLOUDSPOT_STORE`` take precedence. The default is the ``default_store`` of
    your config file, or else the provider's default, which only ``local`` has. Commands that are given only a
    job id do not read the job file."""
    nodes: Nodes = Nodes(min=1, max=1)
    """The number of equal machines. The job does not train on fewer than ``min``. If fewer are left and none
    is being started, they keep their machines, state and setup for ``hold``, such as ``"10m"``, in total
    since the newest checkpoint. The default of ``hold`` is the time that the node's own start took, from the
    request for its machine, but at least a minute and at most half an hour. With ``drive = true``, a node
    that gets a notice, or whose training has ended, drives the job once more, as ``reconcile`` does: the next
    machine is bought even if no driver is running. For that, the nodes' role needs the permissions of a
    driver."""
    procs_per_node: PositiveCount = 1
    """The number of training processes on each machine; at most 9999 over all ``nodes.max`` machines.
    torchrun starts them; with ``run.launcher = "none"``, set it to the number that the command starts on each
    machine."""
    resources: ResourcesSpec = ResourcesSpec()
    run: RunSpec
    data: dict[DataName, DataSpec] = msgspec.field(default_factory=dict)
    """A table for each input, ``[data.NAME]``, that every machine fetches to its disk or reads in place."""
    spot: SpotSpec = SpotSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    logs: LogsSpec = LogsSpec()
    limits: LimitsSpec = LimitsSpec()
    notify: NotifySpec = NotifySpec()
    providers: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """A table for each provider, ``[providers.NAME]``; its plugin defines the fields. Only the table of the
    provider that runs the job is read, so one file can serve several providers."""

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Return the names of all secrets: those of the training and those in the URLs of ``[notify]``."""
        return tuple(dict.fromkeys((*self.run.secrets, *self.notify.secret_names)))


def load_job(path: Path, *, overrides: Sequence[str] = ()) -> JobSpec:
    """Read and check the job file; each item of ``overrides`` is ``a.b=c``, as given to ``--set``.

    :func:`check_files` checks whether the files exist, and :func:`decode_options` checks a provider's table.

    Raises:
        SpecError: the message names the file, the field, the value found and, if there is one, the nearest
            valid name.
    """
    return _with_overrides(read_toml(path), overrides, str(path))


def change_job(spec: JobSpec, overrides: Sequence[str]) -> JobSpec:
    """Return the spec with ``overrides`` applied; their form and the errors are those of ``load_job``."""
    raw = spec_to_json(spec)
    if any(text.partition("=")[0].strip() == "limits.max_cost" for text in overrides):
        del raw["limits"]["currency"]  # the currency of the replaced amount
    return _with_overrides(raw, overrides, "the job file as it was submitted")


def _with_overrides(raw: dict[str, Any], overrides: Sequence[str], name: str) -> JobSpec:
    registry = _registry_of(raw)
    changed = [apply_override(raw, text, JobSpec) for text in overrides]
    if _registry_of(raw) != registry and not any(key[:2] == ("run", "image_login") for key in changed):
        raw["run"].pop("image_login", None)  # a login must not be sent to another registry
    try:
        spec = _decode(raw)
        _check_sizes(spec.run)
        return spec
    except FieldError as error:
        # The error concerns an override if it is in that field, inside it, or in a table that the override
        # replaced.
        is_ours = any(error.path[: len(key)] == key[: len(error.path)] for key in changed if error.path)
        raise SpecError(f"{'--set' if is_ours else name}: {error}") from None


def _registry_of(raw: Mapping[str, Any]) -> str | None:
    run = raw.get("run")
    image = run.get("image") if isinstance(run, dict) else None
    return image_parts(image)[0] if isinstance(image, str) else None


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """Return the spec as JSON values, with durations in seconds and sizes in bytes."""
    value: dict[str, Any] = msgspec.to_builtins(spec)
    return value


def spec_from_json(value: Mapping[str, Any]) -> JobSpec:
    """Return the spec that ``spec_to_json`` converted to these JSON values.

    Raises:
        SpecError: the value is not a spec, or comes from a newer version of cloudspot.
    """
    try:
        return _decode_json(msgspec.json.encode(value))
    except FieldError as error:
        raise SpecError(f"stored job: {error}; was it submitted by another version of cloudspot?") from None


@functools.lru_cache(maxsize=256)
def _decode_json(value: bytes) -> JobSpec:
    # A driver decodes the same few specs in each pass, and checking a spec is much slower than encoding it.
    return _decode(decoding.decode(value, dict[str, Any]))


def decode_options(spec: JobSpec, provider_name: str, options_type: type[Options]) -> Options:
    """Return the table ``[providers.NAME]`` as the plugin's own type; a missing table counts as empty.

    Raises:
        SpecError: the message names ``providers.NAME.field`` and what was found.
    """
    return convert(spec.providers.get(provider_name, {}), options_type, at=("providers", provider_name))


def check_files(spec: JobSpec, base: Path) -> Path:
    """Return the absolute working directory; ``base`` is the job file's directory.

    Raises:
        SpecError: the working directory or the entrypoint does not exist.
    """
    workdir = (base / spec.run.workdir).resolve()
    if not workdir.is_dir():
        raise FieldError(("run", "workdir"), f'"{spec.run.workdir}" is not a directory ({workdir})')
    if spec.run.entrypoint is not None and not (workdir / spec.run.entrypoint).is_file():
        raise FieldError(
            ("run", "entrypoint"), f'"{spec.run.entrypoint}" is not a file in the working directory {workdir}'
        )
    return workdir


def _decode(raw: Mapping[str, Any]) -> JobSpec:
    fields = dict(raw)
    nodes = fields.get("nodes")
    if isinstance(nodes, int) and not isinstance(nodes, bool):
        if nodes < 1:
            raise FieldError(("nodes",), f"expected an integer >= 1, got {nodes}")
        fields["nodes"] = {"min": nodes, "max": nodes}
    elif nodes is not None and not isinstance(nodes, Mapping):
        raise FieldError(("nodes",), "expected an integer or a table { min = 1, max = 2 }")
    if isinstance(fields.get("limits"), Mapping):
        fields["limits"] = _split_money(fields["limits"])
    spec = convert(fields, JobSpec)
    _check(spec)
    return spec


def _split_money(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with ``max_cost = "12.50 USD"`` split into an amount and a currency."""
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
    """Check the rules between fields."""
    if spec.nodes.min > spec.nodes.max:
        raise FieldError((), f"nodes.min must be <= nodes.max: got {spec.nodes.min} > {spec.nodes.max}")
    if spec.nodes.max * spec.procs_per_node > MAX_WORLD_SIZE:
        found = f"{spec.nodes.max} * {spec.procs_per_node}"
        raise FieldError((), f"nodes.max * procs_per_node must be <= {MAX_WORLD_SIZE}: got {found}")
    if spec.spot.policy == "deadline" and spec.spot.deadline is None:
        raise FieldError(("spot", "policy"), "needs spot.deadline")
    if spec.spot.policy in POLICIES:
        if spec.spot.policy != "deadline" and spec.spot.deadline is not None:
            raise FieldError(("spot", "deadline"), 'has no effect without spot.policy = "deadline"')
        if spec.spot.options:
            raise FieldError(("spot", "options"), f'spot.policy = "{spec.spot.policy}" has none')
    if spec.run.command is not None and not (spec.run.command and spec.run.command[0]):
        raise FieldError(("run", "command"), 'names no program; expected a list such as ["swift", "sft"]')
    if spec.run.preload and spec.run.launcher_or_default != "torchrun":
        raise FieldError(("run", "preload"), f"has no effect without {_TORCHRUN}")
    for field, patterns in (
        (("checkpoint", "directory"), spec.checkpoint.patterns),
        (("run", "outputs"), spec.run.outputs or ()),
    ):
        if any("**" in part and part != "**" for one in patterns for part in one.split("/")):
            raise FieldError(field, '"**" must stand alone between slashes')
    if spec.checkpoint.directory == ():
        raise FieldError(
            ("checkpoint", "directory"), "names nothing; leave it out if the script uses a session"
        )
    check_data(spec.data)
    _check_image(spec)
    _check_environment(spec.run)


def _check_image(spec: JobSpec) -> None:
    login = spec.run.image_login
    if login is not None and login.secret not in spec.run.secrets:
        fault = f'"{login.secret}" is not one of run.secrets; add it there: its value is the password'
        raise FieldError(("run", "image_login", "secret"), fault)
    for name, data in spec.data.items():
        if spec.run.image is not None and (data.path or "").startswith("/"):
            fault = f'"{data.path}" must not be absolute with run.image; name a path in the working directory'
            raise FieldError(("data", name, "path"), fault)


def _check_environment(run: RunSpec) -> None:
    """Refuse secrets in places where others could read them."""
    for name, value in run.env.items():
        if name in run.secrets:
            raise FieldError(
                ("run", "env", name),
                "is in run.secrets too; leave it out here: its value comes from your environment",
            )
        if value and CREDENTIAL_NAME.fullmatch(name):
            raise FieldError(
                ("run", "env", name),
                f'looks like a credential, which anyone could read in the store; use secrets = ["{name}"]',
            )


def _check_sizes(run: RunSpec) -> None:
    """Refuse strings that are too long to start a program with; stored jobs are not checked."""
    texts: dict[FieldPath, str] = {
        ("run", "setup"): run.setup or "",
        ("run", "entrypoint"): run.entrypoint or "",
    }
    texts |= {("run", "command", i): argument for i, argument in enumerate(run.command or ())}
    texts |= {("run", "args", i): argument for i, argument in enumerate(run.args)}
    if run.launcher_or_default == "torchrun":  # torchrun interprets dollar signs, so each is doubled
        texts = {path: argument.replace("$", "$$") for path, argument in texts.items()}
    texts |= {("run", "env", name): f"{name}={value}" for name, value in run.env.items()}
    total = 0
    for path, text in texts.items():
        num_bytes = len(text.encode())
        total += num_bytes
        if num_bytes > MAX_STRING_BYTES:
            raise FieldError(
                path,
                f"has {num_bytes} bytes, but Linux starts no program with more than {MAX_STRING_BYTES} in "
                "one variable or word; put them into a file in run.workdir",
            )
    if total > MAX_START_BYTES:
        raise FieldError(
            ("run",),
            f"env, args, command and setup have {total} bytes, but {MAX_START_BYTES} in all are possible; "
            "put them into a file in run.workdir",
        )
