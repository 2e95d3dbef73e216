"""The hits of an answer: made of the rows that were found, and cut to the room there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perdure import ranking
from perdure.excerpts import excerpt
from perdure.service import times
from perdure.store import memories, passages, salvage
from perdure.types import Episode, Hit
from perdure.words import Term

SOURCE_OF_ROLE = {"user": "user", "assistant": "agent", "tool": "tool", "system": "agent"}
HIT_FRAME = 20  # characters counted per hit besides its content
EXCERPT = 1_000  # characters shown of a long text where the whole would push other hits out: about one chunk


def hit_of(
    row: passages.Found,
    known: tuple[memories.Statement, str | None] | None,
    turn: Episode | None,
    r: ranking.Ranked,
    parts: Mapping[str, float] | None,
) -> Hit | None:
    """Return the hit of a passage; None if its memory or its turn is gone. `known` is with its collection, if any."""
    score, at = round(r.score, 4), times.show(row.at)
    if row.type == "memory":
        if known is None:
            return None
        memory, collection = known
        return Hit(
            type="memory",
            id=memory.id,
            content=memory.content,
            score=score,
            at=at,
            source=memory.source,
            key=memory.key,
            kind=memory.kind,
            tags=memory.tags,
            thread=memory.thread,
            metadata=memory.metadata,
            episode=row.seq,
            superseded_by=memory.superseded_by,
            explain=parts,
            collection=collection,
            agent=memory.agent if collection is not None else None,
        )
    if row.type == "turn":
        if turn is None:
            return None
        return Hit(
            type="turn",
            id=f"turn_{row.seq}",
            content=turn.content or "",
            score=score,
            at=at,
            source=SOURCE_OF_ROLE.get(turn.role or ""),
            author=turn.name or turn.role,
            thread=turn.thread,
            episode=row.seq,
            explain=parts,
        )
    return Hit(
        type="file",
        id=f"file_{row.id}",
        content=row.text or "",
        score=score,
        at=at,
        path=row.subject,
        version=row.version,
        lines=(row.first_line, row.last_line) if row.first_line and row.last_line else None,
        place=row.place,
        episode=row.seq,
        explain=parts,
    )


def within(hits: Sequence[Hit], max_chars: int, terms: Sequence[Term]) -> list[Hit]:
    """Return the first hits that fit. Before one is left out, long ones give up all but the part that answers.

    The last gives up first. A first one that is too long alone is cut to what there is room for.
    """
    fitted = list(hits)
    excess = sum(len(hit.content) + HIT_FRAME for hit in hits) - max_chars
    for n in range(len(fitted) - 1, -1, -1):
        if excess <= 0:
            break
        if len(fitted[n].content) > EXCERPT:
            # The first keeps what is left over.
            room = EXCERPT if n else max(EXCERPT, len(fitted[0].content) - excess)
            shorter = _shorter(fitted[n], min(room, max_chars - HIT_FRAME), terms)
            excess -= len(fitted[n].content) - len(shorter.content)
            fitted[n] = shorter
    kept: list[Hit] = []
    room = max_chars
    for hit in fitted:
        room -= len(hit.content) + HIT_FRAME
        if room < 0 and kept:
            break
        kept.append(hit if room >= 0 else _shorter(hit, max_chars - HIT_FRAME, terms))
    return kept


def _shorter(hit: Hit, room: int, terms: Sequence[Term]) -> Hit:
    content, part = excerpt(hit.content, hit.part, terms, room)
    return replace(hit, content=content, part=part)


def salvaged(score: float, text: salvage.Text) -> Hit:
    """Return the hit of a text that was read from a damaged database."""
    return Hit(
        type=text.type,
        id=text.id,
        content=text.content,
        score=round(score, 4),
        at=times.show(text.at),
        source=text.source,
        author=text.author,
        key=text.key,
        kind=text.kind,
        tags=text.tags,
        thread=text.thread,
        path=text.path,
    )
