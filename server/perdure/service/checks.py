"""What every argument must hold to, whoever passes it in. Each message names the argument and the right form."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from perdure.errors import InvalidInput
from perdure.privacy import without_private
from perdure.types import (
    HIT_TYPES,
    MAX_CONTENT,
    MAX_KEY,
    MAX_METADATA,
    MAX_QUERY,
    MAX_RESULT,
    MAX_TAG,
    MAX_TAGS,
    MAX_THREAD,
    HitType,
)

T = TypeVar("T", bound=str)

INCLUDES: dict[str, HitType] = {"memories": "memory", "history": "turn", "files": "file"}


def text(value: str, name: str, *, limit: int = MAX_CONTENT, hint: str = "Split it or write it to a file.") -> str:
    """Return the text itself; refuse an empty one, one over `limit` characters, and characters no store can keep."""
    if not value.strip():
        raise InvalidInput(f"{name} is empty. Give it some text.")
    if len(value) > limit:
        raise InvalidInput(f"{name} is {len(value)} characters; the limit is {limit}. {hint}")
    return storable(value, name)


def storable(value: str, name: str) -> str:
    """Refuse what cannot be written as UTF-8 text: half a surrogate pair, and NUL."""
    encoded(value, name)
    return value


def encoded(value: str, name: str) -> bytes:
    """Return the text in UTF-8; refuse what storable does."""
    try:  # an expression that looks at each character takes twenty times as long
        data = value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput(
            f"{name} holds an unpaired surrogate \\u{ord(value[exc.start]):04x} at character {exc.start}."
            " Send whole Unicode characters."
        ) from exc
    if (place := value.find("\0")) >= 0:
        raise InvalidInput(f"{name} holds a NUL at character {place}. Remove it.")
    return data


def label(value: str | None, name: str, *, limit: int) -> str | None:
    """Return a short name (key, thread, tag) in one Unicode form and without surrounding spaces, or None."""
    if value is None:
        return None
    if without_private(value)[1]:
        raise InvalidInput(f"{name} holds a <private> tag, and names are kept as they are. Use another one.")
    return text(unicodedata.normalize("NFC", value.strip()), name, limit=limit, hint="Use a shorter one.")


def key(value: str | None) -> str | None:
    return label(value, "key", limit=MAX_KEY)


def thread(value: str | None) -> str | None:
    return label(value, "thread", limit=MAX_THREAD)


def query(value: str) -> str:
    return text(value, "query", limit=MAX_QUERY, hint="Ask in fewer words.")


def one_of(value: str, name: str, allowed: Sequence[T]) -> T:
    for choice in allowed:
        if value == choice:
            return choice
    raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.")


def tags(values: Sequence[str]) -> tuple[str, ...]:
    """Return the tags in order, each once, without surrounding spaces."""
    cleaned = tuple(dict.fromkeys(label(value, "tags", limit=MAX_TAG) or "" for value in values))
    if len(cleaned) > MAX_TAGS:
        raise InvalidInput(f"tags has {len(cleaned)} entries; the limit is {MAX_TAGS}.")
    return cleaned


def metadata(values: Mapping[str, str] | None) -> dict[str, str]:
    given = {storable(name, "metadata"): storable(value, "metadata") for name, value in (values or {}).items()}
    size = sum(len(name) + len(value) for name, value in given.items())
    if size > MAX_METADATA:
        raise InvalidInput(f"metadata is {size} characters; the limit is {MAX_METADATA}. Keep long text in content.")
    return given


def include(values: Sequence[str]) -> tuple[HitType, ...]:
    """Return the hit types that memories, history and files stand for."""
    types: tuple[HitType, ...] = tuple(
        dict.fromkeys(INCLUDES[one_of(value, "include", tuple(INCLUDES))] for value in values)
    )
    return types or HIT_TYPES


def between(value: int, name: str, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidInput(f"{name} is {value}; it must be from {low} to {high}.")
    return value


def max_chars(value: int) -> int:
    return between(value, "max_chars", 200, MAX_RESULT)


def order(value: str) -> Literal["newest", "oldest"]:
    return one_of(value, "order", ("newest", "oldest"))


def fingerprint(content: str, key: str | None) -> str:
    """Return a digest equal for the same text under the same key; it may be equal for texts that differ, too.

    It finds what may be the same, in stores of any age; `same_text` decides.
    """
    normalized = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return hashlib.sha256(f"{key or ''}\0{normalized}".encode()).hexdigest()


def same_text(a: str, b: str) -> bool:
    """Say whether two texts differ at most in the space around them and in how Unicode composes a letter.

    Letter case, spaces within and compatibility forms count: a password, code or 10² would be another one.
    """
    return unicodedata.normalize("NFC", a.strip()) == unicodedata.normalize("NFC", b.strip())
