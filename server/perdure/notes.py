"""Notes in Markdown: what each statement of a file says and where it stands. Pure.

A list entry with all that is nested in it, a paragraph, a block of code, a table or a quotation is one statement. The
headings above it are its tags. Soft line breaks do not count, so that a paragraph may be wrapped anew.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Any, Literal, cast

import yaml
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from perdure import dates
from perdure.privacy import is_all_private, is_off_the_record, without_private
from perdure.types import MAX_CONTENT, MAX_TAG, MAX_TAGS, MEMORY_KINDS, MemoryKind

Shape = Literal["entry", "paragraph", "block"]

KIND_OF_HEADING: dict[str, MemoryKind] = {name: kind for kind in MEMORY_KINDS for name in (kind, f"{kind}s")}
NAMED_BY_TITLE = ("MEMORY", "USER")  # files whose title, if it is their name, tells nothing and is no tag
MAX_LABEL = 200  # characters of a paragraph that ends with a colon and says what the list below it is about
MAX_FRONT_MATTER = 100  # lines; more is text that happens to begin with a rule

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")  # as Markdown counts lines
_MARKER = re.compile(r" {0,3}(?:[-+*]|\d{1,9}[.)])(?:[ \t]+|$)")
_LINK_TARGET = re.compile(r"(?<=\])\([^()]*\)")
_COMMENT = re.compile(r"\s*(?:<!--.*?-->\s*)+\Z", re.DOTALL)
_SPACE = re.compile(r"\s+")
_BITS = str.maketrans("01", "\x1c\x1d")  # space to every pattern, so that a mark cannot break a tag apart
_DIGITS = str.maketrans("\x1c\x1d", "01")
_MARK = re.compile("\x1e([\x1c\x1d]+)\x1e")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a file; `first` to `last` are its lines, from 1, both included.

    `tags` are the headings above it, the outermost first; `at` is a date as the file has it, ISO 8601 if it is that of
    a heading. `label` is what the text begins with though it stands above the list, in `label_lines`. `is_cut` says
    that a part of it is private and missing from the text.
    """

    text: str
    first: int
    last: int
    shape: Shape
    tags: tuple[str, ...] = ()
    at: str | None = None
    kind: MemoryKind | None = None
    label: str = ""
    label_lines: tuple[int, int] | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading and its line, from 1; `slug` is the tag it gives."""

    line: int
    slug: str


@dataclass(frozen=True, slots=True)
class Notes:
    """A file of notes. `lines` are those of the file with their ends; `left_out` are (line, why it is no statement)."""

    lines: tuple[str, ...]
    statements: tuple[Statement, ...]
    headings: tuple[Heading, ...]
    left_out: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class _Label:
    """A paragraph that ends with a colon: it says what follows it is about. Lines from 0, the last one excluded."""

    text: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Section:
    level: int
    slug: str
    at: str | None


def parse(text: str, name: str) -> Notes:
    """Return the statements of a file in their order; `name` is its path, whose last part may be a date."""
    lines = split_lines(text)
    masked, cut = _masked(lines)
    return _Reader(lines, masked, cut, PurePath(name).stem).read()


def split_lines(text: str) -> list[str]:
    """Return the lines with their ends: LF, CRLF or CR."""
    return [line for line in _LINE.findall(text) if line]


def slug(title: str) -> str:
    """Return a heading as a tag: lower case, words joined by hyphens; empty if it has no letter or digit."""
    kept = "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in title.lower())
    return "-".join(unicodedata.normalize("NFC", kept).split())[:MAX_TAG]


def says_same(a: str, b: str) -> bool:
    """Say whether two texts differ at most in space, as a paragraph that was wrapped anew does."""
    return _SPACE.sub(" ", a).strip() == _SPACE.sub(" ", b).strip()


def marker_of(line: str) -> str | None:
    """Return what stands before the text of a list entry, like "- " or "2. ", or None for any other line."""
    found = _MARKER.match(line.rstrip("\r\n"))
    return found[0] if found else None


class _Reader:
    """Walks the blocks of one file, with the headings they stand below."""

    def __init__(self, lines: list[str], masked: list[str], cut: set[int], stem: str) -> None:
        self._raw, self._cut = lines, cut
        self._lines = [masked[0].removeprefix("\ufeff"), *masked[1:]] if masked else []
        self._title = slug(stem) if stem in NAMED_BY_TITLE else ""
        self._sections: list[_Section] = []
        self._tags: tuple[str, ...] = ()
        self._at = _day_of(stem)
        self._statements: list[Statement] = []
        self._headings: list[Heading] = []
        self._left_out: list[tuple[int, str]] = []

    def read(self) -> Notes:
        body = self._after_front_matter()
        label: _Label | None = None
        for node in _blocks(body):
            first, last = self._extent(node)
            if node.type == "heading":
                self._enter(node, first)
                label = None
            elif node.type == "paragraph":
                said = _unwrapped(self._lines[first:last])
                if said.endswith((":", "：")) and len(said) <= MAX_LABEL:
                    label = _Label(f"{label.text} {said}" if label else said, label.first if label else first, last)
                else:
                    self._state(said, first, last, "paragraph", label)
                    label = None
            elif node.type in ("bullet_list", "ordered_list"):
                for entry in node.children:
                    self._entry(entry, label)
                label = None
            elif node.type != "hr" and not self._is_comment(node, first, last):
                source = "".join(self._lines[first:last])
                begin = label.first if label else first
                self._state(f"{label.text}\n{source}" if label else source, begin, last, "block")
                label = None
        return Notes(tuple(self._raw), tuple(self._statements), tuple(self._headings), tuple(self._left_out))

    def _is_comment(self, node: SyntaxTreeNode, first: int, last: int) -> bool:
        return node.type == "html_block" and bool(_COMMENT.match("".join(self._lines[first:last])))

    def _extent(self, node: SyntaxTreeNode) -> tuple[int, int]:
        """Return the lines of a block, from 0, the last one excluded and not blank."""
        first, last = node.map or (0, 0)
        while last > first + 1 and not self._lines[last - 1].strip():
            last -= 1
        return first, last

    def _enter(self, node: SyntaxTreeNode, first: int) -> None:
        level = int(node.tag[1:])
        title = _LINK_TARGET.sub("", node.children[0].content if node.children else "")
        day = None
        for named in reversed(dates.find(title)):
            if named.first == named.last:
                day = named.first.isoformat()
                title = f"{title[: named.start]} {title[named.end :]}"
        name = slug(title)
        if level == 1 and name == self._title:
            name = ""
        self._sections = [section for section in self._sections if section.level < level]
        self._sections.append(_Section(level, name, day))
        self._headings.append(Heading(first + 1, name))

    def _entry(self, node: SyntaxTreeNode, label: _Label | None) -> None:
        first, last = self._extent(node)
        marker = marker_of(self._lines[first]) or ""
        own = [
            self._lines[first][len(marker) :],
            *(_dedented(line, len(marker)) for line in self._lines[first + 1 : last]),
        ]
        plain = [child.type for child in node.children] == ["paragraph"]
        self._state(_unwrapped(own) if plain else "".join(own), first, last, "entry", label)

    def _state(self, text: str, first: int, last: int, shape: Shape, label: _Label | None = None) -> None:
        text = "\n".join(line.rstrip() for line in split_lines(text)).strip()
        whole = f"{label.text} {text}" if label else text
        if not text:
            return
        lines = [*range(first, last), *(range(label.first, label.last) if label else ())]
        is_cut = any(n in self._cut for n in lines)
        if (why := _no_statement(whole, is_cut=is_cut)) is not None:
            self._left_out.append((first + 1, why))
            return
        slugs = [section.slug for section in self._sections if section.slug]
        days = [section.at for section in self._sections if section.at]
        kinds: list[MemoryKind] = [KIND_OF_HEADING[name] for name in slugs if name in KIND_OF_HEADING]
        self._statements.append(
            Statement(
                whole,
                first + 1,
                last,
                shape,
                tags=tuple(dict.fromkeys((*slugs, *self._tags)))[:MAX_TAGS],
                at=days[-1] if days else self._at,
                kind=kinds[-1] if kinds else None,
                label=label.text if label else "",
                label_lines=(label.first + 1, label.last) if label else None,
                is_cut=is_cut,
            )
        )

    def _after_front_matter(self) -> str:
        """Return the text for the parser, line by line as the file has it, without the front matter, which is read."""
        end = next(
            (n for n, line in enumerate(self._lines[1:MAX_FRONT_MATTER], 1) if line.strip() in ("---", "...")), 0
        )
        if not end or self._lines[0].strip() != "---":
            return "".join(self._lines)
        try:
            # Every scalar as text: a version is no number, and a day is read where all others are.
            found: Any = yaml.load("".join(self._lines[1:end]), Loader=yaml.BaseLoader)  # Any: any YAML
        except (yaml.YAMLError, RecursionError):
            found = {}
            self._left_out.append((1, "the front matter is no YAML"))
        if not isinstance(found, dict):
            return "".join(self._lines)
        fields = cast("Mapping[object, object]", found)
        self._tags = tuple(filter(None, (slug(tag) for tag in _names(fields.get("tags")))))
        day = next((fields[name] for name in ("date", "created", "updated") if name in fields), None)
        self._at = day if isinstance(day, str) and day.strip() else self._at
        return "\n" * (end + 1) + "".join(self._lines[end + 1 :])


def _blocks(text: str) -> Sequence[SyntaxTreeNode]:
    return SyntaxTreeNode(_parser().parse(text)).children


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])  # what stands within a line does not matter here
    return parser


def _no_statement(text: str, *, is_cut: bool) -> str | None:
    if is_cut and is_all_private(text):
        return "it is private"
    if is_off_the_record(text):
        return "it asks not to be remembered"
    if len(text) > MAX_CONTENT:
        return f"it is {len(text):,} characters; the limit of a memory is {MAX_CONTENT:,}. Divide it"
    if "\0" in text:
        return "it holds a NUL"
    return None


def _day_of(stem: str) -> str | None:
    """Return the day that a file is named after, like 2026-03-01.md."""
    found = dates.find(stem[:10]) if re.match(r"\d{4}-\d\d-\d\d(?!\d)", stem) else []
    return found[0].first.isoformat() if found else None


def _names(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split(",")
    return [each for each in cast("list[object]", value) if isinstance(each, str)] if isinstance(value, list) else []


def _unwrapped(lines: Sequence[str]) -> str:
    """Return a paragraph on one line, but for the breaks that its writer asked for."""
    text = ""
    for line in lines:
        said = line.rstrip("\r\n")
        breaks = said.endswith(("  ", "\\"))
        text += said.strip().removesuffix("\\") if breaks else said.strip()
        text += "\n" if breaks else " "
    if lines and lines[-1].rstrip("\r\n").endswith("\\"):
        text = text.rstrip() + "\\"  # at the end there is nothing to break
    return text.strip()


def _dedented(line: str, width: int) -> str:
    """Return a line without the indentation that makes it a part of its list entry."""
    bare = line.lstrip(" \t")
    if not bare.strip():
        return bare or line
    indent = line[: len(line) - len(bare)].expandtabs(4)
    return indent[width:] + bare


def _masked(lines: list[str]) -> tuple[list[str], set[int]]:
    """Return the lines without what is private, as many as there were, and the numbers of those that lost something."""
    text = "".join(lines)
    if not without_private(text)[1]:
        return lines, set()
    masked: list[str] = []
    cut: set[int] = set()
    for first, last in _runs(lines):
        kept, was_cut = without_private("".join(lines[first:last]))
        if was_cut:
            cut |= set(range(first, last))
        lost = last - first - len(split_lines(kept))
        masked += (
            split_lines(kept + "\n" if lost and kept and not kept.endswith(("\r", "\n")) else kept) + ["\n"] * lost
        )
    return masked, cut


def _runs(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield runs of lines, as short as can be, such that no private part goes on from one to the next."""
    bare = {0x1C: " ", 0x1D: " ", 0x1E: " "}
    marked = "".join(f"\x1e{f'{n:b}'.translate(_BITS)}\x1e{line.translate(bare)}" for n, line in enumerate(lines))
    starts = [int(bits.translate(_DIGITS), 2) for bits in _MARK.findall(without_private(marked)[0])]
    yield from zip(starts, [*starts[1:], len(lines)], strict=True)
