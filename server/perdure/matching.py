"""Which paths a glob takes, and which lines of a file hold a text or match an expression. No I/O.

Expressions are those of RE2, which takes time linear in the text whatever it is asked for: no pattern hangs a search.
"""

from __future__ import annotations

import codecs
import functools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

from perdure.errors import InvalidInput

MOST_LINES = 20  # shown of one file
LINE_CHARS = 200  # shown of one line
ASKED_AGAIN = 1 << 15  # paths of which it is kept whether they are hidden: each look and each search asks of all
BEFORE = 60  # of them before what was found, where the line is longer

Found = tuple[tuple[tuple[int, str], ...], bool]
"""((number, text) of the lines, whether there are more)."""
NOTHING: Found = ((), False)


def glob(pattern: str) -> Callable[[str], bool]:
    """Return what says whether a path, relative to where the search begins, is taken.

    `*` and `?` stop at slashes, `**` does not; `[a-z]`, `[!a]` and `{md,txt}` choose. A pattern without a slash is that
    of a name in any folder, with `./` before it that of one in the first folder. Raises InvalidInput.
    """
    expression = _compiled(_translated(_whole(pattern)), f"pattern {pattern[:80]!r}")
    return lambda path: expression.fullmatch(path) is not None


def hider(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return what says whether one of these globs takes a path, or a folder on the way to it; "a/**" takes "a" too.

    Disks differ in which names they take for one, so the case of letters and joiners, which HFS+ ignores, never
    decide. Raises InvalidInput.
    """
    if not patterns:
        return lambda _: False
    try:
        every = "|".join(f"(?:{_translated(_whole(_folded(pattern)))})" for pattern in patterns)
        expression = _compiled(f"(?:{every})(?:/(?s:.*))?", "one of them")
    except InvalidInput as exc:
        raise InvalidInput(f"The setting files.hidden: {exc}") from exc

    @functools.lru_cache(ASKED_AGAIN)
    def hides(path: str) -> bool:
        return expression.fullmatch(f"{_folded(path)}/") is not None

    return hides


def _folded(text: str) -> str:
    if text.isascii():  # as nearly all are; a listing asks this of each file
        return text.lower()
    return unicodedata.normalize("NFC", text.casefold().replace("\u200c", "").replace("\u200d", ""))


def _whole(pattern: str) -> str:
    """Return the glob of whole paths. Raises InvalidInput."""
    given = unicodedata.normalize("NFC", pattern.strip())
    text = given.removeprefix("./")
    if not text or text.startswith("/") or "\\" in text:
        raise InvalidInput(f"pattern is {pattern[:80]!r}; it is relative, like *.md or notes/**/*.txt.")
    if text.endswith("/"):
        text += "**"
    return text if "/" in given else f"**/{text}"


def _translated(pattern: str) -> str:
    made, n, depth = "", 0, 0
    while n < len(pattern):
        rest = pattern[n:]
        if rest.startswith("**/") and (n == 0 or pattern[n - 1] == "/"):
            made, n = made + "(?:[^/]+/)*", n + 3
        elif rest.startswith("**"):
            made, n = made + ".*", n + 2
        elif (chosen := re.match(r"\[(!|\^)?(\]?[^\]/]*)\]", rest)) and chosen[2]:
            inner = re.sub(r"([\\^\[\]&~|])", r"\\\1", chosen[2])
            made, n = made + f"[{'^/' if chosen[1] else ''}{inner}]", n + chosen.end()
        else:
            char = pattern[n]
            n += 1
            if char == "{" and "}" in rest:
                made, depth = made + "(?:", depth + 1
            elif char == "}" and depth:
                made, depth = made + ")", depth - 1
            elif char == "," and depth:
                made += "|"
            else:
                made += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
    return f"(?s){made}{')' * depth}"


def finder(contains: str) -> Callable[[bytes], Found]:
    """Return what finds the lines of a file's bytes: with the text as it stands, or with /expression/ or
    /expression/i, which then ignores case. Raises InvalidInput.

    To an expression neither the CR of a CRLF nor a byte order mark belongs to a line, unless it names the \\r and
    matches nothing else. A text of several lines is found whichever of the two ends them.
    """
    wanted = re.fullmatch(r"/(.+)/(i?)", contains, re.DOTALL)
    if not contains:
        raise InvalidInput("contains is empty. Give a text, or an expression between slashes like /todo|fixme/i.")
    if wanted is None:
        needle = contains.replace("\r\n", "\n").encode()
        longest = max(needle.split(b"\n"), key=len)  # most files have not even that

        def text(data: bytes) -> Found:
            if longest not in data:
                return NOTHING
            data = data if longest == needle else _with_lf(data)
            return _lines(data, _texts(data, needle))

        return text
    flags = "(?mi)" if wanted[2] else "(?m)"
    expression = _compiled(flags + wanted[1], f"contains {contains[:80]!r}", by_line=True)
    names_cr = "\r" in wanted[1] or "\\r" in wanted[1].replace("\\\\", "")

    def matching(data: bytes) -> Found:
        bare = _with_lf(data).removeprefix(codecs.BOM_UTF8)
        if expression.search(bare) is not None:
            return _lines(bare, _matches(bare, expression))
        return _lines(data, _matches(data, expression)) if names_cr else NOTHING

    return matching


def _with_lf(data: bytes) -> bytes:
    # One byte is looked for many times as fast as two; to split and join takes less than replace.
    return b"\n".join(data.split(b"\r\n")) if b"\r" in data else data


def _compiled(pattern: str, what: str, *, by_line: bool = False) -> Any:  # Any: the module has no types
    options = cast("Any", re2).Options()
    options.never_nl = by_line
    options.log_errors = False
    try:
        return cast("Any", re2).compile(pattern, options)
    except cast("Any", re2).error as exc:
        said = exc.args[0].decode(errors="replace") if exc.args and isinstance(exc.args[0], bytes) else str(exc)
        raise InvalidInput(
            f"{what} is no expression of RE2: {said}. There are no backreferences and no look-around in it."
        ) from exc


def _texts(data: bytes, needle: bytes) -> Iterator[int]:
    place = data.find(needle)
    while place >= 0:
        yield place
        end = data.find(b"\n", place)
        place = data.find(needle, end + 1) if end >= 0 else -1


def _matches(data: bytes, expression: Any) -> Iterator[int]:
    begin = 0
    while begin <= len(data) and (found := expression.search(data, begin)) is not None:
        place = found.start()
        if place == len(data) and (not data or data.endswith(b"\n")):
            return  # after the last line
        yield place
        end = data.find(b"\n", place)
        if end < 0:
            return
        begin = end + 1


def _lines(data: bytes, places: Iterator[int]) -> Found:
    found: list[tuple[int, str]] = []
    number, counted = 1, 0
    for place in places:
        if len(found) == MOST_LINES:
            return tuple(found), True
        start = data.rfind(b"\n", 0, place) + 1
        number, counted = number + data.count(b"\n", counted, start), start
        end = data.find(b"\n", place)
        found.append((number, _shown(data, start, end if end >= 0 else len(data), place)))
    return tuple(found), False


def _shown(data: bytes, start: int, end: int, place: int) -> str:
    """Return the line, of a long one what is around the place."""
    cut = place - BEFORE if end - start > LINE_CHARS and place - start > BEFORE else start
    text = data[cut : min(end, cut + 4 * LINE_CHARS)].decode(errors="replace").rstrip("\r")
    shown = text.lstrip("\ufffd")[:LINE_CHARS] if cut > start else text[:LINE_CHARS]
    return f"{'…' if cut > start else ''}{shown}{'…' if len(text) > LINE_CHARS or cut + 4 * LINE_CHARS < end else ''}"
