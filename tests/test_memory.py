"""The memory of the tests' own process: large buffers go back to the system when they are freed."""

import ctypes
import threading

import pytest


class Allocated(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def test_a_large_buffer_is_mapped_alone_although_another_was_freed():
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("only glibc from 2.33 on tells how much it has mapped")
    mallinfo.restype = Allocated
    mapped = []

    def allocate():
        before = mallinfo().hblkhd
        buffer = bytearray(16 << 20)
        mapped.append(mallinfo().hblkhd - before)
        del buffer

    for _ in range(2):
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
    assert [size >> 20 for size in mapped] == [16, 16]
