"""Cut a text into the pieces that are embedded. Pure.

What counts as a word: up to 16 letters or digits, with what follows an apostrophe and up to 4 marks of punctuation; in
Chinese, Japanese, Thai, Lao, Khmer and Burmese, which put no spaces between words, each letter. So prose counts as
people count it, paths, code, tables and base64 count for the many tokens that a model makes of them, and no text is one
long word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.types import Span

WORDS = 170  # bge's WordPiece makes about 210 tokens of that much prose and 310 to 470 of code and tables; it reads 512
STRIDE = 130

UNSPACED = (
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff\uff66-\uff9d"  # kana
    "\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # ideographs
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
)
MARKS = (  # what belongs to the letter before it
    "\u0300-\u036f\u3099\u309a\uff9e\uff9f\u30fc\ufe00-\ufe0f\U000e0100-\U000e01ef"
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3"
)
_POINTS = "!-/:-@\\[-`{-~\u2010-\u2027\u2030-\u205e\u3001-\u3003\u3008-\u3020\uff01-\uff0f\uff1a-\uff20"
_LETTER = f"[^\\s{UNSPACED}{_POINTS}]"
_WORD = re.compile(
    f"(?:[{UNSPACED}][{MARKS}]*|{_LETTER}{{1,16}}(?:['’]{_LETTER}{{1,16}})?)[{_POINTS}]{{0,4}}|[{_POINTS}]{{1,4}}"
)
_HEADING = re.compile(r"#{1,6}\s")


def words(text: str) -> int:
    """Return how many words `text` has."""
    return len(_WORD.findall(text))


def split(text: str, *, words: int = WORDS, stride: int = STRIDE) -> list[Span]:
    """Return the spans to embed: one for a text of up to `words` words, else windows of that many, `stride` apart.

    Spans begin and end with a word, overlap by `words - stride`, and cover everything but space; a blank text has none.
    """
    found = [match.span() for match in _WORD.finditer(text)]
    spans: list[Span] = []
    for first in range(0, len(found), stride):
        window = found[first : first + words]
        spans.append(Span(window[0][0], window[-1][1]))
        if first + words >= len(found):
            break
    return spans


def split_lines(text: str, *, words: int = WORDS) -> list[tuple[Span, int, int]]:
    """Return (span, first line, last line) of each section of a file; lines count from 1 and end at a line feed.

    A section is whole lines of up to `words` words together. It ends before a Markdown heading, else at a blank
    line, if one lies in its second half. A longer line becomes several overlapping spans of the same line.
    """
    sections: list[tuple[Span, int, int]] = []
    pending: list[_Line] = []
    count = 0
    for line in _lines(text):
        if line.words > words:
            sections += _section(pending)
            pending, count = [], 0
            for span in split(text[line.start : line.end], words=words, stride=max(1, words * STRIDE // WORDS)):
                sections.append((Span(line.start + span.start, line.start + span.end), line.number, line.number))
            continue
        while count + line.words > words:
            cut = _best_cut([*pending, line])
            sections += _section(pending[:cut])
            count -= sum(cut_off.words for cut_off in pending[:cut])
            pending = pending[cut:]
        pending.append(line)
        count += line.words
    return sections + _section(pending)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that is not blank; `start` and `end` leave out the space around it."""

    number: int
    start: int
    end: int
    words: int
    heading: bool
    after_blank: bool


def _lines(text: str) -> Iterator[_Line]:
    start = 0
    after_blank = False
    for number, line in enumerate(text.split("\n"), start=1):
        begin, end = start + len(line) - len(line.lstrip()), start + len(line.rstrip())
        if begin < end:
            yield _Line(number, begin, end, words(line), _HEADING.match(line) is not None, after_blank)
        after_blank = begin >= end
        start += len(line) + 1


def _best_cut(lines: list[_Line]) -> int:
    """Return before which of `lines` to cut; the last of them is the one that no longer fits."""
    half = sum(line.words for line in lines[:-1]) / 2
    blank = heading = before = 0
    for place, line in enumerate(lines):
        if place and before >= half:
            heading = place if line.heading else heading
            blank = place if line.after_blank else blank
        before += line.words
    return heading or blank or len(lines) - 1


def _section(lines: list[_Line]) -> list[tuple[Span, int, int]]:
    return [(Span(lines[0].start, lines[-1].end), lines[0].number, lines[-1].number)] if lines else []
