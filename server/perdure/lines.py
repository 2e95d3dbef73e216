"""Lines of a text file, exactly as they are stored, within bounded memory. No I/O of its own."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import BinaryIO

from perdure.errors import InvalidInput

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a file; the fields mean what they mean in FileText."""

    text: str
    first_line: int
    last_line: int
    total_lines: int
    truncated: bool
    notes: tuple[str, ...]


def read_lines(file: BinaryIO, *, offset: int = 0, limit: int | None = None, max_chars: int) -> Lines:
    """Return up to `limit` lines after the first `offset`, cut at the end of a line to fit `max_chars`.

    Lines end with \\n only, and nothing is translated: the text of a whole UTF-8 file, written back, gives the same
    bytes. A single line longer than `max_chars` is cut inside, and a note says so. Reads the file to its end once, in
    pieces; keeps only what is shown. Raises InvalidInput for an offset past the last line.
    """
    if offset < 0 or (limit is not None and limit < 1):
        raise InvalidInput(f"offset is {offset} and limit {limit}; offset counts from 0 and limit from 1.")
    body, total, bom, ended = _scan(file, offset, limit, max_bytes=4 * max_chars + 4)
    if offset and offset >= total:
        raise InvalidInput(f"offset {offset} is past the end: the file has {total} lines. Use a smaller offset.")
    text, valid, cut = _decode(body, max_chars)
    if cut and "\n" in text:
        text = text[: text.rindex("\n") + 1]
    shown = text.count("\n") + (text != "" and not text.endswith("\n"))
    last = offset + shown
    notes = _notes(text, valid, bom=bom and offset == 0)
    if cut and not text.endswith("\n"):
        notes.append(f"Line {last} is longer than {max_chars} characters; only its beginning is shown.")
    elif shown and last == total and not ended:
        notes.append("The last line has no line end.")
    return Lines(text, offset + 1 if shown else 0, last if shown else 0, total, last < total, tuple(notes))


def _scan(file: BinaryIO, offset: int, limit: int | None, *, max_bytes: int) -> tuple[bytes, int, bool, bool]:
    """Return (the wanted lines, at most max_bytes; number of lines; begins with a BOM; ends with a line end)."""
    wanted = bytearray()
    line, ended, bom = 0, True, False
    for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
        if line == 0 and ended:
            bom = chunk.startswith(codecs.BOM_UTF8)
        newlines = chunk.count(b"\n")
        if len(wanted) < max_bytes:
            start = _after(chunk, offset - line, newlines)
            stop = len(chunk) if limit is None else _after(chunk, offset + limit - line, newlines)
            wanted += chunk[start : min(stop, start + max_bytes - len(wanted))]
        line += newlines
        ended = chunk.endswith(b"\n")
    return bytes(wanted), line + (not ended), bom, ended


def _after(chunk: bytes, lines: int, newlines: int) -> int:
    """Return where `lines` more lines have ended in `chunk`, which holds `newlines` ends."""
    if lines <= 0:
        return 0
    return len(chunk) if lines > newlines else len(chunk) - len(chunk.split(b"\n", lines)[-1])


def _decode(body: bytes, max_chars: int) -> tuple[str, bool, bool]:
    """Return (text, was all of it UTF-8, was it cut). The codec keeps a byte order mark as U+FEFF."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(body, final=len(body) <= 4 * max_chars)
    cut = len(text) > max_chars or len(body) > 4 * max_chars
    text = text[:max_chars]
    return text, "\ufffd" not in text or text.encode() == body[: len(text.encode())], cut


def _notes(text: str, valid: bool, *, bom: bool) -> list[str]:
    notes: list[str] = []
    if not valid:
        notes.append("Bytes that are not UTF-8 are shown as U+FFFD; writing this text back would change them.")
    if bom:
        notes.append("The file begins with a byte order mark (U+FEFF).")
    crlf = text.count("\r\n")
    if crlf:
        lone = text.count("\n") - crlf
        notes.append(f"Lines end with CRLF{', some with LF only' if lone else ''}.")
    if text.count("\r") > crlf:
        notes.append("There are carriage returns without a line feed; they do not end a line here.")
    return notes
