"""Cut a file into the sections that recall finds, along its own structure. Pure.

A text becomes units: lines, JSON members, rows of a table. Each says how deep a cut before it is, and what it opens. A
stretch of units that is too long for one section is cut at its deepest cuts, and their parts are joined again as far as
they fit; so a definition, a paragraph or a fence stays whole where it can, and the time is linear in the text.

Markdown is read for headings and fences alone: markdown-it takes 5 s for a megabyte of lists, this 0.7 s. Code is read
by indentation and blank lines, which say the same in nearly every language, also where a file is broken; tree-sitter
says more, with a binary of its own for each language.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import PurePosixPath

from perdure import chunking
from perdure.types import Span

WORDS = chunking.WORDS
DENSE_WORDS = 150  # of code and data, of which a model makes more tokens a word, with the names before it
TOGETHER_WORDS = 60  # sections of Markdown and of settings that are shorter together stay together
FEW_WORDS = 12  # what opens a long block, like a lone bracket, stays with what follows
MAX_TITLE, MAX_PLACE = 80, 160  # characters
BETWEEN = " > "  # the names of a place
MAX_RECORD_LINES = 64  # a row of a table with more is a stray quote

# How deep a cut is: the lower, the sooner. Those below APART part what belongs to different headings.
APART, PARAGRAPH, ENTRY, LINE, FENCED_BLANK, FENCED = 10, 20, 22, 25, 90, 91
CODE, CODE_LEVELS, GLUED = 30, 8, 99
NO_DEPTH = 99  # of what neither opens nor ends anything

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t](.*))?$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_ENTRY = re.compile(r"[ \t]*(?:[-*+•]|\d{1,9}[.)])[ \t]")
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})(.*)$")
_TABLE = re.compile(r"\[{1,2}([^\[\]]+)\]{1,2}[ \t]*(?:[#;].*)?$")
_JSON = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},\n]', re.DOTALL)
_KEY = re.compile(r'"([^"\\\n]{0,200})"\s{0,40}:')
_CONTINUES = re.compile(r"[)\]}>]|(?:else|elif|elsif|except|rescue|finally|ensure|catch|end|then|fi|done|esac)\b")
_FLOW = re.compile(r"(?:if|for|foreach|while|with|try|do|switch|match|case|when|return|begin|unless|loop)\b")
_LEADS = re.compile(r"@|#(?!include|define|if|pragma)|//|/\*|\*|--|\"\"\"|'''")

PROSE = {"", ".txt", ".text", ".log", ".rst", ".org", ".adoc", ".tex", ".srt", ".vtt", ".eml"}
MARKDOWN = {".md", ".markdown", ".mdx", ".mdown", ".mkd", ".qmd"}
JSON = {".json", ".jsonl", ".ndjson", ".geojson", ".ipynb", ".json5", ".webmanifest"}
TABLES = {".toml", ".ini", ".cfg", ".conf", ".properties", ".editorconfig"}
ROWS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}


@dataclass(frozen=True, slots=True)
class Section:
    """Some lines of a file, from `first` to `last`, counted from 1. `place` names what they stand below, if anything:
    headings, definitions, keys, or the columns of a table.
    """

    span: Span
    first: int
    last: int
    place: str = ""


@dataclass(slots=True)
class _Unit:
    """A piece that is cut only if it is too long alone. It opens `title` until a unit that is no deeper."""

    number: int
    start: int
    end: int
    cut: int
    depth: int = NO_DEPTH
    title: str = ""
    last: int = 0  # its last line, if that is another one


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that is not blank. `start` is its begin, `end` leaves out the space after it."""

    number: int
    start: int
    end: int
    text: str
    after_blank: bool


def sections(text: str, path: str) -> list[Section]:
    """Return the sections of a file, in order; together they cover all but space. The path's ending says how it is cut.

    A section is whole lines, but for lines that are too long alone and for JSON without line ends.
    """
    ending = PurePosixPath(path).suffix.lower()
    if ending in MARKDOWN:
        return _packed(text, _markdown(text), WORDS)
    if ending in JSON:
        return _packed(text, _json(text), DENSE_WORDS)
    if ending in ROWS:
        return _rows(text, ROWS[ending])
    if ending in TABLES:
        return _packed(text, _tables(text), DENSE_WORDS)
    if ending in PROSE:
        return _packed(text, _prose(text), WORDS)
    return _packed(text, _code(text), DENSE_WORDS)


# --- units


def _lines(text: str) -> Iterator[_Line]:
    start, after_blank = 0, True
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.rstrip()
        shown = bare.removeprefix("\ufeff") if number == 1 else bare
        if shown.strip():
            yield _Line(number, start + len(bare) - len(shown), start + len(bare), shown, after_blank)
        after_blank = not shown.strip()
        start += len(line) + 1


def _prose(text: str) -> list[_Unit]:
    return [_Unit(line.number, line.start, line.end, _plain(line)) for line in _lines(text)]


def _plain(line: _Line) -> int:
    """Return how deep a cut before a line of prose is."""
    return PARAGRAPH if line.after_blank else ENTRY if _ENTRY.match(line.text) else LINE


def _markdown(text: str) -> list[_Unit]:
    units: list[_Unit] = []
    fence = ""
    front = False  # within the settings before the text
    titled = False  # the line before is a heading, which what follows it belongs to
    for line in _lines(text):
        cut = GLUED if titled else _plain(line)
        unit, titled = _Unit(line.number, line.start, line.end, cut), False
        mark = _FENCE.match(line.text)
        if front or (line.number == 1 and line.text == "---"):
            front = line.number == 1 or line.text not in ("---", "...")
        elif fence:
            unit.cut = FENCED_BLANK if line.after_blank else FENCED
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
        elif found := _HEADING.match(line.text):
            titled = True
            _open(unit, len(found[1]), (found[2] or "").rstrip(" \t#"), keep=cut == GLUED)
        elif units and (found := _UNDERLINE.match(line.text)) and not line.after_blank and _is_lone(units, line):
            titled, unit.cut = True, GLUED
            above = units[-1]
            _open(above, 1 if found[1][0] == "=" else 2, text[above.start : above.end], keep=above.cut == GLUED)
        units.append(unit)
    return units


def _open(unit: _Unit, level: int, title: str, *, keep: bool) -> None:
    unit.depth, unit.title = level, _short(title)
    if not keep:  # a heading right below another one stays with it
        unit.cut = level


def _is_lone(units: Sequence[_Unit], line: _Line) -> bool:
    """Say whether the line before is a paragraph of its own."""
    above = units[-1]
    return above.number == line.number - 1 and above.depth == NO_DEPTH and above.cut in (PARAGRAPH, GLUED)


def _tables(text: str) -> list[_Unit]:
    """Settings under [names], as TOML and INI have them."""
    units: list[_Unit] = []
    for line in _lines(text):
        unit = _Unit(line.number, line.start, line.end, _plain(line))
        if found := _TABLE.match(line.text):
            unit.cut, unit.depth, unit.title = 1 + min(found[1].count("."), APART - 2), 0, _short(found[1])
        units.append(unit)
    return units


def _code(text: str) -> list[_Unit]:
    """Lines by indentation: a cut before a block after a blank line, else after a deeper line, else before any."""
    units: list[_Unit] = []
    levels: list[int] = []  # the indentations that the line stands in
    above, above_depth = "", 0
    for line in _lines(text):
        bare = line.text.lstrip()
        width = len(line.text[: len(line.text) - len(bare)].expandtabs(4))
        while levels and levels[-1] >= width:
            levels.pop()
        depth = min(len(levels), CODE_LEVELS - 1)
        levels.append(width)
        how = 0 if line.after_blank else 1 if depth < above_depth else 2
        unit = _Unit(line.number, line.start, line.end, CODE + 3 * depth + how, depth)
        leads = _LEADS.match(above) is not None
        if _CONTINUES.match(bare):
            unit.cut, unit.depth = GLUED, NO_DEPTH
        elif leads and not line.after_blank and depth == above_depth:
            unit.cut = GLUED  # a comment or a decorator stays with what it is about
        if units and depth > above_depth and not (leads or _CONTINUES.match(above) or _FLOW.match(above)):
            units[-1].title = _short(above.rstrip(" \t:{(["))
        units.append(unit)
        above, above_depth = bare, depth
    return units


def _json(text: str) -> list[_Unit]:
    """Members and items, in documents of one value and in lines of them. What is broken is cut all the same."""
    units: list[_Unit] = []
    begin = level = depth = 0  # of the member that is under way, and of where the reading stands
    number = 1
    for token in _JSON.finditer(text):
        mark, place = token[0], token.end()
        if mark in ",[{" or (mark == "\n" and depth == 0):
            _member(units, text, begin, place if mark != "\n" else place - 1, number, level)
            depth += mark in "[{"
            begin, level = place, depth
        elif mark in "]}":
            depth = max(0, depth - 1)
        number += mark.count("\n")
    _member(units, text, begin, len(text), number, level)
    return units


def _member(units: list[_Unit], text: str, begin: int, end: int, number: int, level: int) -> None:
    """Add what stands between two places, if anything does; `number` is the line at `end`."""
    piece = text[begin:end]
    start, stop = end - len(piece.lstrip("\ufeff \t\r\n")), begin + len(piece.rstrip())
    if start >= stop:
        return
    first, last = number - text.count("\n", start, end), number - text.count("\n", stop, end)
    found = _KEY.match(text, start)
    title, cut = _short(found[1]) if found else "", CODE + min(level, CODE_LEVELS)
    line_start = text.rfind("\n", max(begin, start - MAX_TITLE), start) + 1
    if line_start:
        start = line_start  # whole lines where it begins one
    former = units[-1] if units else None
    if former and not (title or former.title) and former.cut <= cut and stop - former.start < MAX_TITLE:
        former.end, former.last = stop, last  # numbers and the like: not a unit each
    else:
        units.append(_Unit(first, start, stop, cut, level, title, last))


def _rows(text: str, delimiter: str) -> list[Section]:
    """Rows of a table, each section with the names of the columns."""
    units: list[_Unit] = []
    lines = {line.number: line for line in _lines(text)}
    number, names = 0, ""
    try:
        reader = csv.reader((f"{line}\n" for line in text.split("\n")), delimiter=delimiter)
        for row in reader:
            first, number = number + 1, reader.line_num
            if number - first >= MAX_RECORD_LINES:
                raise csv.Error
            if not row or (begin := next((lines[n] for n in range(first, number + 1) if n in lines), None)) is None:
                continue
            end = next(lines[n] for n in range(number, first - 1, -1) if n in lines)
            names = names or _columns(row)
            units.append(_Unit(begin.number, begin.start, end.end, LINE, last=end.number))
    except csv.Error:  # a stray quote: then each line is a row
        units = [_Unit(line.number, line.start, line.end, LINE) for line in lines.values()]
    found = _packed(text, units, DENSE_WORDS)
    return found[:1] + [Section(each.span, each.first, each.last, names) for each in found[1:]]


def _columns(row: Sequence[str]) -> str:
    return ", ".join(" ".join(name.split()) for name in row if name.strip())[:MAX_PLACE]


def _short(title: str) -> str:
    return " ".join(title.split())[:MAX_TITLE]


# --- from units to sections


def _packed(text: str, units: list[_Unit], words: int) -> list[Section]:
    sizes = [0, *accumulate(chunking.words(text[unit.start : unit.end]) for unit in units)]
    found: list[Section] = []
    opened: list[tuple[int, str]] = []
    for lo, hi in _parts(units, sizes, 0, len(units), words):
        _open_and_close(opened, units[lo])
        place = _place(opened)
        for unit in units[lo + 1 : hi]:
            _open_and_close(opened, unit)
        first, last = units[lo], units[hi - 1]
        if sizes[hi] - sizes[lo] <= words:
            found.append(Section(Span(first.start, last.end), first.number, last.last or last.number, place))
            continue
        number, counted = first.number, first.start
        for span in chunking.split(text[first.start : last.end], words=words, stride=words * 3 // 4):
            inside = Span(first.start + span.start, first.start + span.end)
            number, counted = number + text.count("\n", counted, inside.start), inside.start
            end = number + text.count("\n", inside.start, inside.end)
            found.append(Section(inside, number, end, place))
    return found


def _parts(units: Sequence[_Unit], sizes: Sequence[int], lo: int, hi: int, words: int) -> Iterator[tuple[int, int]]:
    """Yield (from, to) of units that make one section: up to `words` together, or one that is longer alone, with what
    opens it.

    Each recursion has no cut as deep as its own, so there are no more of them within each other than kinds of cuts.
    """
    if hi - lo <= 1:
        if hi > lo:
            yield lo, hi
        return
    deepest = min(unit.cut for unit in units[lo + 1 : hi])
    most = min(words, TOGETHER_WORDS) if deepest < APART else words
    under_heading = deepest == GLUED and sizes[hi - 1] - sizes[lo] <= FEW_WORDS
    if sizes[hi] - sizes[lo] <= most or under_heading:
        yield lo, hi
        return
    begin = lo
    for first, after in pairwise([lo, *(n for n in range(lo + 1, hi) if units[n].cut == deepest), hi]):
        if sizes[after] - sizes[begin] <= most:
            continue
        opens = begin == lo and units[lo].cut < deepest < GLUED  # like a lone bracket: no section of its own
        if begin < first and opens and sizes[first] - sizes[begin] <= FEW_WORDS:
            units[first].cut = GLUED
        elif begin < first:
            yield begin, first
            begin = first
        if sizes[after] - sizes[begin] > most:
            yield from _parts(units, sizes, begin, after, words)
            begin = after
    if begin < hi:
        yield begin, hi


def _open_and_close(opened: list[tuple[int, str]], unit: _Unit) -> None:
    while opened and opened[-1][0] >= unit.depth:
        opened.pop()
    if unit.title:
        opened.append((unit.depth, unit.title))


def _place(opened: Sequence[tuple[int, str]]) -> str:
    """Return the names of all that is open, the outermost first; of many the outermost."""
    place = ""
    for _, title in opened:
        longer = f"{place}{BETWEEN}{title}" if place else title
        if len(longer) > MAX_PLACE:
            break
        place = longer
    return place
