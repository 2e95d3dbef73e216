"""Run by itself: swaps names of a workspace for links again and again, each swap in one system call, and counts them.

usage: python swapper.py COUNTER NAME LINK TARGET [NAME LINK TARGET ...]
What stands at NAME and the link at LINK, which leads to TARGET, change places. COUNTER holds the number of swaps.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import random
import struct
import sys
import time
from pathlib import Path

AT_FDCWD, EXCHANGE = -100, 2  # of fcntl.h and linux/fs.h
MAX_PAUSE_S = 200e-6


def main(counter: Path, *given: Path) -> None:
    places = [given[n : n + 3] for n in range(0, len(given), 3)]
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    with counter.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        chance, swaps = random.Random(5), 0
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            name, link, target = chance.choice(places)
            if not name.is_symlink() and not link.is_symlink():
                # Whoever deletes or replaces may meet the link at the last moment, and then that is what is gone.
                with contextlib.suppress(OSError):
                    link.rename(f"{link}-{swaps}")
                with contextlib.suppress(OSError):
                    link.symlink_to(target)
            if exchange(AT_FDCWD, bytes(name), AT_FDCWD, bytes(link), EXCHANGE) == 0:
                swaps += 1
                struct.pack_into("=Q", shared, 0, swaps)
            time.sleep(chance.random() * MAX_PAUSE_S)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
