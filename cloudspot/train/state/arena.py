"""The arena: two files per rank, in memory if there is room, to which a save copies the rank's part (P5).

They are ordinary files in /dev/shm, because sealed parts must outlive the trainer: if the trainer is killed,
the tracker of ``multiprocessing.shared_memory`` unlinks its segments. All users may write to /dev/shm, so the
files are in a directory that only this user can use, and links are not followed.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from cloudspot.host.capacity import free_memory_bytes
from cloudspot.host.private_directories import make_private
from cloudspot.train.distributed import World
from cloudspot.train.errors import SessionError
from cloudspot.train.handoff import RESTORE_IN_MEMORY, SealName, seals_directory
from cloudspot.train.state.overlapped_copy import Deferred, OverlappedCopy
from cloudspot.train.state.partition import Placement

_CHUNK_BYTES = 64 << 20
"""After this many bytes, a claim checks whether it must stop."""
_STAGING_BYTES = 64 << 20
_MIN_LATER_BYTES = 64 << 10
"""Copying a smaller CPU tensor takes no more time than watching it for writes."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_REMOVAL_SECONDS = 2.0
_locked_for_good: list[Any] = []
"""Closed page-locked memory, which stays mapped so that no other memory is assigned its addresses."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Slot:
    """A mapped file of the arena. It is free once its last seal has been uploaded or withdrawn."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mapped: mmap.mmap | None = None
        self._bytes: Any = None  # uint8 tensor over the mapping
        self._registered_bytes = 0
        self._can_register = True
        self._device: Any = None
        """The GPU for which the memory is page-locked."""
        self._views: tuple[Sequence[Placement], list[Any]] | None = None
        self.path: Path | None = None
        self.capacity = 0
        """The size in bytes."""
        self.seal: Path | None = None
        """The seal of the slot's content; None before the first seal."""
        self.is_being_written = False
        """Whether a copy to this slot is being made during the training or has not been sealed yet."""

    def is_free(self) -> bool:
        """Return whether the content is no longer needed."""
        if self.is_being_written:
            return False
        if self.seal is None:
            return True
        # The order matters, because the agent may rename the seal to its claimed name in between.
        return not self.seal.exists() and not _taken(self.seal).exists()

    def withdraw(self) -> bool:
        """Withdraw a seal whose upload has not started; return whether this succeeded."""
        assert self.seal is not None
        try:
            # The agent claims a seal by renaming it, so either the agent or this process gets the seal.
            self.seal.unlink()
        except FileNotFoundError:
            return self.is_free()
        return True

    def claim(self, directory: Path, nbytes: int, *, stopped: Callable[[], bool]) -> None:
        """Allocate and warm ``nbytes`` in ``directory``; the slot must be free.

        A claim that fails leaves the slot and its file unchanged.

        Raises:
            OSError: there is no room (ENOSPC, EDQUOT, EFBIG), the directory is not writable or is open to
                other users (EPERM), or the claim was ``stopped`` (ECANCELED).
        """
        path = directory / self._name
        make_private(directory)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for start in range(0, nbytes, _CHUNK_BYTES):
                if stopped():
                    raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
                _allocate(descriptor, start, min(_CHUNK_BYTES, nbytes - start))
            mapped = mmap.mmap(descriptor, nbytes)
        except OSError:
            if path == self.path:
                os.truncate(descriptor, self.capacity)
            else:
                path.unlink()
            raise
        finally:
            os.close(descriptor)
        self._release()
        self._can_register = True
        if self.path is not None and self.path != path:
            self.path.unlink(missing_ok=True)
        self._mapped = mapped
        self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)
        self.path, self.capacity = path, nbytes
        # Touch every page once, because copying into a cold page takes four times as long.
        for start in range(0, nbytes, _CHUNK_BYTES):
            if stopped():
                return
            self._bytes[start : start + _CHUNK_BYTES].zero_()

    def write(
        self,
        placements: Sequence[Placement],
        tensors: Sequence[Any],
        *,
        later: Mapping[str, Any] = _NOTHING,
        is_trial: bool = False,
    ) -> OverlappedCopy:
        """Copy all tensors to their places, except those for ``later``; return the copy to be made of these.

        ``later`` maps each item's name to the DTensor whose local part the tensor is, or to None.
        """
        if self._views is None or self._views[0] is not placements:
            self._views = (placements, [self._view(placement) for placement in placements])
        device = next((each.device for each in tensors if each.device.type == "cuda"), None)
        if device is not None:
            self._register(placements[-1].offset + placements[-1].nbytes, device)
        deferred, on_device = [], []
        for placement, view, tensor in zip(placements, self._views[1], tensors, strict=True):
            name = placement.item.name
            if name in later and self._can_wait(view, tensor):
                deferred.append(Deferred(name, view, tensor, later[name]))
            elif tensor.device.type == "cpu":
                view.copy_(tensor)
            else:
                on_device.append((view, tensor))
        if on_device:
            self._write_from_devices(on_device)
        return OverlappedCopy(deferred, is_trial=is_trial)

    def _can_wait(self, view: Any, tensor: Any) -> bool:
        """Return whether a tensor can be copied during the training and is large enough to be worth it."""
        if tensor.device.type == "cpu":
            return bool(tensor.is_contiguous()) and tensor.nbytes >= _MIN_LATER_BYTES
        return tensor.device.type == "cuda" and self._is_locked(view)

    def _is_locked(self, view: Any) -> bool:
        """Return whether a view is in page-locked memory."""
        return bool(view.data_ptr() + view.nbytes <= self._bytes.data_ptr() + self._registered_bytes)

    def put(self, offset: int, data: memoryview) -> None:
        """Copy bytes to an offset."""
        assert self._mapped is not None
        self._mapped[offset : offset + len(data)] = data

    def close(self) -> None:
        """Release the mapping; the file is kept for the agent."""
        if self._registered_bytes:
            # To unlock the memory, CUDA would wait for the GPU, which may be waiting for lost ranks.
            _locked_for_good.append(self._bytes)
            self._registered_bytes = 0
        self._release()
        self.capacity = 0

    def _view(self, placement: Placement) -> Any:
        data = self._bytes[placement.offset : placement.offset + placement.nbytes]
        return data.view(getattr(torch, placement.item.dtype)).view(placement.shape)

    def _write_from_devices(self, copies: list[tuple[Any, Any]]) -> None:
        if copies[0][1].device.type != "cuda":
            for view, tensor in copies:
                view.copy_(tensor)
            return
        is_locked = [self._is_locked(view) for view, _ in copies]
        streams = {}
        for (view, tensor), is_fast in zip(copies, is_locked, strict=True):
            if not is_fast:
                continue
            if tensor.device not in streams:
                stream = torch.cuda.Stream(device=tensor.device)
                stream.wait_stream(torch.cuda.current_stream(tensor.device))
                streams[tensor.device] = stream
            with torch.cuda.stream(streams[tensor.device]):
                view.copy_(tensor, non_blocking=True)
        if not all(is_locked):
            _copy_through_staging(
                [one for one, is_fast in zip(copies, is_locked, strict=True) if not is_fast]
            )
        for stream in streams.values():
            stream.synchronize()

    def _register(self, nbytes: int, device: Any) -> None:
        """Page-lock the first bytes, so that GPUs write at the bus's full speed; done once per mapping.

        Locking takes time (0.05 s per GB), so bytes that no save has needed are not locked. If a later save
        needs more bytes, for example for another rank's part, these are not locked either: to lock them, CUDA
        would first wait for all work of the GPU, which may be waiting for lost ranks. Memory is locked only
        by saves: between saves, a script may capture a CUDA graph, which locking in another thread would
        spoil.
        """
        if self._registered_bytes or not self._can_register:
            return
        with torch.cuda.device(device):  # a thread would use the first GPU and allocate memory there
            if int(torch.cuda.cudart().cudaHostRegister(self._bytes.data_ptr(), nbytes, 0)) == 0:
                self._registered_bytes, self._device = nbytes, device
            else:  # for example, a file on disk
                self._can_register = False
                _forget_error(device)

    def _unregister(self) -> None:
        if self._registered_bytes:
            with torch.cuda.device(self._device):
                torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
            self._registered_bytes = 0

    def _release(self) -> None:
        self._unregister()
        self._views = self._bytes = self._mapped = None


class Arena:
    """A rank's two slots."""

    def __init__(self, *, directory: Path, spill: Path, handoff: Path, generation: int, world: World) -> None:
        """Set the slots' names; nothing is written before ``claim``.

        Slots are in ``directory``, which is in memory, or in ``spill`` on disk if memory is short. Their
        seals are in ``handoff``. ``generation`` is the number of this start of torchrun.
        """
        self.world = world
        self.generation = generation
        self.seals = seals_directory(handoff)
        self._directory = directory
        self._spill = spill
        self._slots = tuple(Slot(f"slot-{generation}-{world.rank}-{index}") for index in range(2))
        self._stopped = False
        self._is_hurried = False

    def claim(self, nbytes: int, wanted_nbytes: int = 0, *, written: Slot | None = None) -> None:
        """Get two warm slots of ``nbytes``, or of ``wanted_nbytes`` if there is enough memory.

        A slot that is in use does not change; it grows when it is free and the room is needed. The slot
        ``written`` was just written and may not be sealed yet, so it does not change either.

        Raises:
            SessionError: neither the memory nor the disk has room for slots of ``nbytes``.
        """
        self._await_removal()
        others = [slot for slot in self._slots if slot is not written]
        slots = [slot for slot in others if slot.is_free() and slot.capacity < nbytes]
        for num_done, slot in enumerate(slots):
            self.grow(slot, nbytes, num_more=len(slots) - num_done - 1)
        for slot in others:
            self._widen(slot, wanted_nbytes)

    def _await_removal(self) -> None:
        """Wait until the agent removes the checkpoint in memory, after all ranks here have read it."""
        restored, until = self._directory / RESTORE_IN_MEMORY, time.monotonic() + _REMOVAL_SECONDS
        while not (self._stopped or self._is_hurried) and time.monotonic() < until and restored.exists():
            time.sleep(0.01)

    def hurry(self) -> None:
        """Make a claim in another thread give up ``wanted_nbytes``."""
        self._is_hurried = True

    def room(self) -> int:
        """Return the size of each slot in bytes."""
        return min(slot.capacity for slot in self._slots)

    def _widen(self, slot: Slot, nbytes: int) -> None:
        """Grow a free slot in memory, if half of the free memory is left when all slots here grow."""
        if nbytes <= slot.capacity or not slot.is_free():
            return
        free = min(free_memory_bytes() or 0, shutil.disk_usage(self._directory).free)
        # All ranks on this machine claim their slots at the same time.
        if free < 2 * len(self._slots) * nbytes * self.world.local_world_size:
            return
        try:
            slot.claim(self._directory, nbytes, stopped=lambda: self._stopped or self._is_hurried)
        except OSError as error:
            if error.errno not in {*_NO_SPACE, errno.ECANCELED}:
                raise

    def grow(self, slot: Slot, nbytes: int, *, num_more: int = 0) -> None:
        """Get room for ``nbytes`` in a free slot, in memory if ``num_more`` such slots also fit there.

        Raises:
            SessionError: neither the memory nor the disk has enough room.
        """
        nbytes = max(nbytes, mmap.PAGESIZE)  # an empty part needs a file too
        if nbytes <= slot.capacity:
            return
        needed = (1 + num_more) * nbytes * self.world.local_world_size
        refusals = []
        for directory in (self._directory, self._spill):
            if directory == self._directory and (free := free_memory_bytes()) is not None and free < needed:
                refusals.append(f"{directory}: {free} bytes of memory are free, {needed} are needed")
                continue
            try:
                slot.claim(directory, nbytes, stopped=lambda: self._stopped)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
                refusals.append(f"{directory}: {error.strerror}")
                continue
            return
        raise SessionError(
            f"no room for a checkpoint slot of {nbytes} bytes ({'; '.join(refusals)}):"
            " choose a machine with more memory or disk, or run fewer processes on it"
        )

    def free_slot(self) -> Slot | None:
        """Return a slot that may be written to, or None if no slot is free."""
        return next((slot for slot in self._slots if slot.is_free()), None)

    def withdraw_slot(self) -> Slot | None:
        """Return a free slot, or else one whose upload has not started; None if both are being uploaded."""
        free = self.free_slot()
        if free is not None:
            return free
        # The older slot is uploaded first, so try the newer one first.
        sealed = [slot for slot in self._slots if not slot.is_being_written]
        newest_first = sorted(sealed, key=_sealed_at, reverse=True)
        return next((slot for slot in newest_first if slot.withdraw()), None)

    def seal_path(self, step: int, number: int, *, is_held: bool = False) -> Path:
        """Return the path of a step's seal; ``number`` is the number of the seal's round, or 0."""
        name = SealName(self.generation, step, number, self.world.rank, taken=False)
        return self.seals / (name.held_name if is_held else name.file_name)

    def stop(self) -> None:
        """Make a claim in another thread end early."""
        self._stopped = True

    def close(self) -> None:
        """Release the mappings and stop claims; the files are kept for the agent."""
        self.stop()
        for slot in self._slots:
            slot.close()


def _allocate(descriptor: int, start: int, nbytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, nbytes)
        return
    # macOS lacks posix_fallocate; writing zeros also allocates the blocks.
    zeros = bytes(1 << 20)
    os.lseek(descriptor, start, os.SEEK_SET)
    left = nbytes
    while left > 0:
        left -= os.write(descriptor, zeros[:left])


def _forget_error(device: Any) -> None:
    """Make CUDA report its last error here; otherwise, the training's next kernel would raise that error."""
    with suppress(RuntimeError):
        torch.ones(1, device=device).add_(1)


def _copy_through_staging(copies: list[tuple[Any, Any]]) -> None:
    staging = torch.empty(_STAGING_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
    for view, tensor in copies:
        source = tensor.contiguous().view(-1).view(torch.uint8)
        target = view.view(-1).view(torch.uint8)
        for start in range(0, len(source), _STAGING_BYTES):
            part = source[start : start + _STAGING_BYTES]
            staged = staging[: len(part)]
            staged.copy_(part)
            target[start : start + len(part)].copy_(staged)


def _sealed_at(slot: Slot) -> tuple[int, ...]:
    assert slot.seal is not None
    return tuple(map(int, slot.seal.name.split("-")[2:4]))


def _taken(seal: Path) -> Path:
    return seal.with_name(seal.name.replace("seal-", "taken-", 1))
