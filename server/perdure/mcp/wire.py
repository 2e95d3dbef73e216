"""JSON-RPC lines, judged before anything else sees them: each request with a readable id gets exactly one reply.

Standard library only, and little of it (no dataclasses, no pathlib: they cost more than all of this): the stdio front
answers from this while the SDK is still being imported.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple, cast

MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

MODERN = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"

Message = dict[str, Any]  # Any: JSON, not yet checked against the protocol
Id = int | str | float | None
Kind = Literal["request", "notification", "response", "nothing"]

_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*'
TOO_DEEP = "nested too deeply"
KEPT_FOR_ID = 4096  # of the end, where an id may stand
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb"[,}]")
_ID_LAST = re.compile(rb",\s*" + _ID + rb"\}\s*$")


class NotJson(ValueError):
    """A number that JSON does not have: NaN, an infinity, or a float too large for one."""


class Verdict(NamedTuple):
    """What a line is. `reply` is the answer it gets at once; otherwise `message` goes on to be served."""

    message: Message | None = None
    kind: Kind = "nothing"
    reply: Message | None = None


def judge(line: bytes) -> Verdict:
    """Return what to do with one line. A line of spaces is nothing; a notification is never answered."""
    line = line.removeprefix(_BOM)
    if not line.strip():
        return Verdict()
    parsed, flaw = _parse(line)
    if not isinstance(parsed, dict):
        if flaw and not isinstance(parsed, list):
            # What is nested too deeply to be read is JSON all the same, and whoever sent it waits for its id.
            id = _id_at_ends(line, line) if flaw == TOO_DEEP else None
            return Verdict(reply=error(id, PARSE_ERROR, f"Parse error: the message is not JSON ({flaw})."))
        return Verdict(reply=error(None, INVALID_REQUEST, "Invalid request: send one JSON-RPC object a message."))
    message = cast("Message", parsed)
    kind = _kind(message)
    if kind == "nothing":
        return Verdict(reply=error(_echo(message), INVALID_REQUEST, f"Invalid request: {_wrong(message)}"))
    flaw = flaw or _deep_flaw(message, line)
    if kind != "request":
        return Verdict() if flaw else Verdict(message, kind)
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        return Verdict(reply=error(message["id"], INVALID_PARAMS, "Invalid params: send an object."))
    if flaw:
        return Verdict(
            reply=refusal(message, f"The message holds {flaw}. Nothing was done; correct it and call again.")
        )
    return Verdict(message, kind)


def judge_long(head: bytes, tail: bytes, size: int) -> Verdict:
    """Return the reply to a line over the limit, of which only both ends were kept. Its id stands at one of them."""
    text = (
        f"Invalid request: the message is {size} bytes; the limit is {MAX_LINE_BYTES}. Send less in one call; "
        "write_file with mode append takes a long text in parts."
    )
    return Verdict(reply=error(_id_at_ends(head, tail), INVALID_REQUEST, text))


def _id_at_ends(head: bytes, tail: bytes) -> Id:
    """Return the id of a message that is not parsed, if it stands first or last in it."""
    found = _ID_FIRST.match(head.removeprefix(_BOM)) or _ID_LAST.search(tail[-KEPT_FOR_ID:])
    return json.loads(found[1]) if found else None


def error(id: Id, code: int, text: str, data: Any = None) -> Message:
    found: Message = {"code": code, "message": text}
    if data is not None:
        found["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": found}


def refusal(request: Message, text: str, *, code: int = INVALID_PARAMS) -> Message:
    """Return the reply that says why a request was not served: to a tool call as a result, so that a model reads it."""
    params = request.get("params")
    if request["method"] != "tools/call" or not isinstance(params, dict):
        return error(request["id"], code, text)
    result: Message = {"content": [{"type": "text", "text": text}], "isError": True}
    if is_modern(request):
        result["resultType"] = "complete"
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def is_modern(request: Message) -> bool:
    """Say whether a request carries the envelope that exists from 2026-07-28 on."""
    params = request.get("params")
    meta = cast("Message", params).get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION_KEY in cast("Message", meta) and request["method"] != "initialize"


def encode(message: Message) -> bytes:
    """Return one line. ASCII, so that even an id with half a character in it can be echoed."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def _parse(line: bytes) -> tuple[Any, str]:
    """Return the JSON value, and what is wrong with it or "". A flawed line is still read for its id."""
    try:
        text, flaw = line.decode("utf-8"), ""
    except UnicodeDecodeError:
        text, flaw = line.decode("utf-8", "replace"), "bytes that are not UTF-8"
    try:
        return _STRICT.decode(text.strip()), flaw
    except NotJson as exc:
        flaw = str(exc)
    except RecursionError:
        return None, TOO_DEEP
    except ValueError as exc:
        return None, flaw or str(exc)[:120]
    try:
        return json.loads(text), flaw
    except (ValueError, RecursionError):
        return None, flaw


def _refuse_constant(name: str) -> Any:
    raise NotJson(f"the number {name}")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise NotJson(f"the number {text[:40]}, which is too large")
    return value


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _kind(message: Message) -> Kind:
    """Return what the message is by its members, "nothing" when it is not JSON-RPC."""
    if message.get("jsonrpc") != "2.0":
        return "nothing"
    if "method" not in message:
        return "response" if "id" in message and ("result" in message or "error" in message) else "nothing"
    if not isinstance(message["method"], str):
        return "nothing"
    if "id" not in message:
        return "notification"
    id = message["id"]
    return "request" if isinstance(id, (int, str)) and not isinstance(id, bool) else "nothing"


def _wrong(message: Message) -> str:
    """Return what a message lacks that _kind calls nothing."""
    if message.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0".'
    if not isinstance(message.get("method"), str):
        return "method must be a string."
    return "id must be a string or a whole number."


def _echo(message: Message) -> Id:
    """Return the id to answer with when the message is no request: its own if a client could match it, else null."""
    id = message.get("id")
    if isinstance(id, bool) or not isinstance(id, (int, str, float)):
        return None
    return None if isinstance(id, float) and id - id != 0 else id  # NaN and infinities cannot be written


def _deep_flaw(message: Message, line: bytes) -> str:
    """Return what JSON allows and we do not, or "". Cheap for the usual line: both looks are at the bytes first."""
    if line.count(b"{") + line.count(b"[") > MAX_DEPTH and _depth_over(message, MAX_DEPTH):
        return f"values nested deeper than {MAX_DEPTH} levels"
    if _SURROGATE.search(line):
        try:
            json.dumps(message, ensure_ascii=False).encode()
        except UnicodeEncodeError as exc:
            code = ord(exc.object[exc.start])
            return f"U+{code:04X} (\\u{code:04x}), one half of a character without the other"
    return ""


def _depth_over(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit + 1):
        deeper: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                deeper += cast("dict[str, Any]", each).values()
            elif isinstance(each, list):
                deeper += cast("list[Any]", each)
        level = [each for each in deeper if isinstance(each, (dict, list))]
        if not level:
            return False
    return True
