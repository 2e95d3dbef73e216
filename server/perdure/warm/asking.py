"""The quick way of `perdure context`: ask the process that stayed behind. Standard library only, and little of it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple, cast

from perdure import __version__, quick
from perdure.errors import InvalidInput, Unavailable
from perdure.worker import wire

ANSWER_S = 6.0  # for a process that is just opening the service; asking on in this one would take about as long
NAME = "context-"  # of the folder, with a part of the digest of the settings after it
MAX_HOOK_BYTES = 8 * 1024 * 1024
EVENTS = ("UserPromptSubmit", "SessionStart")  # of the hooks that take additionalContext
MAX_CHARS = 6_000

# What else than our own variables decides where things are, and how an endpoint is reached.
PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "TMPDIR", "LOCALAPPDATA")
NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


class Asked(NamedTuple):
    """What the command line asks for. `event` names the hook whose answer is JSON, "" for plain text."""

    query: str | None = None
    thread: str | None = None
    max_chars: int = MAX_CHARS
    event: str = ""


class Settings(NamedTuple):
    """Which settings hold, without reading them: all that decides them is in `digest`. Paths are absolute."""

    digest: str
    data_dir: str
    config: str | None
    namespace: str | None
    agent: str | None

    @property
    def folder(self) -> str:
        return f"{self.data_dir}/workers/{NAME}{self.digest[:16]}"


def settings_of(options: Mapping[str, str]) -> Settings | None:
    """Return the settings that options and environment lead to; None when only the real reader can tell."""
    path, said = quick.config_file(options.get("config"))
    path = os.path.join(os.getcwd(), path)  # noqa: PTH109 PTH118 pathlib costs 5 ms here
    toml = quick.read_toml(path, must_exist=said)
    data_dir = quick.data_dir(options.get("data_dir"), toml) if toml is not None else None
    if data_dir is None:
        return None
    names = {*PLACES, *NETWORK, *(name.lower() for name in NETWORK)}
    environment = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name in names or name.upper().startswith(("PERDURE_", "OPENAI_"))
    )
    known = [__version__, data_dir, path, said, toml, environment, options.get("namespace"), options.get("agent")]
    digest = hashlib.sha256(json.dumps(known, default=str).encode("utf-8", "surrogateescape")).hexdigest()
    return Settings(digest, data_dir, path if said else None, options.get("namespace"), options.get("agent"))


def parse(words: list[str]) -> tuple[Asked, bool] | None:
    """Return what the words after `context` ask for, and whether a hook asks; None for the full parser to judge."""
    given: dict[str, str] = {}
    hook, rest = False, list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if word == "--hook":
            hook = True
        elif flag in ("--thread", "--max-chars"):
            if not equals and not rest:
                return None
            given[flag] = value if equals else rest.pop(0)
        elif word.startswith("-") or "query" in given:
            return None
        else:
            given["query"] = word
    size = given.get("--max-chars", str(MAX_CHARS))
    if not size.isascii() or not size.isdecimal():
        return None
    try:
        query, thread = (_utf8(given.get(name)) for name in ("query", "--thread"))
    except UnicodeError:
        return None
    return Asked(query, thread, int(size)), hook


def hooked(asked: Asked, raw: bytes) -> Asked:
    """Return what a client's hook asks for: its prompt, and the session as the thread. Raises InvalidInput."""
    try:
        told: object = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("--hook reads the JSON of a hook from stdin, and this is none.") from exc
    event, prompt, session = (
        cast("dict[str, object]", told).get(name) if isinstance(told, dict) else None
        for name in ("hook_event_name", "prompt", "session_id")
    )
    if not isinstance(event, str) or event not in EVENTS:
        raise InvalidInput(f"A hook of {', '.join(EVENTS)} can take context, and this is {str(event)[:40]!r}.")
    query = asked.query or (_storable(prompt) if isinstance(prompt, str) else None)
    thread = asked.thread or (_storable(session) if isinstance(session, str) else None)
    return asked._replace(query=query or None, thread=thread or None, event=event)


def ask(settings: Settings, asked: Asked) -> tuple[str, int] | None:
    """Return the text and how many lines memory holds for it, or None if no process is there that can tell.

    Raises InvalidInput for what it refuses.
    """
    until = time.monotonic() + ANSWER_S
    header = {"op": "context", "digest": settings.digest, "wait_s": ANSWER_S - 1, "protocol": wire.PROTOCOL}
    try:
        with wire.connect(settings.folder, 1.0) as sock:
            told = {"query": asked.query, "thread": asked.thread, "max_chars": asked.max_chars}
            wire.send(sock, header | told, until=until)
            reply, _ = wire.receive(sock, until=until)
    except (OSError, EOFError, Unavailable):
        return None
    if reply.get("kind") == "invalid":
        raise InvalidInput(str(reply["error"]))
    return (str(reply["text"]), int(reply["items"])) if "text" in reply else None


def show(asked: Asked, text: str, items: int) -> None:
    """Print the answer in UTF-8, whatever the locale. A hook is told nothing where nothing is stored."""
    if asked.event:
        if not items:
            return
        output = {"hookEventName": asked.event, "additionalContext": text}
        text = json.dumps({"hookSpecificOutput": output}, ensure_ascii=False)
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()


def complain(text: str) -> None:
    sys.stderr.write(f"perdure: {text}\n")


def answer(options: Mapping[str, str], asked: Asked, hook: bool) -> Asked | None:
    """Print the answer of the process that stayed behind; return what is left for this one to answer.

    For a hook nothing is a failure: a prompt must not be refused over its context.
    """
    try:
        asked = hooked(asked, sys.stdin.buffer.read(MAX_HOOK_BYTES)) if hook else asked
        settings = settings_of(options)
        found = ask(settings, asked) if settings else None
    except InvalidInput as exc:
        complain(str(exc))
        if hook:
            return None
        raise SystemExit(2) from exc
    if found is None:
        return asked
    show(asked, *found)
    return None


def _utf8(word: str | None) -> str | None:
    """Return an argument as the UTF-8 that it is, whatever the locale made of it. Raises UnicodeError."""
    return os.fsencode(word).decode() if word is not None else None


def _storable(text: str) -> str:
    """Return a text from JSON without what no store can hold: it came with a prompt, which is not to be refused."""
    return text.encode("utf-8", "replace").decode().replace("\0", "").strip()
