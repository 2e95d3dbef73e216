"""On which file system a path lies, and whether what is stored there lasts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
LAYER = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "gpfs", "davfs"),
        *("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.glusterfs", "fuse.davfs2", "fuse.ceph"),
    )
)
SHARED = frozenset({"virtiofs", "fuse.grpcfuse", "drvfs", "vboxsf", "fuse.vmhgfs-fuse", "prl_fs"})
SYNCED = ("Dropbox", "OneDrive", "Google Drive", "Mobile Documents", "iCloud Drive", "Nextcloud", "Syncthing")
_UNNAMED = re.compile(r"/volumes/[0-9a-f]{64}/_data$")  # what a container engine mounts where nobody named a volume
_CACHED = re.compile(r"/(?:site-packages|dist-packages|node_modules|_npx)(?:/|$)|/\.?cache/(?:uv|pip|pypoetry)(?:/|$)")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system: where, of which kind, and what of it (`root`)."""

    at: Path
    kind: str
    root: str


def mount_of(path: Path) -> Mount | None:
    """Return the mount that an existing path lies on, or None where the system does not say."""
    try:
        lines = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = path.resolve()
    found: Mount | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        root, at = (_unescaped(field) for field in before.split(" ")[3:5])
        # Of two mounts at one place the later one covers the earlier.
        if real.is_relative_to(at) and (found is None or len(Path(at).parts) >= len(found.at.parts)):
            found = Mount(Path(at), after.split(" ")[0], root)
    return found


def lasts(path: Path, mount: Mount | None, environment: Path) -> tuple[str, str] | None:
    """Return why what is stored at a path does not last, and where to store it instead; None if nothing is known of it.

    `environment` is where Python is installed, which an update removes.
    """
    here = str(path)
    if path.is_relative_to(environment) and environment != Path(environment.anchor):
        return f"it lies in the Python environment {environment}, which an update removes", ELSEWHERE
    if _CACHED.search(here):
        return "it lies in a folder of packages or caches, which an update or a clean-up removes", ELSEWHERE
    if mount is None:
        return None
    if mount.kind in MEMORY:
        return f"it lies in memory ({mount.kind} at {mount.at}), which a restart empties", VOLUME.format(here)
    if mount.kind in LAYER:
        return f"it lies in a container's own layer ({mount.kind}), which goes with the container", VOLUME.format(here)
    if mount.kind in NETWORK:
        return (
            f"it lies on a network file system ({mount.kind} at {mount.at}): locks and SQLite's log fail there",
            LOCAL,
        )
    return None


def doubts(path: Path, mount: Mount | None) -> tuple[str, str] | None:
    """Return why what is stored at a path may not last, and what to do; None if nothing speaks for it."""
    if mount is not None and _UNNAMED.search(mount.root):
        return "its volume has no name, and may go with the container", VOLUME.format(path)
    if mount is not None and mount.kind in SHARED:
        return f"it is shared with another system ({mount.kind}): only processes of one side may use it", LOCAL
    if mount is not None and mount.kind.startswith("fuse"):
        return f"it lies on {mount.kind}, of which Perdure does not know whether locks work", LOCAL
    if synced := next((name for name in SYNCED if name in path.parts), None):
        return f"{synced} copies it while it is written, and may put an older copy in its place", ELSEWHERE
    if path.is_relative_to("/tmp") or path.is_relative_to("/var/tmp"):
        return "it lies among temporary files, which the system deletes", ELSEWHERE
    return None


ELSEWHERE = "Move it with every server stopped, and set PERDURE_DATA_DIR to the new place."
LOCAL = "Keep it on a disk of this machine: set PERDURE_DATA_DIR to a directory there."
VOLUME = "Mount a disk or a named volume at {0}, like docker run -v perdure-data:{0}, or set PERDURE_DATA_DIR."


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def nearest(path: Path) -> Path:
    """Return the path itself, or the folder above it that exists."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))
