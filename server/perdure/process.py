"""What a process that serves for weeks asks of its allocator and its collector, so that it holds no more over time."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

# mallopt(3) of glibc. Each thread otherwise gets a heap of its own, up to eight for each core, and what one has freed
# serves no other; and once a large block was freed, those of its size stay in the heaps instead of going back.
M_ARENA_MAX, ARENAS = -8, 2
M_MMAP_THRESHOLD, LARGE = -3, 256 * 1024  # bytes; fixed, where glibc would let it grow to 32 MB
GIVE_BACK_EVERY_S = 10.0  # a millisecond each time


def bound_heaps() -> None:
    """Bound what free memory the C library keeps. Call it before threads start; only glibc listens."""
    if (mallopt := _of_libc("mallopt")) is not None:
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, LARGE)


def settle() -> None:
    """Tell the collector that all that exists now stays: looking through the imported code again takes 0.2 seconds."""
    gc.freeze()


@contextmanager
def giving_back() -> Generator[None]:
    """Meanwhile give back what is free in the middle of the heaps, which the C library keeps otherwise."""
    if (trim := _of_libc("malloc_trim")) is None:
        yield
        return
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(GIVE_BACK_EVERY_S):
            trim(0)

    thread = threading.Thread(target=run, daemon=True, name="heaps")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _of_libc(name: str) -> Callable[..., int] | None:
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # Windows
        return None
