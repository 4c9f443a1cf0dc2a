"""Copies of large tensors that can be made during the step after a boundary (P6).

Between a boundary and the next optimizer step, no code should write to parameters or optimizer state. Before
a copy is accepted, two checks detect such writes: torch's version counters, and samples of each tensor's
bytes, which must be the same at the boundary, in the copy and after copying.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

PIECE_BYTES = 4 << 20
"""The number of bytes that a thread copies at a time without holding the interpreter's lock."""
_BETWEEN_BYTES = 4 << 20
"""The distance between two samples, in bytes; copying this amount takes a fraction of a millisecond."""
_SAMPLE_BYTES = 8
_CANCEL_SECONDS = 2.0
_POLL_SECONDS = 0.005
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


@dataclass(frozen=True)
class Deferred:
    """A tensor that may be copied later."""

    name: str
    target: Any
    """The tensor's place in a slot: a contiguous CPU tensor of the same type and shape."""
    source: Any
    """The live tensor: contiguous on the CPU, dense on a GPU."""
    wrapper: Any = None
    """If ``source`` is this rank's part of a DTensor, that DTensor: torch counts some writes only there."""


class OverlappedCopy:
    """The copy of some tensors: CPU tensors are copied by a thread, and GPU tensors by streams.

    If a script replaces one of the tensors, the new one is not copied, and the old one's memory is kept as
    long as this object exists. Only the main thread calls the methods, unless a docstring says otherwise.
    """

    def __init__(self, deferred: Sequence[Deferred], *, is_trial: bool = False) -> None:
        """Store the tensors' versions and samples at the boundary; no data is copied yet.

        ``differing`` may be called only in a trial.
        """
        self._names = [each.name for each in deferred]
        self._targets = [each.target for each in deferred]
        # These are other tensors that use the same memory, and a script cannot replace them.
        self._sources = [each.source.detach() for each in deferred]
        self._watched = [
            [source, *([] if each.wrapper is None else [each.wrapper])]
            for each, source in zip(deferred, self._sources, strict=True)
        ]
        self._versions = [_versions(each) for each in self._watched]
        self._on_cpu = [place for place, each in enumerate(self._sources) if each.device.type == "cpu"]
        self._samples = self._sample(self._sources)
        self._left = deque(
            (place, start) for place in self._on_cpu for start in range(0, self._nbytes(place), PIECE_BYTES)
        )
        self._thread: threading.Thread | None = None
        self._has_ended = threading.Event()
        self._has_ended.set()
        self._is_cancelled = False
        self._streams: list[_StreamCopy] = []
        self.error: Exception | None = None
        """The error because of which the thread could not copy, if any."""
        self.seconds = 0.0
        """How long the copying took, in the thread and while the main thread waited for it."""
        devices = {each.device for each in self._sources} - {torch.device("cpu")}
        for device in sorted(devices, key=str):
            places = [place for place, each in enumerate(self._sources) if each.device == device]
            pairs = [(self._targets[place], self._sources[place]) for place in places]
            self._streams.append(_StreamCopy(device, places, pairs, is_trial=is_trial))

    @property
    def nbytes(self) -> int:
        """The number of bytes to copy."""
        return sum(map(self._nbytes, range(len(self._names))))

    def share_of(self, names: Collection[str]) -> float:
        """Return the share of the bytes that belongs to the tensors with these names."""
        places = [place for place, name in enumerate(self._names) if name in names]
        return sum(map(self._nbytes, places)) / max(self.nbytes, 1)

    @property
    def is_on_gpu(self) -> bool:
        """Whether GPUs copy a part of it."""
        return bool(self._streams)

    def start(self, then: Callable[[], None]) -> None:
        """Begin to copy in the background; the streams wait for the work that the caller has queued so far.

        When it has finished copying, the thread calls ``then``. The thread uses no GPU, because a GPU may be
        capturing a graph.
        """
        for each in self._streams:
            each.start()

        def run() -> None:
            began = time.perf_counter()
            try:
                while not self._is_cancelled and self._copy_piece(with_threads=False):
                    pass
            except Exception as error:  # the main thread waits for this thread to end
                self.error = error
            self.seconds += time.perf_counter() - began
            self._has_ended.set()
            then()

        self._has_ended.clear()
        self._thread = threading.Thread(target=run, name="cloudspot-copy", daemon=True)
        self._thread.start()

    def finish(self) -> float:
        """Copy the rest, so that the caller's later writes cannot change the copy; return the seconds taken.

        The CPU tensors are copied when this returns. Work that is queued on GPUs afterwards waits for the
        copies of their tensors.
        """
        began = time.perf_counter()
        while self._copy_piece(with_threads=True):
            pass
        self._has_ended.wait()
        for each in self._streams:
            each.hold_back_writes()
        return time.perf_counter() - began

    def copy_now(self) -> None:
        """Copy everything and wait until it is done; call this instead of ``start``."""
        for each in self._streams:
            each.start()
        self.seconds += self.finish()
        self.wait()

    def is_done(self) -> bool:
        """Return whether the GPUs have finished copying; do not call this while a GPU captures a graph."""
        return all(each.is_done() for each in self._streams)

    def wait(self) -> None:
        """Wait until the GPUs have finished copying; work queued after ``start`` does not delay this."""
        for each in self._streams:
            each.wait()

    def cancel(self) -> bool:
        """Stop copying; return whether the slot no longer changes. Any thread may call this.

        A GPU that has not reached the boundary would write to the slot later; if a rank is lost, it never
        reaches the boundary.
        """
        self._is_cancelled = True
        self._has_ended.wait()
        until = time.monotonic() + _CANCEL_SECONDS
        while not self.is_done() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return self.is_done()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def written(self) -> list[str]:
        """Return the tensors that were written to since the boundary, by version counters and CPU samples.

        GPU samples are not compared. A write that is in progress in another thread may not be detectable yet.
        """
        versions = [_versions(each) for each in self._watched]
        found = {place for place, now in enumerate(versions) if now != self._versions[place]}
        samples = self._sample(self._sources)
        found |= {self._on_cpu[index] for index in _differing(self._samples, samples)}
        return [self._names[place] for place in sorted(found)]

    def torn(self) -> list[str]:
        """Return the tensors whose copies differ from the boundary's samples; call it when all is copied.

        Any thread may call this.
        """
        copied = self._sample(self._targets)
        found = {self._on_cpu[index] for index in _differing(self._samples, copied)}
        for each in self._streams:
            found |= each.torn()
        return [self._names[place] for place in sorted(found)]

    def differing(self) -> list[str]:
        """Return the tensors that now differ from their copies.

        For CPU tensors, all bytes are compared. For GPU tensors, sums are compared, which waits for the GPU.
        """
        found = {
            place
            for place in self._on_cpu
            if not _has_memory(self._sources[place])
            or _memcmp(self._targets[place].data_ptr(), self._sources[place].data_ptr(), self._nbytes(place))
        }
        for each in self._streams:
            found |= each.differing()
        return [self._names[place] for place in sorted(found)]

    def _sample(self, tensors: Sequence[Any]) -> list[bytes]:
        return [_samples(tensors[place]) for place in self._on_cpu]

    def _nbytes(self, place: int) -> int:
        count: int = self._targets[place].nbytes
        return count

    def _copy_piece(self, *, with_threads: bool) -> bool:
        """Copy the next piece, in this thread or with all of torch's; return whether there was one."""
        try:
            place, start = self._left.popleft()
        except IndexError:
            return False
        source, target = self._sources[place], self._targets[place]
        if not _has_memory(source):
            return True  # its samples are missing too, so the copy will be rejected
        count = min(PIECE_BYTES, self._nbytes(place) - start)
        if with_threads:
            _bytes_of(target)[start : start + count].copy_(_bytes_of(source)[start : start + count])
        else:  # torch would start more threads for this one, which compete with the training's
            ctypes.memmove(target.data_ptr() + start, source.data_ptr() + start, count)
        return True


class _StreamCopy:
    """The copies of one GPU's tensors into page-locked memory, made by a separate stream."""

    def __init__(
        self, device: Any, places: Sequence[int], pairs: Sequence[tuple[Any, Any]], *, is_trial: bool
    ) -> None:
        self._device = device
        self._places = places
        self._pairs = pairs
        self._flat = [_bytes_of(source) for _, source in pairs]
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            self._before = self._sample()
            self._sums: Any = self._sum() if is_trial else None
        self._after: list[tuple[int, Any]] = []
        self._done: Any = None

    def start(self) -> None:
        with torch.cuda.stream(self._stream):
            for target, source in self._pairs:
                target.copy_(source, non_blocking=True)
            self._after = self._sample()
            self._done = self._stream.record_event()

    def hold_back_writes(self) -> None:
        """Make work that is queued on the GPU from now on wait for the copy."""
        if self._done is not None:
            torch.cuda.current_stream(self._device).wait_event(self._done)

    def is_done(self) -> bool:
        return self._done is None or bool(self._done.query())

    def wait(self) -> None:
        if self._done is not None:
            self._done.synchronize()

    def torn(self) -> set[int]:
        before = self._of_host(self._before)
        changed = _differing(before, self._of_host(self._after))
        # Compare only contiguous tensors with their copies: in others, the elements are in a different order.
        rows = [index for index, (_, source) in enumerate(self._pairs) if source.is_contiguous()]
        copied = [_samples(self._pairs[index][0]) for index in rows]
        changed += [rows[index] for index in _differing([before[index] for index in rows], copied)]
        return {self._places[index] for index in changed}

    def differing(self) -> set[int]:
        pairs = enumerate(zip(self._sums.tolist(), self._sum().tolist(), strict=True))
        return {self._places[index] for index, (before, now) in pairs if before != now}

    def _sum(self) -> Any:
        return torch.stack([each.sum(dtype=torch.int64) for each in self._flat])

    def _sample(self) -> list[tuple[int, Any]]:
        """Queue copies of each tensor's samples to the host; return the copies by sample length.

        They contain their values once the stream has reached them.
        """
        found = []
        for length in sorted({_sampling(len(each))[2] for each in self._flat}):
            views = []
            for each in self._flat:
                count, stride, its_length = _sampling(len(each))
                if its_length == length:
                    views.append(each.as_strided((count, length), (stride, 1)))
            there = torch.cat(views)
            here = torch.empty(there.shape, dtype=torch.uint8, device="cpu", pin_memory=True)
            here.copy_(there, non_blocking=True)
            found.append((length, here))
        return found

    def _of_host(self, samples: list[tuple[int, Any]]) -> list[bytes]:
        """Return each tensor's samples."""
        data = {length: here.numpy().tobytes() for length, here in samples}
        taken = dict.fromkeys(data, 0)
        found = []
        for each in self._flat:
            count, _, length = _sampling(len(each))
            start = taken[length]
            taken[length] = start + count * length
            found.append(data[length][start : start + count * length])
        return found


def _versions(tensors: Sequence[Any]) -> list[int]:
    return [each._version for each in tensors]  # noqa: SLF001 - has no public name


def _has_memory(tensor: Any) -> bool:
    """Return whether a dense tensor's storage is still large enough: a script may have resized it."""
    needed = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return bool(tensor.untyped_storage().nbytes() >= needed)


def _bytes_of(tensor: Any) -> Any:
    """Return a dense tensor's bytes in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _sampling(nbytes: int) -> tuple[int, int, int]:
    """Return the number of a tensor's samples, the distance between their starts, and their length."""
    length = min(_SAMPLE_BYTES, nbytes)
    count = 1 if nbytes == length else max(2, math.ceil(nbytes / _BETWEEN_BYTES))
    return count, (nbytes - length) // max(count - 1, 1), length


def _samples(tensor: Any) -> bytes:
    """Return a CPU tensor's samples, which are empty if a script has freed the tensor's memory."""
    if not _has_memory(tensor):
        return b""
    count, stride, length = _sampling(tensor.nbytes)
    start = tensor.data_ptr()
    return b"".join(ctypes.string_at(start + index * stride, length) for index in range(count))


def _differing(before: Sequence[bytes], now: Sequence[bytes]) -> list[int]:
    return [index for index, (one, other) in enumerate(zip(before, now, strict=True)) if one != other]
