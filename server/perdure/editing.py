"""Exact replacements in a text, the nearest text to one that is not there, and differences. No I/O."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from perdure.errors import InvalidInput
from perdure.framing import shortened
from perdure.types import Edit

SHOWN_LINES = 5  # numbers of lines in a refusal
SHOWN_CHARS = 400  # of the nearest text
PIECE = 1_000  # characters; longer lines are compared in pieces
LOOKED_FOR = 2_000  # characters of a text whose neighbour is looked for
COMPARED = 600  # of them letter by letter, which takes the square of it
CANDIDATES = 8  # places that are compared so
MOST_PIECES = 300_000  # a file with more lines is not looked through
LEAST_LIKE = 0.5  # below, what is nearest has nothing to do with it
MOST_STEPS = 3_000_000  # of comparing lines: about a second
MOST_LINES = 40_000  # compared line by line, beyond what is the same at the begin and at the end

_WORD = re.compile(r"\w+")
_BARE_LF = re.compile(r"(?<!\r)\n")


def edited(text: str, edits: Sequence[Edit], path: str) -> str:
    """Return the text after all edits, in order; each `old` must occur exactly once in what those before it left.

    Where every line ends with CRLF, so do those of the edits. Raises InvalidInput, which says where else `old` occurs
    or what is nearest to it.
    """
    crlf = "\n" in text and not _BARE_LF.search(text)
    for n, edit in enumerate(edits):
        old, new = (_BARE_LF.sub("\r\n", each) if crlf else each for each in (edit.old, edit.new))
        if not old:
            raise InvalidInput(
                f"edits[{n}].old is empty. Give text that the file has; write_file with mode append adds at its end."
            )
        if old == new:
            raise InvalidInput(f"edits[{n}] changes nothing: old and new are the same. Leave it out.")
        place = text.find(old)
        before = f" (after the edits before it: {n})" if n else ""
        if place < 0:
            raise InvalidInput(f"edits[{n}].old is not in {path}{before}; nothing was written. {_nearest(text, old)}")
        if text.find(old, place + 1) >= 0:
            raise InvalidInput(
                f"edits[{n}].old occurs {_times(text, old, path)}{before}; nothing was written. "
                "Give more of the text around it, so that it occurs once."
            )
        text = text[:place] + new + text[place + len(old) :]
    return text


def _times(text: str, old: str, path: str) -> str:
    lines: list[int] = []
    count, place, line, seen = 0, text.find(old), 1, 0
    while place >= 0 and count < 1_000:
        count += 1
        line, seen = line + text.count("\n", seen, place), place
        if len(lines) < SHOWN_LINES and line not in lines:
            lines.append(line)
        place = text.find(old, place + 1)
    many = f"{count} times" if place < 0 else f"{count} times or more"
    more = ", ..." if len(lines) == SHOWN_LINES and line not in lines else ""
    return f"{many} in {path} (line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}{more})"


def _nearest(text: str, old: str) -> str:
    """Say what the text has that comes nearest to `old`, and where; in bounded time however long both are."""
    if text.count("\n") + len(text) // PIECE > MOST_PIECES:
        return "Read the part of the file again, and copy the text exactly."
    pieces = _pieces(text)
    wanted = [piece for _, piece in _pieces(old[:LOOKED_FOR].strip("\r\n"))]
    found = _same_but_for_space(pieces, wanted) if len(old) <= LOOKED_FOR else None
    if found is not None:
        what = "Only white space differs"
    else:
        found, what = _most_alike(pieces, wanted), "The nearest"
    if found is None:
        return "Nothing there is like it: read the file again and copy the text exactly."
    first, last = pieces[found][0], pieces[min(found + len(wanted), len(pieces)) - 1][0]
    near = "\n".join(piece for _, piece in pieces[found : found + len(wanted)])
    lines = f"line {first}" if first == last else f"lines {first}-{last}"
    return f"{what}: {lines}: {shortened(near, SHOWN_CHARS)!r}. Copy it exactly."


def _pieces(text: str) -> list[tuple[int, str]]:
    """Return (line, text) of each line, of a long one several."""
    return [
        (number, line[start : start + PIECE])
        for number, line in enumerate(text.split("\n"), 1)
        for start in range(0, max(len(line), 1), PIECE)
    ]


def _same_but_for_space(pieces: Sequence[tuple[int, str]], wanted: Sequence[str]) -> int | None:
    there = ["".join(piece.split()) for _, piece in pieces]
    (first, *middle), last = ["".join(piece.split()) for piece in wanted], ""
    if not first:
        return None
    if not middle:
        return next((n for n, line in enumerate(there) if first in line), None)
    *middle, last = middle
    for n in range(len(there) - len(middle) - 1):
        # The text may begin and end within a line.
        end = n + 1 + len(middle)
        if there[n].endswith(first) and there[end].startswith(last) and there[n + 1 : end] == middle:
            return n
    return None


def _most_alike(pieces: Sequence[tuple[int, str]], wanted: Sequence[str]) -> int | None:
    words = set(_WORD.findall("\n".join(wanted)))
    shared = [len(words.intersection(_WORD.findall(piece))) for _, piece in pieces]
    sums: list[int] = []
    window = sum(shared[: len(wanted)])
    for n in range(max(len(pieces) - len(wanted), 0) + 1):
        sums.append(window)
        window += (shared[n + len(wanted)] if n + len(wanted) < len(shared) else 0) - shared[n]
    places = sorted(range(len(sums)), key=lambda n: (-sums[n], n))[:CANDIDATES]
    target = "\n".join(wanted)[:COMPARED]
    ratios: list[tuple[float, int]] = []
    for n in places:
        near = "\n".join(piece for _, piece in pieces[n : n + len(wanted)])[:COMPARED]
        ratios.append((difflib.SequenceMatcher(None, near, target, autojunk=False).ratio(), -n))
    best, place = max(ratios)
    return -place if best >= LEAST_LIKE else None


def difference(
    path: str, old: str, new: str, *, versions: tuple[int | None, int | None], max_chars: int, context: int = 3
) -> str:
    """Return a unified diff, empty if nothing differs, cut at the end of a line to fit `max_chars` and then saying so.

    Where two long texts have too little in common to compare them in a second, all lines between the first and the
    last that differ count as replaced.
    """
    if old == new:
        return ""
    before, after = _lines(old), _lines(new)
    names = [f"{path} (version {version})" if version else path for version in versions]
    return _cut([f"--- {names[0]}", f"+++ {names[1]}", *_hunks(before, after, context)], max_chars)


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":
        return lines[:-1]
    return [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


def _hunks(before: list[str], after: list[str], context: int) -> Iterable[str]:
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    a, b = before[head : len(before) - tail], after[head : len(after) - tail]
    codes = [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in _codes(a, b)]
    groups: list[list[tuple[str, int, int, int, int]]] = []
    for code in codes:
        if code[0] == "equal":
            continue
        if groups and code[1] - groups[-1][-1][2] <= 2 * context:
            groups[-1].append(code)
        else:
            groups.append([code])
    for group in groups:
        yield from _hunk(before, after, group, context)


def _codes(a: list[str], b: list[str]) -> list[tuple[str, int, int, int, int]]:
    counts, others = Counter(a), Counter(b)
    if len(a) + len(b) > MOST_LINES or sum(n * others[line] for line, n in counts.items()) > MOST_STEPS:
        return [("replace", 0, len(a), 0, len(b))]
    return list(difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes())


def _hunk(
    before: list[str], after: list[str], group: Sequence[tuple[str, int, int, int, int]], context: int
) -> Iterable[str]:
    first, last = group[0], group[-1]
    lead = min(context, first[1])
    trail = min(context, len(before) - last[2])
    yield f"@@ -{_range(first[1], last[2], lead, trail)} +{_range(first[3], last[4], lead, trail)} @@"
    at = first[1] - lead
    for _, i, j, k, m in group:
        yield from (f" {line}" for line in before[at:i])
        yield from (f"-{line}" for line in before[i:j])
        yield from (f"+{line}" for line in after[k:m])
        at = j
    yield from (f" {line}" for line in before[at : at + trail])


def _range(start: int, end: int, lead: int, trail: int) -> str:
    length = end - start + lead + trail
    return f"{start - lead + (length > 0)},{length}"


def _cut(lines: Iterable[str], max_chars: int) -> str:
    kept: list[str] = []
    room, left = max_chars - 60, 0
    for whole in lines:
        line = shortened(whole, LOOKED_FOR)
        room -= len(line) + 1
        if room < 0:
            left += 1
        else:
            kept.append(line)
    return "\n".join([*kept, f"(the difference goes on for {left} lines)"] if left else kept)
