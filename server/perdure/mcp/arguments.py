"""One check of what a model sent against a tool's hand-kept schema: forgiving in form, strict in meaning."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, cast

from perdure.errors import InvalidInput
from perdure.types import (
    MAX_CONTENT,
    MAX_KEY,
    MAX_METADATA,
    MAX_TAG,
    MAX_TAGS,
    MAX_THREAD,
    MAX_TURN,
    MAX_TURNS,
    MAX_WRITE_BYTES,
)

# Characters of a text, or entries of a list. The schema does not carry them: they would cost every conversation tokens.
LIMITS: Mapping[tuple[str, str], int] = {
    ("remember", "content"): MAX_CONTENT,
    ("append_history", "content"): MAX_TURN,
    ("append_history", "turns"): MAX_TURNS,
    ("write_file", "content"): MAX_WRITE_BYTES,
    ("edit_file", "old"): MAX_WRITE_BYTES,
    ("edit_file", "new"): MAX_WRITE_BYTES,
    ("recall", "query"): MAX_CONTENT,  # what is beyond MAX_QUERY is cut and said so, not refused
    ("get_context", "query"): MAX_CONTENT,
    ("", "tags"): MAX_TAGS,
    ("", "key"): MAX_KEY,
    ("", "thread"): MAX_THREAD,
    ("", "metadata"): MAX_METADATA,
    ("", "cursor"): 4_096,
}
OTHER_TEXT = 1_024
OTHER_LIST = 64

_WHOLE = re.compile(r"[+-]?\d{1,18}")


def check_arguments(tool: str, schema: Mapping[str, Any], arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments in the schema's types, without those that are null.

    A list may come as a JSON string, as one word or as words between commas; a whole number as "5" or 5.0; metadata as
    an object. Raises InvalidInput naming the argument, what was sent and the right form.
    """
    return _object(tool, schema, arguments or {}, where="")


def _object(tool: str, schema: Mapping[str, Any], given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    known: Mapping[str, Any] = schema["properties"]
    for name in given:
        if name not in known:
            raise InvalidInput(_unknown(where or tool, name, list(known)))
    checked: dict[str, Any] = {}
    for name, rule in known.items():
        value = given.get(name)
        if name == "value" and name in given:
            checked[name] = _any_json(value, name)  # null is one
        elif value is not None:  # null means the same as leaving it out
            checked[name] = _value(tool, rule, value, name, f"{where}.{name}" if where else name)
    for name in schema.get("required", ()):
        if name not in checked:
            kind = _article(known[name]["type"])
            raise InvalidInput(f"{where or tool} needs {name!r}, {kind}. Add it and call again.")
    return checked


def _value(tool: str, rule: Mapping[str, Any], value: Any, name: str, where: str) -> Any:
    if name == "metadata":
        return _metadata(value)
    match rule["type"]:
        case "string":
            return _text(tool, rule, value, name, where)
        case "integer":
            return _whole_number(value, where)
        case "number":
            return _number(value, where)
        case "boolean":
            return _boolean(value, where)
        case "array":
            return _list(tool, rule, value, name, where)
        case _:
            if not isinstance(value, Mapping):
                raise InvalidInput(f"{where} is {_shown(value)}; send an object.")
            return _object(tool, rule, cast("Mapping[str, Any]", value), where=where)


def _text(tool: str, rule: Mapping[str, Any], value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{where} is {_shown(value)}; send a string.")
    limit = LIMITS.get((tool, name), LIMITS.get(("", name), OTHER_TEXT))
    if len(value) > limit:
        cure = "Split it or write it to a file." if name == "content" and tool != "write_file" else "Shorten it."
        cure = "Write the rest with mode append." if tool == "write_file" and name == "content" else cure
        raise InvalidInput(f"{where} is {len(value)} characters; the limit is {limit}. {cure}")
    check_characters(value, where)
    choices = cast("list[str] | None", rule.get("enum"))
    if choices and value not in choices:
        raise InvalidInput(f"{where} is {_shown(value)}; send one of {', '.join(choices)}.{_nearest(value, choices)}")
    return value


def check_characters(value: str, where: str) -> None:
    """Raise InvalidInput when `value` holds what no database and no file of text can keep: half characters and NUL."""
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        code = ord(value[exc.start])
        raise InvalidInput(
            f"{where} contains U+{code:04X} (\\u{code:04x}), one half of a character without the other. "
            "Nothing was stored; send the whole character or leave it out."
        ) from exc
    if "\0" in value:
        raise InvalidInput(f"{where} contains U+0000 (NUL), which text cannot hold. Leave it out and call again.")


def _whole_number(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif (isinstance(value, float) and value.is_integer()) or (
        isinstance(value, str) and _WHOLE.fullmatch(value.strip())
    ):
        number = int(value)
    else:
        raise InvalidInput(f"{where} is {_shown(value)}; send a whole number, like 5.")
    if not 0 <= number <= 2**53:  # every whole number of ours is a count, a size or a position
        raise InvalidInput(f"{where} is {_shown(number)}; send a whole number from 0.")
    return number


def _number(value: Any, where: str) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise InvalidInput(f"{where} is {_shown(value)}; send a number, like 0.5.")


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise InvalidInput(f"{where} is {_shown(value)}; send true or false.")


def _any_json(value: Any, where: str) -> Any:
    """Return any JSON: as such, or as text that is read. Many clients can send a parameter of one type only."""
    if not isinstance(value, str):
        return value
    check_characters(value, where)
    try:
        return json.loads(value)
    except RecursionError as exc:
        raise InvalidInput(f"{where} is nested too deep. Flatten it.") from exc
    except ValueError:
        return value


def _list(tool: str, rule: Mapping[str, Any], value: Any, name: str, where: str) -> list[Any]:
    item: Mapping[str, Any] = rule["items"]
    if isinstance(value, str):
        value = _list_of_text(value, item["type"] == "string")
    if not isinstance(value, list):
        what = "strings" if item["type"] == "string" else "objects"
        raise InvalidInput(f"{where} is {_shown(value)}; send a list of {what}.")
    entries = cast("list[Any]", value)
    limit = LIMITS.get((tool, name), LIMITS.get(("", name), OTHER_LIST))
    if len(entries) > limit:
        raise InvalidInput(
            f"{where} has {len(entries)} entries; the limit is {limit}. Send fewer, or in several calls."
        )
    checked = [_value(tool, item, entry, "", f"{where}[{i}]") for i, entry in enumerate(entries)]
    if name == "tags":
        for tag in checked:
            if len(tag) > MAX_TAG:
                raise InvalidInput(f"{where} has a tag of {len(tag)} characters; the limit is {MAX_TAG}. Shorten it.")
    return checked


def _list_of_text(value: str, of_strings: bool) -> Any:
    """Read a list that a client flattened to a string: JSON, or words between commas."""
    try:
        parsed: Any = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, list) or not of_strings:
        return cast("Any", parsed) if isinstance(parsed, list) else value
    if isinstance(parsed, str):
        value = parsed
    return [word for word in (part.strip() for part in value.split(",")) if word]


def _metadata(value: Any) -> dict[str, str]:
    """Return names and values from ["name=value"], {"name": "value"} or either as a JSON string."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = [value]
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        pairs = list(cast("Mapping[Any, Any]", value).items())
    elif isinstance(value, list):
        for entry in cast("list[Any]", value):
            name, equals, text = entry.partition("=") if isinstance(entry, str) else ("", "", "")
            if not equals or not name.strip():
                raise InvalidInput(f"metadata holds {_shown(entry)}; send a list of strings like name=value.")
            pairs.append((name.strip(), text.strip()))
    else:
        raise InvalidInput(f"metadata is {_shown(value)}; send a list of strings like name=value.")
    checked: dict[str, str] = {}
    for name, text in pairs:
        if isinstance(text, (int, float)):
            text = json.dumps(text)
        if not isinstance(text, str):
            raise InvalidInput(f"metadata.{name} is {_shown(text)}; values are strings, not lists or objects.")
        check_characters(str(name) + text, f"metadata.{str(name)[:40]!r}")
        checked[str(name)] = text
    size = sum(len(name) + len(text) for name, text in checked.items())
    if size > MAX_METADATA:
        raise InvalidInput(
            f"metadata is {size} characters; the limit is {MAX_METADATA}. Put it into content or a file."
        )
    return checked


def _unknown(where: str, name: str, known: list[str]) -> str:
    hint = _nearest(name, known) or f" Known: {', '.join(known)}."
    return f"{where} has no argument {_shown(name)}.{hint}"


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word.lower()[:100], known, n=1, cutoff=0.55)
    return f" Did you mean {close[0]!r}?" if close else ""


def _article(kind: str) -> str:
    return {"array": "a list", "integer": "a whole number", "object": "an object"}.get(kind, f"a {kind}")


def _shown(value: Any) -> str:
    """Return the value as JSON, short and in characters that can be sent back."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."
