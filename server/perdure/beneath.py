"""Opening what lies beneath a folder, never through a link and never outside: two ways with one meaning."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable

Opener = Callable[[int, bytes, int], int]
"""(directory, relative path, flags) to a descriptor of what lies beneath that directory, never through a link."""


def open_by_walk(folder: int, path: bytes, flags: int) -> int:
    """Open part by part: the way of macOS and of kernels and sandboxes without openat2."""
    *parents, last = path.split(b"/")
    inner = folder
    try:
        for part in parents:
            following = os.open(part, os.O_DIRECTORY | _guards(), dir_fd=inner)
            if inner != folder:
                os.close(inner)
            inner = following
        return os.open(last, flags | _guards(), dir_fd=inner)
    finally:
        if inner != folder:
            os.close(inner)


def _guards() -> int:
    return os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # non-blocking: a pipe without a writer must not hang us


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_OPENAT2 = 437
_MACHINES = ("x86_64", "aarch64")  # where that number is known to be right
_RESOLVE = 0x08 | 0x04 | 0x02  # BENEATH, NO_SYMLINKS, NO_MAGICLINKS of linux/openat2.h


def open_by_openat2(folder: int, path: bytes, flags: int) -> int:
    """Open in one system call, where the kernel refuses every link and every way out."""
    how = _OpenHow(flags | _guards(), 0, _RESOLVE)
    while True:
        fd = _syscall()(_OPENAT2, folder, path, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        if (code := ctypes.get_errno()) != errno.EINTR:
            raise OSError(code, os.strerror(code))


@functools.cache
def _syscall() -> Callable[..., int]:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    return syscall


def has_openat2(folder: int) -> bool:
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    try:
        os.close(open_by_openat2(folder, b".", os.O_DIRECTORY))
    except OSError:  # an older kernel, or a sandbox that does not let it through
        return False
    return True
