"""Opening what lies beneath a folder, never through a link, into a mount or outside: two ways with one meaning."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

Opener = Callable[[int, bytes, int], int]
"""(directory, relative path, flags) to a descriptor of what lies beneath that directory, never through a link.

Raises OSError, with EXDEV for what is mounted there."""


def open_by_walk(folder: int, path: bytes, flags: int) -> int:
    """Open part by part: the way of macOS and of kernels and sandboxes without openat2."""
    *parents, last = path.split(b"/")
    inner = folder
    try:
        for part in parents:
            following = _step(inner, part, os.O_DIRECTORY)
            if inner != folder:
                os.close(inner)
            inner = following
        return _step(inner, last, flags)
    finally:
        if inner != folder:
            os.close(inner)


def _step(folder: int, name: bytes, flags: int) -> int:
    fd = os.open(name, flags | _guards(), dir_fd=folder)
    try:
        if _mount_of(fd) != _mount_of(folder):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    except OSError:
        os.close(fd)
        raise
    return fd


def _mount_of(fd: int) -> bytes | int:
    """Return what tells a mount from others: its number; the device where the system does not give that."""
    try:
        with Path(f"/proc/self/fdinfo/{fd}").open("rb") as lines:
            return next(line for line in lines if line.startswith(b"mnt_id:"))
    except (OSError, StopIteration):
        return os.fstat(fd).st_dev


def _guards() -> int:
    return os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # non-blocking: a pipe without a writer must not hang us


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_HOW_BYTES = ctypes.sizeof(_OpenHow)
_OPENAT2 = 437
_MACHINES = ("x86_64", "aarch64")  # where that number is known to be right
_RESOLVE = 0x08 | 0x04 | 0x02 | 0x01  # BENEATH, NO_SYMLINKS, NO_MAGICLINKS, NO_XDEV of linux/openat2.h


def open_by_openat2(folder: int, path: bytes, flags: int) -> int:
    """Open in one system call, where the kernel refuses every link, mount and way out."""
    syscall, how = _syscall(), _how(flags)
    while True:
        fd = syscall(_OPENAT2, folder, path, how, _HOW_BYTES)
        if fd >= 0:
            return fd
        if (code := ctypes.get_errno()) != errno.EINTR:
            raise OSError(code, os.strerror(code))


@functools.cache
def _how(flags: int) -> object:
    """Return the argument that says how to open; the kernel only reads it, and a search opens ten thousand files."""
    return ctypes.byref(_OpenHow(flags | _guards(), 0, _RESOLVE))


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
