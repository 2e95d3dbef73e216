"""`python -m perdure.document_text KIND SECONDS`: a document on stdin, its text as JSON on stdout.

Started by documents.py for one document, since what is read here may be made to harm its reader.
"""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import sys
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perdure.types import MAX_DOCUMENT_CHARS

if TYPE_CHECKING:
    from docx.table import Table

MAX_MEMORY = 1 << 30
MAX_UNPACKED = 256 << 20  # bytes that the parts of a document may have together
MAX_COLUMNS = 256

Block = tuple[str, str, str]
"""Where it stands, its text, and the ending of a text file that is cut like it."""


def main() -> int:
    kind, seconds = sys.argv[1], int(sys.argv[2])
    os.nice(5)  # questions go first
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # macOS counts what is shared between processes, and has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    data = sys.stdin.buffer.read()
    if kind != ".pdf":
        _check_unpacked(data)
    blocks: list[Block] = []
    left = MAX_DOCUMENT_CHARS
    for place, text, form in READERS[kind](io.BytesIO(data)):
        if text.strip():
            blocks.append((place, text[:left], form))
            left -= len(text)
        if left <= 0:
            break
    sys.stdout.write(json.dumps(blocks))  # which writes what is no Unicode letter as an escape
    return 0


def _check_unpacked(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(part.file_size for part in archive.infolist()) > MAX_UNPACKED:
            raise ValueError("it unpacks to more than a document has")


def _pdf(file: io.BytesIO) -> Iterator[Block]:
    from pypdf import PdfReader

    for number, page in enumerate(PdfReader(file).pages, start=1):
        yield f"page {number}", page.extract_text(), ".txt"


def _docx(file: io.BytesIO) -> Iterator[Block]:
    """Give the whole as Markdown, whose headings say where a part stands: pages are made only when it is printed."""
    from docx import Document
    from docx.text.paragraph import Paragraph

    lines: list[str] = []
    for part in Document(file).iter_inner_content():
        if not isinstance(part, Paragraph):
            lines += [*_table(part), ""]
            continue
        style = (part.style.name if part.style is not None else None) or ""
        level = 1 if style == "Title" else int(style[-1]) if style.startswith("Heading ") and style[-1].isdigit() else 0
        text = " ".join(part.text.split()) if level else part.text
        lines += [f"{'#' * min(level, 6)} {text}" if level and text else text, ""]
    yield "", "\n".join(lines), ".md"


def _table(table: Table) -> list[str]:
    return [" | ".join(" ".join(cell.text.split()) for cell in row.cells) for row in table.rows]


def _xlsx(file: io.BytesIO) -> Iterator[Block]:
    """Give each sheet as CSV whose lines are its rows."""
    from openpyxl import load_workbook

    book = load_workbook(file, read_only=True, data_only=True)
    for sheet in book.worksheets:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for row in sheet.iter_rows(max_col=MAX_COLUMNS, values_only=True):
            cells = ["" if value is None else " ".join(str(value).split()) for value in row]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                writer.writerow(cells)
            else:
                out.write("\n")
            if out.tell() > MAX_DOCUMENT_CHARS:
                break
        yield f"sheet {sheet.title}", out.getvalue(), ".csv"


def _pptx(file: io.BytesIO) -> Iterator[Block]:
    from pptx import Presentation

    for number, slide in enumerate(Presentation(file).slides, start=1):
        texts = list(_texts(slide.shapes))
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            texts.append(notes.text)
        yield f"slide {number}", "\n\n".join(text for text in texts if text.strip()), ".txt"


def _texts(shapes: Any) -> Iterator[str]:  # Any: python-pptx names no common type of slide and group
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _texts(shape.shapes)
        elif shape.has_text_frame:
            yield shape.text_frame.text
        elif getattr(shape, "has_table", False):
            yield "\n".join(" | ".join(cell.text for cell in row.cells) for row in shape.table.rows)


READERS = {".pdf": _pdf, ".docx": _docx, ".xlsx": _xlsx, ".pptx": _pptx}

if __name__ == "__main__":
    sys.exit(main())
