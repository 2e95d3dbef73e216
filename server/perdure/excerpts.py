"""The part of a long text that answers, where there is no room for the whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.types import Portion
from perdure.words import Term, found_share


def excerpt(content: str, part: Portion | None, terms: Sequence[Term], room: int) -> tuple[str, Portion | None]:
    """Return at most `room` characters of `content`, those with most of the terms, and which of the text they are.

    `part` says what `content` itself is part of, None for a whole text.
    """
    if len(content) <= room:
        return content, part
    room = max(room, 0)
    starts = range(0, len(content) - room + 1, max(room // 2, 1)) if room else range(1)
    last = len(content) - room
    best = max((*starts, last), key=lambda start: found_share(terms, content[start : start + room]))
    begin, total = (part.start, part.total) if part is not None else (0, len(content))
    return content[best : best + room], Portion(begin + best, begin + best + room, total)
