"""Seeded malformed messages: mutations of valid calls, and lines that never were JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ODD_VALUES: list[Any] = [True, 5.7, -1, 2**70, "", [], {}, [[]], {"a": 1}, ["a", 1], "x" * 70_000, "a\0b", "a\ud83d"]
ARGUMENTS: dict[str, list[str]] = {
    "remember": ["content", "key", "kind", "tags", "source", "at", "metadata"],
    "recall": ["query", "limit", "include", "since", "min_score", "cursor"],
    "append_history": ["thread", "turns"],
    "list_history": ["order", "limit", "cursor", "kinds"],
    "read_file": ["path", "offset", "version"],
    "write_file": ["path", "mode", "expected_version"],
}


@dataclass(frozen=True, slots=True)
class Malformed:
    """One line. `answered` says whether it must get a reply, and `id` under which id."""

    name: str
    line: bytes
    id: Any = None  # Any: ids of every JSON type are the point
    answered: bool = True


def malformed_messages(count: int, seed: int | None = None) -> Iterator[Malformed]:
    """Yield `count` messages that nobody may serve. Prints its seed, to run a failure again."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print(f"malformed_messages seed {seed}")  # noqa: T201 pytest shows it when a test fails
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random, int], Malformed]] = [
        _random_bytes,
        _truncated,
        _bad_utf8,
        _surrogate,
        _not_json_number,
        _odd_id,
        _big_id,
        _odd_envelope,
        _odd_params,
        _unknown_method,
        _odd_argument,
        _unknown_argument,
        _deep,
        _batch,
        _odd_notification,
    ]
    for n in range(count):
        yield rng.choice(kinds)(rng, n)


def _call(id: Any, tool: str, arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def _line(message: Any) -> bytes:
    return json.dumps(message).encode()


def _random_bytes(rng: random.Random, n: int) -> Malformed:
    body = bytes(byte for byte in rng.randbytes(rng.randrange(1, 200)) if byte != 10)
    return Malformed("random bytes", b"~" + body)


def _truncated(rng: random.Random, n: int) -> Malformed:
    whole = _line(_call(f"m{n}", "remember", {"content": "half a message"}))
    return Malformed("truncated", whole[: rng.randrange(1, len(whole))])


def _bad_utf8(rng: random.Random, n: int) -> Malformed:
    bad = rng.choice([b"\xe9", b"\xff", b"\xc0\xaf", b"\xed\xa0\xbd", b"\xf8\x88\x80\x80\x80"])
    whole = _line(_call(f"m{n}", "remember", {"content": "caf@"})).replace(b"@", bad)
    return Malformed("bad UTF-8", whole, f"m{n}")


def _surrogate(rng: random.Random, n: int) -> Malformed:
    half = rng.choice(["\ud83d", "\udcaf", "a\udfff\ud800"])
    where = rng.choice(["content", "key", "tags", "thread"])
    arguments: dict[str, Any] = {"content": "x", where: [half] if where == "tags" else half}
    return Malformed("surrogate", _line(_call(f"m{n}", "remember", arguments)), f"m{n}")


def _not_json_number(rng: random.Random, n: int) -> Malformed:
    number = rng.choice([b"NaN", b"Infinity", b"-Infinity", b"1e400"])
    whole = _line(_call(f"m{n}", "recall", {"query": "x", "min_score": 7})).replace(b": 7", b": " + number)
    return Malformed("not a JSON number", whole, f"m{n}")


def _odd_id(rng: random.Random, n: int) -> Malformed:
    ids: list[Any] = [None, True, [], {}, 1.5 + n, float("nan")]
    id = rng.choice(ids)
    readable = isinstance(id, float) and id == id
    return Malformed("odd id", _line(_call(id, "list_history", {})), id if readable else None)


def _big_id(rng: random.Random, n: int) -> Malformed:
    id = rng.choice([2**64 + n, f"m{n}" + "i" * 10_000, -n - 1])
    return Malformed("big id", _line(_call(id, "no_such_tool", {})), id)


def _odd_envelope(rng: random.Random, n: int) -> Malformed:
    message = _call(f"m{n}", "list_history", {})
    change = rng.choice([("jsonrpc", "1.0"), ("jsonrpc", None), ("jsonrpc", 2), ("method", 5), ("method", None)])
    return Malformed("odd envelope", _line(message | dict([change])), f"m{n}")


def _odd_params(rng: random.Random, n: int) -> Malformed:
    odds: list[Any] = [
        [],
        5,
        "x",
        True,
        {"name": 5},
        {},
        {"name": "recall", "arguments": []},
        {"name": "recall", "_meta": 5},
    ]
    odd = rng.choice(odds)
    return Malformed("odd params", _line(_call(f"m{n}", "", {}) | {"params": odd}), f"m{n}")


def _unknown_method(rng: random.Random, n: int) -> Malformed:
    method = rng.choice(["tools/cal", "", "TOOLS/LIST", "rpc.discover", "x" * 5000, "tools/list\0"])
    return Malformed("unknown method", _line({"jsonrpc": "2.0", "id": f"m{n}", "method": method}), f"m{n}")


def _odd_argument(rng: random.Random, n: int) -> Malformed:
    """An argument that no tool takes: a nested object where a flat value belongs."""
    tool = rng.choice(sorted(ARGUMENTS))
    name = rng.choice(ARGUMENTS[tool])
    odds: list[Any] = [{"a": {"b": 1}}, [{"a": 1}], [[1]], {"": None} | {"a": []}]
    odd = rng.choice(odds)
    return Malformed("odd argument", _line(_call(f"m{n}", tool, {name: odd})), f"m{n}")


def _unknown_argument(rng: random.Random, n: int) -> Malformed:
    arguments = {"content": "x", rng.choice(["contents", "Content", "x", "__class__", ""]): rng.choice(ODD_VALUES[:8])}
    return Malformed("unknown argument", _line(_call(f"m{n}", "remember", arguments)), f"m{n}")


def _deep(rng: random.Random, n: int) -> Malformed:
    depth = rng.choice([70, 500, 100_000])
    nested = b"[" * depth + b"]" * depth
    whole = _line(_call(f"m{n}", "recall", {"query": "@"})).replace(b'"@"', nested)
    # Beyond what a parser takes, the id is still read where it stands.
    return Malformed("deep", whole, f"m{n}")


def _batch(rng: random.Random, n: int) -> Malformed:
    return Malformed("batch", _line([_call(f"m{n}", "list_history", {})] * rng.randrange(3)))


def _odd_notification(rng: random.Random, n: int) -> Malformed:
    odds: list[Any] = [[], 5, {"requestId": []}, {"requestId": f"m{n}"}, {"a": "\ud83d"}]
    odd = rng.choice(odds)
    method = rng.choice(["notifications/cancelled", "notifications/none", "notifications/progress"])
    return Malformed("odd notification", _line({"jsonrpc": "2.0", "method": method, "params": odd}), answered=False)
