"""The root file system of the Dockerfile's image as far as it can be had without an engine: read-only, nearly empty.

Each command runs in a mount and a process namespace of its own, as the user the image or an orchestrator names, with
the environment, the working directory and the volume that the Dockerfile says, and nowhere else to write to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSTALLED = Path("/opt/perdure")  # where the image has the virtual environment
TOOLS = ("unshare", "mount", "chroot", "setpriv")

MAKE = r"""
set -e
root=$1 data=$2; shift 2
mount -t tmpfs -o mode=755 none "$root"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
    shift 2
done
shift
for name in bin sbin lib lib64; do
    if [ -L /$name ]; then ln -s "$(readlink /$name)" "$root/$name"
    elif [ -d /$name ]; then mkdir -p "$root/$name"; mount --bind /$name "$root/$name"; fi
done
mkdir -p "$root/data" "$root/proc" "$root/tmp" "$root/dev" "$root/etc" "$root/home/perdure"
chmod 755 "$root/tmp"
for file in /dev/null /dev/zero /dev/urandom /etc/ld.so.cache /etc/hosts; do
    if [ -e $file ]; then : > "$root$file"; mount --bind $file "$root$file"; fi
done
mount --bind "$data" "$root/data"
mount -t proc proc "$root/proc"
mount -o remount,ro "$root"
exec chroot "$root" "$@"
"""


def dockerfile() -> dict[str, str]:
    """Return the last value of each instruction of the Dockerfile's image, by its name."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    image = text[text.rindex("\nFROM ") :]
    return {name: value.strip() for name, value in re.findall(r"^([A-Z]+) (.*)$", image, flags=re.MULTILINE)}


class BareRoot:
    """Commands as the image runs them, on one volume."""

    def __init__(self, folder: Path, user: int) -> None:
        if sys.platform != "linux" or os.geteuid() or not all(map(shutil.which, TOOLS)):
            pytest.skip("a root file system is made as root on Linux, with the tools of util-linux and coreutils")
        self._says, self._user = dockerfile(), user
        self._root, self.volume = folder / "root", folder / "volume"
        self._root.mkdir()
        self.volume.mkdir(mode=0o700)
        os.chown(self.volume, user, user)

    def belong_to_root(self) -> None:
        """Have the volume as Kubernetes leaves it to a group: of root, and writable for the group."""
        os.chown(self.volume, 0, self._user)
        self.volume.chmod(0o2775)

    def within(self, *command: str) -> list[str]:
        return self._within(list(command), {})

    def entry(self, *arguments: str, **settings: str) -> list[str]:
        """Return the command by which the image is started with these arguments."""
        return self._within([*json.loads(self._says["ENTRYPOINT"]), *arguments], settings)

    def health_check(self, **settings: str) -> list[str]:
        return self._within(json.loads(self._says["HEALTHCHECK"].partition("CMD ")[2]), settings)

    def _environment(self) -> dict[str, str]:
        """Return what the image sets, and what a runtime sets for a user."""
        own = self._user == int(self._says["USER"])
        said = dict(re.findall(r'(\w+)="?([^\s"]+)"?', self._says["ENV"]))
        said["PATH"] = said["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
        # Of the checkout, should it not be what is installed; of the processor, should it need it.
        kept = ("PYTHONPATH", "LD_LIBRARY_PATH", "OPENBLAS_CORETYPE")
        return {name: os.environ[name] for name in kept if name in os.environ} | {
            "HOME": "/home/perdure" if own else "/",
            **said,
        }

    def _within(self, command: list[str], settings: Mapping[str, str]) -> list[str]:
        binds = [path for pair in self._shown() for path in pair]
        env = [f"{name}={value}" for name, value in (self._environment() | dict(settings)).items()]
        user = [f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups", "--bounding-set=-all"]
        inside = [
            "setpriv",
            *user,
            "--no-new-privs",
            "sh",
            "-c",
            f'cd {self._says["WORKDIR"]} && exec env -i "$@"',
            "sh",
        ]
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        made = ["sh", "-c", MAKE, "sh", str(self._root), str(self.volume), *binds, "--"]
        return [*namespaces, *made, *inside, *env, *command]

    def _shown(self) -> list[tuple[str, str]]:
        """Return what is to be seen of this machine, and where: the system, the interpreter, what is installed."""
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        places = ["/usr", sys.base_prefix, sys.prefix, str(ROOT), *filter(None, paths)]
        kept: list[str] = []
        for place in sorted({str(Path(place).resolve()) for place in places}):
            if not any(Path(place).is_relative_to(other) for other in kept):
                kept.append(place)
        return [*((place, place) for place in kept), (sys.prefix, str(INSTALLED))]
