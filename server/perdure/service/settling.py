"""What is left to do for a file once its write was acknowledged: its name on disk for good, its text cut for recall."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from perdure import documents
from perdure.errors import PerdureError
from perdure.service import cutting, file_passages
from perdure.service.file_passages import Contents
from perdure.service.foreground import Foreground
from perdure.store import Database, Reader, files
from perdure.store.files import Waiting
from perdure.tree import Workspace
from perdure.types import MAX_INDEXED_FILE_BYTES
from perdure.volumes import Volumes

log = logging.getLogger(__name__)

QUIET_S, AT_MOST_S = 0.1, 1.0  # without a write until what was written is cut, and while writes go on
# The same until it is noted where it is, which the next write would wait for. Until then another process takes what a
# person removes at once, or puts back, for what a crash left.
NOTED_S, NOTED_AT_MOST_S = 0.02, 0.2
CALLER_S = 0.02  # that it is waited for who settles files for an answer, before it is looked again
AHEAD_S = 0.5  # that a long text waits at each of its steps for who settles short ones
A_LOOK = 16  # files settled before it is looked again which wait
CALM_S = 0.1  # without a call, after which nobody is taken to be in the middle of something
PATIENCE_S, PATIENCE_TIMES, GIVES_WAY_S = 0.05, 20, 1.0  # each step waits for that, at most 20 times what one takes


@dataclass(frozen=True, slots=True)
class _Put:
    """A version whose bytes were put in their place, with the time the disk gave them."""

    version: int
    changed_us: int


class Settling:
    """Settles what was written, soon after it. Safe to call from many threads.

    What waits for recall is marked in the transaction of the write, so that a crash loses nothing of it: whoever asks
    next settles it first, or the look at the files does (service/noticing.py).
    """

    LAST_S = 3.0  # that the end of a process goes on settling what it wrote

    def __init__(
        self,
        database: Database,
        workspace_of: Callable[[str], Workspace],
        passes_over: Callable[[str], bool],
        volumes: Volumes,
        wake: Callable[[], None],
        foreground: Foreground,
    ) -> None:
        """`wake` is called when there is something new to embed; `foreground` are the calls to give way to."""
        self._database, self._workspace_of, self._volumes = database, workspace_of, volumes
        self._passes_over = passes_over
        self._wake, self._foreground = wake, foreground
        self._guard = threading.Lock()
        self._put: dict[tuple[str, str], _Put] = {}  # what is not noted yet, by whose files and path
        self._uncut: set[str] = set()  # in whose files something waits that this process wrote
        self._first = self._first_put = self._last = 0.0  # when the first of either was written, and the last
        self._more = threading.Event()
        self._thread: threading.Thread | None = None
        self._ends = float("inf")  # when nothing more is begun
        self._turn = threading.Lock()  # two threads would cut the same texts
        self._callers = 0  # who wait for the turn, or have it, and for an answer
        self._unreadable: set[tuple[str, str, int]] = set()  # left to the look, which reads what is on disk

    def add(self, space: str, path: str, version: int, changed_us: int | None) -> None:
        """Have the version settled soon, whose bytes were put in their place just now; None: its row says so."""
        with self._guard:
            self._last = time.monotonic()
            if not self._uncut:
                self._first = self._last
            if changed_us is not None:
                if not self._put:
                    self._first_put = self._last
                self._put[space, path] = _Put(version, changed_us)
            self._uncut.add(space)
            self._more.set()
            if self._thread is None and self._ends > self._last:
                self._thread = threading.Thread(target=self._run, daemon=True, name="settling")
                self._thread.start()

    def put(self, space: str, path: str) -> tuple[int, int] | None:
        """Return (version, time) of what this process put there and did not note yet."""
        with self._guard:
            put = self._put.get((space, path))
        return (put.version, put.changed_us) if put is not None else None

    def cannot(self, space: str, path: str, version: int) -> bool:
        """Return whether the kept bytes of a version cannot be read, so that it is left to the look at the files."""
        return (space, path, version) in self._unreadable

    def settle(self, spaces: Sequence[str], *, within_s: float, max_bytes: int) -> int:
        """Cut what waits in these namespaces and volumes, those that are short first; return how many still wait.

        One that was begun is finished, and none is begun that has more than `max_bytes`. Raises Unavailable.
        """
        until = time.monotonic() + within_s
        left = 0
        with self._guard:
            self._callers += 1
        try:
            for space in spaces:
                if (waits := self._waiting(space)) and self._turn.acquire(timeout=max(0.0, until - time.monotonic())):
                    try:
                        waits = self._settled(space, until, max_bytes, _at_once)
                    finally:
                        self._turn.release()
                left += len(waits)
        finally:
            with self._guard:
                self._callers -= 1
        return left

    def count(self, reader: Reader, space: str) -> int:
        """Return how many files of a namespace or a volume wait."""
        return len(self._of(reader, space))

    def close(self) -> None:
        """Settle what this process wrote, for some seconds; what is left then waits for another process."""
        with self._guard:
            self._ends = time.monotonic() + self.LAST_S
            self._more.set()
            thread = self._thread
        if thread is not None:
            thread.join(self.LAST_S)

    def _run(self) -> None:
        while True:
            with self._guard:
                self._more.clear()
                if not self._put and not self._uncut:
                    self._thread = None
                    return
            self._more.wait(self._noted_in())
            if not self._noted_in():
                self._note_all()
            self._more.wait(0 if self._put else max(self._due_in(), CALLER_S if self._callers else 0.0))
            if (not self._due_in() and not self._callers) or self._ends < float("inf"):
                self._note_all()
                self._cut()

    def _noted_in(self) -> float:
        """Return how long to wait for more until it is noted what stands where."""
        with self._guard:
            if not self._put:
                return 0.0
            return max(0.0, min(self._last + NOTED_S, self._first_put + NOTED_AT_MOST_S) - time.monotonic())

    def _due_in(self) -> float:
        """Return how long to wait for more until what was written is cut."""
        with self._guard:
            return max(0.0, min(self._last + QUIET_S, self._first + AT_MOST_S) - time.monotonic())

    def _note_all(self) -> None:
        with self._guard:
            put = dict(self._put)
        for space in {space for space, _ in put}:
            self._note_put(space, {path: each for (owner, path), each in put.items() if owner == space})

    def _cut(self) -> None:
        with self._guard:
            spaces, self._uncut = self._uncut, set()
        try:
            for space in sorted(spaces):
                pause = self._pauses(notes=True)
                pause()
                with self._turn:
                    between = partial(self._let_ahead, pause)
                    left = self._settled(space, float("inf"), MAX_INDEXED_FILE_BYTES, between, gives_way=True)
                if self._ends < float("inf"):
                    continue  # what is left is for another process
                if left:  # somebody asked, and went first
                    with self._guard:
                        self._uncut.add(space)
                else:
                    cutting.remove_left(self._database, space, pause)
        except PerdureError as exc:
            log.warning("files that were written are taken into recall later: %s", exc)
        except Exception:  # nobody waits for this, who would see it
            log.exception("files that were written are not taken into recall")

    def _note_put(self, space: str, put: Mapping[str, _Put]) -> None:
        """Note what stands in its place, once a power failure cannot undo that. What cannot be noted is seen later."""
        try:
            workspace = self._workspace_of(space)
            for path in {path.rpartition("/")[0]: path for path in put}.values():
                workspace.sync_name(path)
            with self._database.write_derived(space) as tx:
                for path, each in put.items():
                    files.note_put(tx, space, path, each.version, each.changed_us)
        except PerdureError as exc:
            log.warning("files are stored, and noted as in their place later: %s", exc)
        except Exception:  # as above
            log.exception("files are stored, and not noted as in their place")
        with self._guard:
            for path, each in put.items():
                if self._put.get((space, path)) is each:
                    del self._put[space, path]

    def tidy(self, space: str) -> None:
        """Remove what a kill in the middle of a long text left, which recall does not see. Raises Unavailable."""
        cutting.remove_left(self._database, space, self._pauses())

    def _pauses(self, *, notes: bool = False) -> Callable[[], None]:
        """Return what waits, at each step, until no call is under way, or long enough.

        It does not while somebody waits for the step itself, and `notes` meanwhile what is due to be noted.
        """
        before = float("inf")

        def give_way() -> None:
            nonlocal before
            took = max(0.0, time.monotonic() - before)
            until = time.monotonic() + min(GIVES_WAY_S, max(PATIENCE_S, PATIENCE_TIMES * took))
            while (left := until - time.monotonic()) > 0 and self._ends == float("inf") and not self._callers:
                if self._foreground.give_way(min(left, PATIENCE_S), calm_s=CALM_S):
                    break
                if notes and not self._noted_in():
                    self._note_all()
            before = time.monotonic()

        return give_way

    def _let_ahead(self, pause: Callable[[], None]) -> None:
        """Pause, and in the middle of a long text leave the turn to who waits for a short one."""
        pause()
        if self._callers:
            with self._aside():
                until = time.monotonic() + AHEAD_S
                while self._callers and time.monotonic() < until:
                    time.sleep(CALLER_S)

    @contextmanager
    def _aside(self) -> Generator[None]:
        """Leave the turn to others meanwhile. What they settle is seen to wait no more before anything is stored."""
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()

    def _settled(
        self, space: str, until: float, max_bytes: int, between: Callable[[], None], *, gives_way: bool = False
    ) -> list[Waiting]:
        """Settle what waits, until then, or until somebody asks if it `gives_way`; return what still does."""

        def is_over() -> bool:
            return time.monotonic() >= min(until, self._ends) or (gives_way and self._callers > 0)

        while True:
            waits = sorted(self._waiting(space), key=lambda each: each.bytes)
            chosen = [each for each in waits[:A_LOOK] if each.bytes <= max_bytes]
            if not chosen or is_over():
                return waits
            self._take_in(space, chosen, between, is_over, self._aside if gives_way else nullcontext)

    def _take_in(
        self,
        space: str,
        chosen: Sequence[Waiting],
        between: Callable[[], None],
        is_over: Callable[[], bool],
        aside: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Cut texts, those that are short together, until it `is_over`; read and divided they are `aside`."""
        short: list[tuple[Waiting, Contents]] = []
        room = file_passages.AT_ONCE
        for each in chosen:
            if is_over():
                break
            between()
            with aside():
                found = self._read(space, each)
            if found is None:
                continue
            size = cutting.sections_of(self._database, space, each, found)
            if short and size > room:
                cutting.store_short(self._database, space, short, between)
                short, room = [], file_passages.AT_ONCE
            if size > file_passages.AT_ONCE:
                cutting.store_long(self._database, space, each, found, between)
            else:
                short.append((each, found))
                room -= size
        if short:
            cutting.store_short(self._database, space, short, between)
        self._wake()

    def _read(self, space: str, each: Waiting) -> Contents | None:
        try:
            data = self._workspace_of(space).read_version(each.path, each.version, each.sha256)
        except PerdureError as exc:
            log.warning("a version of a file cannot be read: %s", exc)
            self._unreadable.add((space, each.path, each.version))
            return None
        return file_passages.contents(each.path, data)

    def _waiting(self, space: str) -> list[Waiting]:
        with self._database.read(space) as tx:
            return self._of(tx, space)

    def _of(self, reader: Reader, space: str) -> list[Waiting]:
        """Return what waits here: no documents, which are read in a process of their own, and nothing passed over."""
        return [
            each
            for each in files.waiting(reader, space)
            if documents.kind_of(each.path) is None
            and not self._passes_over(each.path)
            and not self._volumes.cover(space, each.path)
            and (space, each.path, each.version) not in self._unreadable
        ]


def _at_once() -> None:
    """Give way to nobody: somebody waits."""
