"""Room on the disk that is set aside, so that something can still be forgotten when it is full."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 8 * 1024 * 1024  # what one forget writes is below 1 MiB, and the log may have grown to 4 before


class Reserve:
    """A file of RESERVE_BYTES in the data directory. Called under the write lock only."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "reserve"

    def keep(self) -> None:
        """See that it is there. Raises OSError when there is no room for it: then there is none for a memory."""
        try:
            if self._path.stat().st_size == RESERVE_BYTES:
                return
        except FileNotFoundError:
            pass
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if sys.platform == "darwin":
                os.write(fd, bytes(RESERVE_BYTES))
            else:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            self._path.unlink()  # half of it would look like all of it, or take the last room
            raise
        finally:
            os.close(fd)

    def spend_if_short(self) -> None:
        """Give the room free if there is little else."""
        disk = os.statvfs(self._path.parent)
        if disk.f_bavail * disk.f_frsize < RESERVE_BYTES:
            self._path.unlink(missing_ok=True)

    def renew(self) -> None:
        """Set room aside again, if there is any yet."""
        with suppress(OSError):
            self.keep()
