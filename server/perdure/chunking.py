"""Cut a text into the pieces that are embedded. Pure.

What counts as a word: up to 16 letters or digits, with what follows an apostrophe and up to 4 marks of punctuation; in
Chinese, Japanese, Thai, Lao, Khmer and Burmese, which put no spaces between words, each letter. So prose counts as
people count it, paths, code, tables and base64 count for the many tokens that a model makes of them, and no text is one
long word.
"""

from __future__ import annotations

import re

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
