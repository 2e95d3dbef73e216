"""What a process that serves for weeks asks of its allocator and its collector, so that it holds no more over time."""

from __future__ import annotations

import ctypes
import gc

# mallopt(3) of glibc. Each thread otherwise gets a heap of its own, up to eight for each core, and what one has freed
# serves no other; and once a large block was freed, those of its size stay in the heaps instead of going back.
M_ARENA_MAX, ARENAS = -8, 2
M_MMAP_THRESHOLD, LARGE = -3, 256 * 1024  # bytes; fixed, where glibc would let it grow to 32 MB


def bound_heaps() -> None:
    """Bound what free memory the C library keeps. Call it before threads start; only glibc listens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, LARGE)


def settle() -> None:
    """Tell the collector that all that exists now stays: looking through the imported code again takes 0.2 seconds."""
    gc.freeze()
