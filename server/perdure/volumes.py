"""Volumes: directories of this machine among the files of namespaces, and which of them a path leads into.

What Perdure knows of the files of a volume belongs to the volume, and not to the namespaces that have it: its rows in
SQL stand under `volume.NAME`, a name that no namespace can have, and so do the versions it keeps, in the data
directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from perdure import note_files, paths
from perdure.errors import InvalidInput, PerdureError, Refused, Unavailable
from perdure.settings import Settings, VolumeSettings
from perdure.tree import Replace
from perdure.types import EVERY_NAMESPACE, VOLUME_SPACE
from perdure.workspace import DirectoryWorkspace


@dataclass(frozen=True, slots=True)
class Volume:
    """A directory under the name of a volume; `mount` is the folder it is among the files."""

    name: str
    path: Path
    mount: str
    writable: bool
    namespaces: tuple[str, ...]

    @property
    def space(self) -> str:
        """What its rows stand under in the place of a namespace."""
        return VOLUME_SPACE + self.name

    @property
    def label(self) -> str:
        return f"the volume {self.name} ({self.mount})"

    def is_for(self, namespace: str) -> bool:
        return EVERY_NAMESPACE in self.namespaces or namespace in self.namespaces

    def holds(self, path: str) -> bool:
        """Say whether a path leads to the volume's folder or beneath it."""
        return path == self.mount or path.startswith(f"{self.mount}/")

    def refuse_write(self, path: str) -> None:
        """Raise Refused where the volume is read-only."""
        if not self.writable:
            raise Refused(
                f"{paths.shown(path)} is in {self.label}, which is read-only: its files can be read, listed and "
                "recalled. Write to another path, like notes/plan.md; the operator can allow writes with "
                f'volumes.{self.name}.mode = "rw".'
            )


class VolumeWorkspace(DirectoryWorkspace):
    """The files of a volume. Paths are those among the files of a namespace: they begin with the mount.

    `root` is where former versions are kept. The directory is opened anew each time: it may come and go, and holding
    it would keep a disk from being unmounted. `knows_files` says whether files of it are known that no one deleted;
    an empty directory is then taken for the place where a disk is not mounted, and never for all files deleted.
    """

    beneath_root = False

    def __init__(self, root: Path, volume: Volume, knows_files: Callable[[], bool]) -> None:
        self._volume = volume
        self._mount = volume.mount.split("/")
        self._knows_files = knows_files
        self.sweeps = volume.writable
        with self._opened_volume() as top:
            mode = os.fstat(top).st_mode  # people share the directory: what is new in it is for those it is for
            self.new_file, self.new_folder = mode & 0o666, mode & 0o777
            super().__init__(root, ignore_case=_ignores_case(top))

    @contextmanager
    def replacing(
        self, path: str, data: bytes, *, mode: int | None = None, keeps: str | None = None
    ) -> Generator[Replace]:
        self._volume.refuse_write(path)
        with super().replacing(path, data, mode=mode, keeps=keeps) as replace:
            yield replace

    @contextmanager
    def removing(self, path: str) -> Generator[Callable[[], None]]:
        self._volume.refuse_write(path)
        with super().removing(path) as remove:
            yield remove

    def _folder(self, parents: list[str], *, create: bool) -> int:
        depth = len(self._mount)
        if parents[:depth] != self._mount:
            raise FileNotFoundError(2, "outside of the volume")
        with self._opened_volume() as top:
            return self._beneath(os.dup(top), parents[depth:], create=create)

    @contextmanager
    def _opened_volume(self) -> Generator[int]:
        try:
            top = os.open(self._volume.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as exc:
            raise self._away(f"its directory cannot be opened: {exc.strerror}") from exc
        try:
            if _is_empty(top) and self._knows_files():
                raise self._away(
                    "its directory is empty, though files of it are known: a disk may not be mounted there. If it is "
                    "meant to be empty, put any file into it"
                )
            yield top
        finally:
            os.close(top)

    def _away(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._volume.label[0].upper()}{self._volume.label[1:]} is away: {why}. Other files go on, and none of "
            "its files is taken for deleted. Try again later, or tell the operator."
        )


class Volumes:
    """The volumes of the settings, each opened when it is first used. Safe to call from many threads."""

    def __init__(self, volumes: Sequence[Volume]) -> None:
        self._volumes = tuple(sorted(volumes, key=lambda each: each.mount))

    def all(self) -> tuple[Volume, ...]:
        return self._volumes

    def of(self, namespace: str) -> tuple[Volume, ...]:
        """Return those that a namespace has, by mount."""
        return tuple(each for each in self._volumes if each.is_for(namespace))

    def of_path(self, namespace: str, path: str) -> Volume | None:
        """Return the volume in which a path of the namespace lies; None for its own workspace."""
        return next((each for each in self.of(namespace) if each.holds(path)), None)

    def cover(self, space: str, path: str) -> bool:
        """Say whether a volume lies where a namespace has a file of its own, which nobody reaches then."""
        return not space.startswith(VOLUME_SPACE) and self.of_path(space, path) is not None

    def by_space(self, space: str) -> Volume | None:
        return next((each for each in self._volumes if each.space == space), None)

    def space_of(self, namespace: str, path: str, *, writes: bool = False) -> str:
        """Return what the rows of a file stand under. Raises Refused for what cannot be the path of a file.

        `writes` asks for a file that is going to be changed.
        """
        for each in self.of(namespace):
            if path == each.mount or each.mount.startswith(f"{path}/"):
                raise Refused(f"{paths.shown(path)} is a folder: {each.label} is there. Name a file in it.")
            if each.holds(path):
                if writes:
                    each.refuse_write(path)
                return each.space
        return namespace

    def spaces(self, namespace: str) -> tuple[str, ...]:
        """Return the namespace and the volumes it has, as rows name them."""
        return (namespace, *(each.space for each in self.of(namespace)))


def read_settings(settings: Settings) -> Volumes:
    """Return the volumes of the settings. Raises InvalidInput for those that cannot be, and says why.

    A directory that is not there is refused as long as nothing of the volume is stored; later it may come and go.
    """
    volumes = [_volume(name, each) for name, each in settings.volumes.items()]
    data_dir = settings.data_dir.resolve()
    for n, each in enumerate(volumes):
        if _overlap(each.path, data_dir):
            raise _wrong(each.name, "path", f"{each.path} and the data directory {data_dir} lie in one another")
        for other in volumes[:n]:
            if _overlap(each.path, other.path):
                raise _wrong(each.name, "path", f"{each.path} and {other.path} of {other.name} lie in one another")
            if _share(each, other) and _overlap(Path(each.mount), Path(other.mount)):
                raise _wrong(each.name, "mount", f"{each.mount} and {other.mount} of {other.name} lie in one another")
        if not (settings.data_dir / "workspace" / each.space).exists():
            _look(each)
    return Volumes(volumes)


def trouble(directory: Path, volume: Volume) -> str | None:
    """Return why the directory of a volume cannot be used now, None if it can. Makes nothing."""
    try:
        _look(volume)
    except PerdureError as exc:
        return str(exc)
    with closing(os.scandir(volume.path)) as entries:
        kept = directory / "workspace" / volume.space / "versions"
        if next(entries, None) is None and kept.is_dir() and any(kept.iterdir()):
            return f"volumes.{volume.name}.path: {volume.path} is empty. A disk may not be mounted there"
    return None


def _volume(name: str, settings: VolumeSettings) -> Volume:
    mount = settings.mount if settings.mount is not None else f"shared/{name}"
    try:
        normal = paths.normalize(mount)
    except PerdureError as exc:
        raise _wrong(name, "mount", str(exc).rstrip(".")) from exc
    if normal != mount:
        raise _wrong(name, "mount", f"write {mount!r} as {normal!r}")
    if note_files.is_notes(f"{mount}/x.md") or note_files.is_notes(mount) or mount == note_files.FOLDER:
        raise _wrong(name, "mount", f"{mount} is where notes of the workspace lie; choose another folder")
    # What leads to the directory may be a link: it is followed once, here, so that nobody can re-point it meanwhile.
    return Volume(name, settings.path.resolve(), mount, settings.mode == "rw", settings.namespaces)


def _look(volume: Volume) -> None:
    """Raise InvalidInput unless the directory can be used as the settings say."""
    path = volume.path
    if not path.exists():
        raise _wrong(volume.name, "path", f"there is no directory {path}. Make it, mount it, or correct the path")
    if not path.is_dir():
        raise _wrong(volume.name, "path", f"{path} is no directory. Give the directory that holds the files")
    needed, what = os.R_OK | os.X_OK, "read"
    if volume.writable:
        needed, what = needed | os.W_OK, 'written, which mode = "rw" needs'
    if not os.access(path, needed):
        raise _wrong(volume.name, "path", f"{path} cannot be {what} by this user (uid {os.getuid()})")


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _share(one: Volume, other: Volume) -> bool:
    """Say whether a namespace may have both."""
    names = {*one.namespaces, *other.namespaces}
    return EVERY_NAMESPACE in names or len(names) < len({*one.namespaces}) + len({*other.namespaces})


def _wrong(name: str, setting: str, why: str) -> InvalidInput:
    return InvalidInput(f"The setting volumes.{name}.{setting}: {why}.")


def _is_empty(folder: int) -> bool:
    with os.scandir(folder) as entries:
        return next(entries, None) is None


def _ignores_case(folder: int) -> bool:
    """Say whether the disk takes two spellings for one name, as far as the names in a folder tell."""
    with os.scandir(folder) as entries:
        names = {entry.name for entry in entries}
    for name in names:
        if (other := name.swapcase()) != name and other not in names:
            try:
                os.stat(other, dir_fd=folder, follow_symlinks=False)
            except OSError:
                return False
            return True
    return False
