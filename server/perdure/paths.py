"""What a path of a workspace may be, and the one form it has. No I/O."""

from __future__ import annotations

import functools
import re
import unicodedata

from perdure.errors import InvalidInput, Refused
from perdure.types import MAX_PATH_BYTES

MAX_PART_BYTES = 255
MAX_LEVELS = 32
STAGED = ".perdure-"  # begins the name of a file that is being written; refused as a name of anything else

_JOINERS = {"\u200c", "\u200d"}  # invisible, but parts of Persian words and of emoji
_ENCODED = re.compile(r"%(?:25)*(?:2[ef]|5c|00|c[01]|e0%80|u[0-9a-f]{4})", re.IGNORECASE)
_DEVICES = r"(?:con|prn|aux|nul|com\d|lpt\d|conin\$|conout\$|clock\$) *(?:\.|$)"
_DEVICE = re.compile(_DEVICES, re.IGNORECASE)
_SIMPLE = re.compile(rf"(?!(?i:{_DEVICES}))[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_PART_BYTES - 1}}}(?<!\.)")


@functools.lru_cache(1024)  # a call asks of its path some five times
def normalize(path: str) -> str:
    """Return `path` as the one name its file has: relative, NFC, without `.` and `..` parts.

    Names are portable: what other systems cannot store, or read as something else, is refused everywhere.
    Raises Refused for a path that points outside, InvalidInput for a name no file can have.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"The path {shown(path)} has an unpaired surrogate. Send it as valid Unicode.") from exc
    if size > MAX_PATH_BYTES:
        raise InvalidInput(f"The path is {size} bytes; the limit is {MAX_PATH_BYTES}. Use a shorter one.")
    for char in path:
        if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in _JOINERS:
            raise InvalidInput(f"The path {shown(path)} has the invisible character U+{ord(char):04X}. Leave it out.")
    if path.startswith(("/", "~")) or "\\" in path or "://" in path or _ENCODED.search(path):
        raise _outside(path)
    parts: list[str] = []
    for part in unicodedata.normalize("NFC", path).split("/"):
        if part == "..":
            if not parts:
                raise _outside(path)
            parts.pop()  # lexical: no part of a workspace path can be a link, so this is where it leads
        elif part not in ("", "."):
            _check_part(part, path)
            parts.append(part)
    if not parts or path.endswith("/"):
        raise InvalidInput(f"The path {shown(path)} names no file. Paths are relative, like notes/plan.md.")
    if len(parts) > MAX_LEVELS:
        raise InvalidInput(f"The path has {len(parts)} levels; the limit is {MAX_LEVELS}. Use fewer folders.")
    return "/".join(parts)


def has_room(prefix: str) -> bool:
    """Say whether a normal prefix, which ends with a slash or is "", may have any simple name behind it."""
    return len(prefix.encode()) + MAX_PART_BYTES < MAX_PATH_BYTES and prefix.count("/") < MAX_LEVELS - 1


def is_simple(name: str) -> bool:
    """Say whether a name is so plain that normalize() would give it, behind a normal prefix with room, as it is.

    False tells nothing. A listing of ten thousand files asks this ten thousand times.
    """
    return _SIMPLE.fullmatch(name) is not None


def _check_part(part: str, path: str) -> None:
    folded = unicodedata.normalize("NFKC", part)  # full-width dots and slashes, superscript digits
    if re.match(r"[A-Za-z]:", part) or "/" in folded or "\\" in folded or not folded.strip(". "):
        raise _outside(path)
    if (size := len(part.encode())) > MAX_PART_BYTES:
        raise InvalidInput(f"A name in the path is {size} bytes; the limit is {MAX_PART_BYTES}. Use a shorter one.")
    if (
        ":" in part
        or part[-1] == "."
        or part[-1].isspace()
        or _DEVICE.match(folded)
        or folded.casefold().startswith(STAGED)
    ):
        raise InvalidInput(
            f"The name {shown(part)} cannot be used: no colon, no dot or space at the end, no device name like CON "
            f"or nul.txt, nothing that begins with {STAGED}. Choose another."
        )


def shown(path: str) -> str:
    """Return a path as an error message may carry it: escaped, and short."""
    return repr(path if len(path) <= 200 else path[:200] + "…")


def _outside(path: str) -> Refused:
    return Refused(f"{shown(path)} is outside the workspace. Paths are relative to it, like notes/plan.md.")
