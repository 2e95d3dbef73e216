"""Texts that make a careless pattern read them anew from each of their characters: every reader stays linear."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date
from functools import partial

import pytest

from perdure import chunking, credentials, extracting, framing, notes, privacy, summarizing, timing, words
from perdure.sections import sections
from perdure.types import MAX_TURN

LENGTH = MAX_TURN // 8
LIMIT_S = 4.0  # of processor time, generous for a busy machine: what is not linear takes minutes
PIECES = {
    "one letter": "a",
    "letters with an umlaut far away": "b",
    "capitals": "A",
    "digits": "7",
    "humps": "aB",
    "words": "word ",
    "joined": "a-",
    "dots": "a.",
    "slashes": "/a",
    "accents": "é",
    "umlauts": "ä",
    "Chinese": "会",
    "Korean": "한",
    "Arabic": "ب",
    "marks": "e\u0301",
    "spaces": " ",
    "line ends": "\n",
    "tags": "<private>",
    "half tags": "<",
    "quotes": '"',
    "brackets": "[",
    "equal signs": "k=",
    "colons": "password: ",
    "at signs": "a@",
    "stars": "*",
    "backticks": "`",
    "sentences": "I like it. ",
    "dates": "on 3 May ",
    "indents": "  - a\n",
    "headings": "# a\n",
    "hashes": "# #",
    "underlines": "a\n=\n",
    "fences": "```\n",
    "members": '{"a":1},',
    "open brackets": "[{",
    "escapes": '\\"',
    "rows": 'a,"b\n',
}
READERS: dict[str, Callable[[str], object]] = {
    "index_form": words.index_form,
    "query_terms": lambda text: words.query_terms(text[:4096]),
    "content_words": words.content_words,
    "split": chunking.split,
    **{
        f"sections of {ending}": partial(sections, path=f"a{ending}")
        for ending in (".md", ".py", ".json", ".csv", ".toml", ".txt")
    },
    "masked": credentials.masked,
    "without_private": privacy.without_private,
    "is_off_the_record": privacy.is_off_the_record,
    "extract": lambda text: extracting.extract([extracting.Spoken(1, "1 March 2026", "Ana", text, "user")]),
    "summarize": lambda text: summarizing.summarize([summarizing.Said("1 March 2026", "Ana", text)], 1600),
    "notes": lambda text: notes.parse(text[: LENGTH // 2], "MEMORY.md"),
    "fenced": framing.fenced,
    "read": lambda text: timing.read(text[:4096], date(2026, 3, 1)),
}


@pytest.mark.torture
@pytest.mark.parametrize("reader", READERS)
def test_no_text_takes_long_to_read(reader: str, request: pytest.FixtureRequest) -> None:
    """Of each piece one form on each commit, another one for the next reader, and all with --torture."""
    slow: dict[str, float] = {}
    nth = list(READERS).index(reader)
    for n, (name, piece) in enumerate(PIECES.items(), nth):
        text = (piece * (LENGTH // len(piece) + 1))[:LENGTH]
        forms = (text, f"é {text}", f"{text} ä", f"Ana said: {text}.")
        for variant in forms if request.config.getoption("--torture") else (forms[n % len(forms)],):
            begun = time.process_time()
            READERS[reader](variant)
            if (took := time.process_time() - begun) > LIMIT_S:
                slow[name] = round(took, 1)
    assert not slow, slow
