"""What it takes until bytes, and the names of files, are on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def sync(fd: int) -> None:
    """Return when what was written to a file, or the names in a folder, would survive a power failure."""
    if sys.platform == "darwin":
        import fcntl  # not on every platform that imports this module

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone leaves the data in the drive's cache there
    else:
        os.fsync(fd)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)
