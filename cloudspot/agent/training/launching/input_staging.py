"""Stage the inputs of ``[data]`` during the setup and before the training starts."""

from __future__ import annotations

import errno
import functools
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.node import Node
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.worker import Stopped, Worker
from cloudspot.errors import AuthError, CloudspotError, CorruptData, PluginError, TransientError
from cloudspot.host.low_priority import lower_thread_priority
from cloudspot.host.names import SymlinkError, find_symlink, make_parents
from cloudspot.host.partial_files import partial_directory
from cloudspot.host.private_directories import make_private
from cloudspot.jobfile.data import DataSpec, variable_of
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.inputs.input_cache import InputCache, Staged, Staging
from cloudspot.jobstore.inputs.inputs import Input, open_input, version_of_all
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import InputVersion, StagedInput, new_nonce

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

SILENT_SECONDS = 300.0
"""How long after its first failure a request for an input is retried before the node gives up."""
LOOK_SECONDS = 0.5
"""The time between two checks of whether the training runs, for inputs that are staged after its start."""
AGAIN_SECONDS, MAX_AGAIN_SECONDS = 60.0, 3600.0
"""The first and the longest wait before the staging of such an input is tried again."""
SPARE_SHARE = 0.1
"""The share of the disk that such inputs leave free for the training's files."""
LEAVE_SECONDS = 5.0
"""How long a leaving node waits for pending requests."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class InputStaging(Worker):
    """Stages the job's inputs on this node one after the other, each with many threads.

    The inputs that the training waits for come first.
    """

    def __init__(self, context: NodeContext) -> None:
        super().__init__("staging")
        self._context = context
        self._specs = context.job.spec.data
        self._ready = threading.Event()
        """Set once all inputs that the training waits for are staged."""
        self._failed: Leaving | None = None
        self._hopeless = set[str]()
        """The inputs that were found not to match the job file."""

    def start(self) -> None:
        """Begin the staging, or continue where an earlier agent of this machine stopped."""
        self._context.status.staged = self._context.memory.staged
        if set(self._specs) <= set(self._context.memory.inputs_ready):
            self._ready.set()
        else:
            super().start()

    def check(self) -> None:
        """Raise LeavingError if an input cannot be staged."""
        if self._failed is not None:
            raise LeavingError(self._failed)

    def finish(self) -> None:
        """Wait until all inputs that the training waits for are staged.

        Raises:
            LeavingError: the node was ordered to leave, or an input cannot be staged.
        """
        if not self._ready.is_set():
            self._context.status.state = "staging"
        while not self._ready.is_set() and self._thread.is_alive():
            self._context.obey()
            self._context.orders.wait(0.1)
        self.check()
        if not self._ready.is_set():
            self._context.obey()  # if an order has ended the staging

    def stop(self) -> None:
        """Stop the staging; the next agent of this machine continues where it stopped."""
        super().stop()
        if not self._ready.is_set():
            self._join(LEAVE_SECONDS)

    def _run(self) -> None:
        memory = self._context.memory
        missing = {name: spec for name, spec in self._specs.items() if name not in memory.inputs_ready}
        try:
            for name, spec in missing.items():
                if spec.wait:
                    self._bring(name, spec)
        except Stopped:
            return
        except _InputError as error:
            _log.error("%s", error)
            self._failed = Leaving("failed", str(error), exit_code=1)
            return
        except Exception as error:  # noqa: BLE001 - after a bug of ours, the node must not wait for ever
            _log.exception("the inputs cannot be staged")
            self._failed = Leaving("failed", f"the inputs cannot be staged: {error!r}", exit_code=1)
            return
        self._ready.set()
        with suppress(Stopped):
            self._bring_meanwhile({name: spec for name, spec in missing.items() if not spec.wait})

    def _bring_meanwhile(self, late: dict[str, DataSpec]) -> None:
        """Stage inputs while the training runs; failures do not affect the training."""
        lower_thread_priority()
        while late and self._context.status.state != "running":
            self._pause(LOOK_SECONDS)  # the start of the training has priority
        pause = AGAIN_SECONDS
        while late:
            for name, spec in tuple(late.items()):
                why = self._try(name, spec)
                warning = None if why is None else f"{why}; the training goes on without it"
                self._context.status.warn(f"data.{name} is late", warning)
                if why is None or name in self._hopeless:
                    del late[name]
            if late:
                self._pause(pause)
                pause = min(2 * pause, MAX_AGAIN_SECONDS)

    def _try(self, name: str, spec: DataSpec) -> str | None:
        try:
            self._bring(name, spec)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the training
            why = str(error) if isinstance(error, _InputError) else f"data.{name} cannot be staged: {error!r}"
            _log.warning("%s", why, exc_info=not isinstance(error, _InputError))
            if isinstance(error.__cause__, CorruptData):  # fetching it again would not help
                self._hopeless.add(name)
            return why
        return None

    def _bring(self, name: str, spec: DataSpec) -> None:
        memory = self._context.memory
        if spec.is_staged:
            memory.staged = (*memory.staged, self._stage(name, spec))
            self._context.status.staged = memory.staged
        else:
            with _explained(name, spec):
                self._repeat(open_input(spec).look)
        memory.inputs_ready.append(name)
        memory.save(self._context.node)

    def _stage(self, name: str, spec: DataSpec) -> StagedInput:
        began, node = time.monotonic(), self._context.node
        with _explained(name, spec):
            make_private(node.data_cache)
            source, cache = open_input(spec), InputCache(node.data_cache)
            path = spec.path_or_default(name)
            _check_free(self._context, path)  # check it before fetching anything
            put = functools.partial(place, self._context, path, source, cache)
            spare = 0.0 if spec.wait else SPARE_SHARE
            staging = Staging(self._repeat, self._pause, self._progress, place=put, spare_share=spare)
            staged = cache.stage(source, staging)
        try:
            self._compare(name, spec, staged)
        except CloudspotError as error:
            _log.warning("cannot check whether other nodes have the same data.%s: %s", name, error)
        found = StagedInput(
            name=name,
            num_files=len(staged.files),
            size=staged.num_bytes,
            fetched=staged.fetched_bytes,
            seconds=time.monotonic() - began,
        )
        text = "staged data.%s: %d file(s), %d bytes, %d of them fetched, in %.1f s"
        _log.info(text, name, found.num_files, found.size, found.fetched, found.seconds)
        return found

    @contextmanager
    def _progress(self, total: int, here: int) -> Iterator[Callable[[int], None]]:
        if self._ready.is_set():  # from now on, the status reports only the training's transfers
            yield lambda _count: None
            return
        with self._context.status.transferring("staging", total) as add:
            add(here)
            yield add

    def _repeat(self, request: Callable[[], _T]) -> _T:
        """Make the request, and retry it until ``SILENT_SECONDS`` after its first failure."""
        failed_at: float | None = None

        def attempt() -> _T:
            nonlocal failed_at
            if self._stopped.is_set() or self._context.ordered_leaving() is not None:
                raise Stopped
            try:
                return request()
            except TransientError as error:
                now = time.monotonic()
                failed_at = now if failed_at is None else failed_at
                if now - failed_at >= SILENT_SECONDS:
                    raise CloudspotError(
                        f"all attempts have failed for {now - failed_at:.0f} s: {error}"
                    ) from error
                raise

        return self._context.retry_until(attempt, sleep=self._pause)

    def _compare(self, name: str, spec: DataSpec, staged: Staged) -> None:
        """Warn if another node of the job staged different content from this URL."""
        context = self._context
        key = keys.input_version(context.job_id, name, context.job.submission.resumption)
        version = staged.version
        if spec.scheme == "file":
            # Each machine may have its own copy, whose files have different times.
            version = version_of_all([file._replace(version="") for file in staged.files])
        ours = InputVersion(
            at=context.now(),
            writer=new_nonce(),
            version=version,
            num_files=len(staged.files),
            size=staged.num_bytes,
            seat=context.seat,
        )
        is_there = self._repeat(lambda: create(context.store, key, codec.encode(ours)))
        first = ours if is_there is None else codec.decode(is_there, InputVersion, key=key)
        if first.version != ours.version:
            there, here = (f"{one.num_files} files of {one.size} bytes" for one in (first, ours))
            text = f"data.{name} differs from that of node {first.seat}: {there} there, {here} here"
            text += "; someone has written to its URL"
            _log.warning("%s", text)
            context.status.warn(f"data.{name}", text)


def data_variables(specs: Mapping[str, DataSpec], node: Node) -> dict[str, str]:
    """Return the environment variables that contain the paths of the inputs."""
    return {
        variable_of(name): str(node.work / spec.path_or_default(name)) if spec.is_staged else spec.url
        for name, spec in specs.items()
    }


def place(context: NodeContext, path: str, source: Input, cache: InputCache, staged: Staged) -> None:
    """Link the staged files in the cache to the input's path.

    Raises:
        CloudspotError: the path exists, or two files have names that this disk cannot store together.
        OSError: the disk failed.
    """
    node, memory = context.node, context.memory
    _check_free(context, path)
    if path.startswith("/"):
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
    else:
        target = make_parents(node.work, path)
    if path in memory.placed and not source.spec.wait and os.path.lexists(target):
        return  # the training may already be using it
    if path in memory.placed:
        _remove(target)  # an earlier agent was killed before it recorded that all inputs are staged
    else:
        memory.placed.append(path)
        memory.save(node)
    if not source.spec.is_tree:
        _link(cache.path_of(source, staged.files[0]), target)
        return
    with partial_directory(target.parent) as partial:
        above, directory = "", partial
        for file in staged.files:
            parent, _, name = file.name.rpartition("/")
            try:
                if parent != above:
                    above, directory = parent, make_parents(partial, file.name).parent
                _link(cache.path_of(source, file), directory / name)
            except (FileExistsError, NotADirectoryError) as error:
                raise CloudspotError(
                    f"{source.describe(file)} has the same name as another object, or lies below one: a "
                    "disk cannot hold both"
                ) from error
        partial.rename(target)


def _check_free(context: NodeContext, path: str) -> None:
    """Raise SymlinkError or CloudspotError if the path exists and is not the input."""
    if path in context.memory.placed:
        return
    target = context.node.work / path
    link = None if path.startswith("/") else find_symlink(context.node.work, path)
    if link is not None and link != target:
        raise SymlinkError(link)
    if os.path.lexists(target):
        raise CloudspotError(f"{target} already exists; name another path, or leave it out of the code")


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        target.symlink_to(file)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class _InputError(Exception):
    """An input cannot be staged; the message is for the user."""


@contextmanager
def _explained(name: str, spec: DataSpec) -> Iterator[None]:
    """Turn any error in the staging of an input into one line: the input, the cause, and the remedy."""
    failed = functools.partial("data.{}: {}: {}".format, name, spec.shown_url)
    try:
        yield
    except AuthError as error:
        raise _InputError(failed(f"{error}; grant the machines' role the permission to read it")) from error
    except PluginError as error:
        raise _InputError(failed(f"{error} (on this machine's image)")) from error
    except SymlinkError as error:
        raise _InputError(failed(f"{error.strerror}; name another path")) from error
    except CloudspotError as error:
        raise _InputError(failed(str(error))) from error
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        what = f"{error.strerror or error}" + ("; ask for more with resources.disk" if full else "")
        raise _InputError(failed(f"cannot write to the disk: {what}")) from error
