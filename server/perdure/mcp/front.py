"""The stdio front: owner of the wire from the first microsecond, and quick enough for clients that wait for nothing.

Importing the SDK alone takes most of a second, and some clients drop a server that lists its tools later than that.
So this module, standard library only, reads and writes all lines itself, answers the opening questions from
handshake.json, and hands everything to the SDK once that is loaded behind it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple, Protocol, cast

from perdure.mcp import wire
from perdure.mcp.handshake import Handshake, quick_tool_settings
from perdure.mcp.wire import Message

READ_BYTES = 1 << 16
LOAD_AFTER_S = 0.1  # a client that says nothing gets the engine loaded anyway
ANSWER_S = 5.0  # how long unanswered requests are waited for once the client is gone
CLOSE_S = 0.8  # how long an idle engine may take to close: clients kill what outlives stdin by a second
KEPT_ENDS = 4096  # of a line over the limit, what is kept of either end to find its id


class Options(NamedTuple):
    """What the command line said; None leaves it to the environment and the settings file."""

    namespace: str | None = None
    agent: str | None = None
    data_dir: str | None = None
    config: str | None = None


class Engine(Protocol):
    """What serves messages once it is loaded."""

    def feed(self, message: Message) -> None: ...
    def close(self) -> None: ...


def serve_stdio(options: Options) -> None:
    """Speak MCP over stdin and stdout until the client is gone or a signal comes, then end the process with code 0."""
    reads, writes = _claim_wire()
    code = 0
    try:
        Front(writes, options).run(reads)
    except BaseException as exc:  # noqa: BLE001 the process's edge: _exit below would hide it
        import traceback

        traceback.print_exception(exc)
        code = 1
    sys.stderr.flush()
    # Not a return: an import may still run in the loader thread, and finalizing Python under it can crash.
    os._exit(code)


def _claim_wire() -> tuple[int, int]:
    """Return private descriptors of the wire. What else reads stdin gets nothing; what prints goes to stderr."""
    import fcntl

    reads = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    writes = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    if nothing > 2:
        os.close(nothing)
    return reads, writes


class Front:
    """One connection: what is unanswered, what waits for the engine, and who answers next."""

    def __init__(self, writes: int, options: Options) -> None:
        self._writes = writes
        self._options = options
        self._lock = threading.Lock()  # of the wire: a line is written whole
        self._state = threading.Condition()  # of everything below
        self._unanswered: Counter[tuple[str, object]] = Counter()
        self._held = set[tuple[str, object]]()  # of the unanswered, those that are answered when the client goes
        self._answered_early: Counter[tuple[str, object]] = Counter()
        self._waiting: deque[Message] = deque()
        self._opening: list[Message] = []  # how the connection began, for an engine that comes after a failed one
        self._engine: Engine | None = None
        self._failure = ""  # of the last start
        self._loader: threading.Thread | None = None
        self._started = False
        self._stopping = False
        quick = quick_tool_settings(options.config)
        self._handshake = Handshake(*quick) if quick else None

    def run(self, reads: int) -> None:
        """Serve until the end of input or a signal, then finish what is unanswered and close the engine."""
        wake, alarm = os.pipe()
        os.set_blocking(alarm, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _wake)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        lines = Lines(self.take)
        deadline = time.monotonic() + LOAD_AFTER_S
        while True:
            wait = None if self._started else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([reads, wake], [], [], wait)
            if not ready:
                self._load()
            if wake in ready:
                break
            if reads in ready:
                data = _read(reads)
                lines.add(data)
                if not data:
                    break
        self._finish()

    def take(self, verdict: wire.Verdict) -> None:
        """Answer one judged line, or hand it to the engine, or keep it for the engine."""
        if verdict.reply:
            self._write(wire.encode(verdict.reply))
        message = verdict.message
        if message is None:
            return
        engine, early = self._place(message, verdict.kind == "request")
        if engine:
            engine.feed(message)
        elif early:
            self._write(wire.encode(early))
        if message.get("method") not in OPENING:
            self._load()

    def _place(self, message: Message, is_request: bool) -> tuple[Engine | None, Message | None]:
        """Return the engine that takes the message, or the reply it gets without one. At most one is not None."""
        with self._state:
            if is_request:
                self._unanswered[_key(message["id"])] += 1
                if message["method"] == "subscriptions/listen":
                    self._held.add(_key(message["id"]))
            elif message.get("method") == "notifications/cancelled":
                self._forget_cancelled(message)
            early = self._handshake.answer(message) if is_request and self._handshake and not self._engine else None
            if self._engine or early or not is_request:
                self._note_opening(message)
            if self._engine:
                return self._engine, None
            if early and self._failure and self._loader is None:  # nobody may ever come who takes it
                self._settle(_key(message["id"]))
                return None, early
            self._waiting.append(message)  # answered or not: the SDK has to see how the connection began
            if early:
                self._settle(_key(message["id"]))
                self._answered_early[_key(message["id"])] += 1
            return None, early

    def reply(self, line: bytes, id: object) -> None:
        """Write a reply of the engine, unless that request was answered early."""
        key = _key(id)
        with self._state:
            if self._answered_early[key] > 0:
                self._answered_early[key] -= 1
                return
            self._settle(key)
        self._write(line)

    def notify(self, line: bytes) -> None:
        self._write(line)

    def attach(self, engine: Engine) -> None:
        """Hand everything that came so far to the engine, in order, and all that follows directly."""
        with self._state:
            while self._waiting:
                self._note_opening(self._waiting[0])
                engine.feed(self._waiting.popleft())
            self._engine, self._failure = engine, ""
            self._state.notify_all()

    def fail(self, text: str) -> None:
        """Answer every waiting request with the reason why there is no engine; the next one has it tried again."""
        with self._state:
            self._failure, self._engine, self._loader = text, None, None
            waiting = {_key(each["id"]): each for each in self._waiting if "id" in each and "method" in each}
            self._waiting.clear()
            self._waiting.extend(self._opening)
            self._answered_early.clear()
            self._answered_early.update(_key(each["id"]) for each in self._opening if "id" in each)
            unanswered = list(self._unanswered.elements())
            self._unanswered.clear()
            self._held.clear()
            self._state.notify_all()
        for key in unanswered:
            request = waiting.get(key) or {"id": key[1], "method": ""}
            self._write(wire.encode(wire.refusal(request, text, code=wire.INTERNAL_ERROR)))

    def _note_opening(self, message: Message) -> None:
        if message.get("method") == "initialize":
            self._opening = [message]
        elif message.get("method") == "notifications/initialized":
            self._opening[1:] = [message]

    def _settle(self, key: tuple[str, object]) -> None:
        self._unanswered[key] -= 1
        if self._unanswered[key] <= 0:
            del self._unanswered[key]
            self._held.discard(key)
        self._state.notify_all()

    def _forget_cancelled(self, message: Message) -> None:
        """A cancelled request is never answered, so nobody may wait for its answer."""
        params = message.get("params")
        id = cast("Message", params).get("requestId") if isinstance(params, dict) else None
        if isinstance(id, str | int):  # others are no ids, and may not even be looked up
            key = _key(id)
            self._unanswered.pop(key, None)
            self._held.discard(key)
            self._state.notify_all()

    def _write(self, line: bytes) -> None:
        try:
            with self._lock:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._writes, view) :]
        except OSError:
            # The client closed its end. The end of stdin follows and stops us; until then work goes on unseen.
            return

    def _load(self) -> None:
        if self._loader is None:
            self._started = True
            self._loader = threading.Thread(target=self._run_engine, name="perdure-engine", daemon=True)
            self._loader.start()

    def _run_engine(self) -> None:
        try:
            from perdure.mcp.engine import run_engine

            run_engine(self, self._options)
            if not self._stopping:
                self.fail("Perdure's engine has stopped. Restart the server.")
        except BaseException as exc:  # noqa: BLE001 the thread's edge: the client must hear of any failure
            self._report(exc)

    def _report(self, exc: BaseException) -> None:
        from perdure.errors import PerdureError

        if isinstance(exc, PerdureError):
            text = f"Perdure cannot start: {exc}"
            if text != self._failure:  # each call tries again, and once is enough to say so
                print(f"perdure: {exc}", file=sys.stderr, flush=True)  # noqa: T201 stdout is not the wire any more
            self.fail(text)
            return
        import traceback

        traceback.print_exception(exc)
        self.fail(f"Perdure cannot start: {type(exc).__name__}. The server's log says where.")

    def _finish(self) -> None:
        """Let the engine answer what is unanswered, then close it, each within its time."""
        limit = time.monotonic() + ANSWER_S
        with self._state:
            while self._unanswered.keys() - self._held and (left := limit - time.monotonic()) > 0:
                if self._engine is None:
                    self._load()
                self._state.wait(left)
            engine, self._stopping = self._engine, True
        if engine and self._loader:
            engine.close()
            self._loader.join(CLOSE_S)


class Lines:
    """Cuts bytes into lines, judges each, and passes over what is longer than the limit without keeping it."""

    def __init__(self, take: Callable[[wire.Verdict], None]) -> None:
        self._take = take
        self._kept = bytearray()
        self._head = b""
        self._tail = b""
        self._size = 0  # of a line over the limit, so far; 0 while the line is kept whole

    def add(self, data: bytes) -> None:
        """Take the next bytes; none is the end of input, which ends the last line too."""
        if not data:
            self._end_line()
            return
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._extend(part)
            self._end_line()
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        if self._size:
            self._size += len(part)
            self._tail = (self._tail + part)[-KEPT_ENDS:]
            return
        self._kept += part
        if len(self._kept) > wire.MAX_LINE_BYTES:
            self._size = len(self._kept)
            self._head, self._tail = bytes(self._kept[:KEPT_ENDS]), bytes(self._kept[-KEPT_ENDS:])
            self._kept = bytearray()

    def _end_line(self) -> None:
        if self._size:
            verdict = wire.judge_long(self._head, self._tail, self._size)
            self._head, self._tail, self._size = b"", b"", 0
        else:
            verdict = wire.judge(bytes(self._kept))
            self._kept = bytearray()
        self._take(verdict)


# What comes before or with tools/list: starting to load on these would delay its answer.
OPENING = frozenset(
    {
        *("initialize", "notifications/initialized", "server/discover", "ping"),
        *("prompts/list", "resources/list", "resources/templates/list"),
    }
)


def _wake(number: int, frame: FrameType | None) -> None:
    """Nothing: the signal's byte in the wakeup pipe ends the loop, between two messages."""


def _key(id: object) -> tuple[str, object]:
    """Return an id as a key that keeps 1 and "1" apart."""
    return type(id).__name__, id


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, READ_BYTES)
    except OSError:  # the terminal or socket behind it is gone
        return b""
