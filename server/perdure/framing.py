"""Stored text within text a model reads: it stays in its place, and passes for nothing else. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

FENCE = "perdure"  # the name of the tag around a block of stored text

# C0 and C1 controls except tab and newline, and the marks that reorder text: shown, so that nobody hides words in them.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_BACKSLASHES_AT_AN_END = re.compile(r"(?<!\\)(\\+)(?=\]|\Z)")
_SECONDS = re.compile(r"(T\d\d:\d\d):\d\d(?:\.\d+)?")
# Letters of no width may stand between those of a tag: a model reads over them.
_NO_WIDTH = "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff]*"
# The tag of the fence, however it is spaced, and the marks between messages that chat templates know (<|im_start|>).
_FENCE = re.compile(
    rf"([<\uff1c\ufe64])(?={_NO_WIDTH}[\s/\uff0f]*{_NO_WIDTH}{_NO_WIDTH.join(FENCE)}|{_NO_WIDTH}\|)", re.IGNORECASE
)


def visible(text: str) -> str:
    """Return stored text as one item: unseen characters named, further lines indented: none can look like an item."""
    text = text.replace("\r\n", "\n").rstrip("\n")
    return _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", text).replace("\n", "\n ")


def fenced(text: str) -> str:
    r"""Like visible, for text within a fence: what would close or open one, or a message, has a `\` after its `<`."""
    return _FENCE.sub(r"\1\\", visible(text))


def fenced_line(text: str) -> str:
    """Like fenced, for what has to stay on the line it stands on."""
    return fenced(text).replace("\n ", " ")


def header(parts: Sequence[str | None]) -> str:
    r"""Return the header of an item, `[… …]`, which no name, thread, tag, key or path can close.

    A `]` in them is `\]`; backslashes before one, or at the end, are doubled, so that those tell which one closes.
    """
    text = visible(" ".join(part for part in parts if part)).replace("\n", " ")
    return "[" + _BACKSLASHES_AT_AN_END.sub(r"\1\1", text).replace("]", r"\]") + "]"


def short_time(at: str) -> str:
    """Return an ISO 8601 time to the minute, with +00:00 as Z; structured content has it whole."""
    at = at[:-6] + "Z" if at.endswith("+00:00") else at
    return _SECONDS.sub(r"\1", at)


def shortened(content: str, keep: int) -> str:
    """Return the first `keep` characters, and how many are missing."""
    return content if len(content) <= keep else f"{content[:keep]}… ({len(content) - keep} more characters)"
