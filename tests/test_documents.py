"""PDF, Word, Excel and PowerPoint files: found by page, sheet and slide, and unable to harm the server."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path

import pytest
from docx import Document
from openpyxl import Workbook
from pptx import Presentation
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from conftest import StdioClient
from perdure import documents
from perdure.errors import InvalidInput, Unavailable
from test_files import write
from test_noticing import recall, wait_for


def pdf(*pages: str) -> bytes:
    """Return a PDF with these lines, each on a page of its own."""
    writer = PdfWriter()
    name = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(key): NameObject(value) for key, value in name.items()})
    for text in pages:
        page = writer.add_blank_page(200, 200)
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(content)  # pyright: ignore[reportPrivateUsage] no other way
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def docx() -> bytes:
    document = Document()
    document.add_heading("Garden", 1)
    document.add_paragraph("They grow. " * 70)
    document.add_heading("Pond", 2)
    document.add_paragraph("The newt lives under the lilies. " + "It is wet. " * 60)
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "depth", "two metres"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def xlsx() -> bytes:
    book = Workbook()
    sheet = book.create_sheet("Budget")
    sheet.append(["animal", "cost"])
    for n in range(80):
        sheet.append([f"animal {n}", n])
    sheet.append(["pelican", 4711])
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def pptx() -> bytes:
    deck = Presentation()
    for title, notes in (("Overview", ""), ("The capybara plan", "Say it slowly.")):
        slide = deck.slides.add_slide(deck.slide_layouts[5])
        assert slide.shapes.title is not None
        slide.shapes.title.text = title
        if notes and (frame := slide.notes_slide.notes_text_frame) is not None:
            frame.text = notes
    out = io.BytesIO()
    deck.save(out)
    return out.getvalue()


@pytest.mark.directory(reason="looks into the folder")
def test_documents_are_found_by_what_they_say_with_page_heading_rows_and_slide(
    client: StdioClient, data_dir: Path
) -> None:
    write(client, "first.md", "x")
    files = data_dir / "workspace" / "default" / "files"
    (files / "report.pdf").write_bytes(pdf("Nothing here", "The ibex climbs"))
    (files / "garden.docx").write_bytes(docx())
    (files / "budget.xlsx").write_bytes(xlsx())
    (files / "deck.pptx").write_bytes(pptx())
    (files / "broken.pdf").write_bytes(b"%PDF-1.7\n" + b"\xff" * 100)

    for query, path, place in (
        ("ibex climbs", "report.pdf", "page 2"),
        ("newt lilies", "garden.docx", "Garden > Pond"),
        ("pelican 4711", "budget.xlsx", "sheet Budget, rows "),
        ("capybara slowly", "deck.pptx", "slide 2"),
    ):
        wait_for(lambda query=query, path=path: any(hit["path"] == path for hit in recall(client, query)))
        hit = next(hit for hit in recall(client, query) if hit["path"] == path)
        assert hit["place"].startswith(place), hit
        assert "lines" not in hit
    (sheet,) = [hit for hit in recall(client, "pelican 4711") if "pelican" in hit["content"]]
    assert sheet["place"].endswith("-82 > animal, cost")


def test_a_document_that_takes_too_long_is_given_up_in_time() -> None:
    slow = pdf(*(f"page {n}" for n in range(400)))
    begun = time.monotonic()

    with pytest.raises(InvalidInput, match=r"longer than 0\.01 s"):
        documents.read(slow, ".pdf", deadline_s=0.01)

    assert time.monotonic() - begun < 60


def test_reading_ends_with_the_process_that_asked_for_it() -> None:
    slow = pdf(*(f"page {n}" for n in range(2_000)))

    with pytest.raises(Unavailable):
        documents.read(slow, ".pdf", stopped=lambda: True)


def test_a_document_that_unpacks_to_more_than_it_may_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(5):
            archive.writestr(f"word/{n}.xml", b" " * (60 << 20))

    with pytest.raises(InvalidInput, match="memory"):
        documents.read(out.getvalue(), ".docx")


@pytest.mark.parametrize("kind", [".pdf", ".docx", ".xlsx", ".pptx"])
def test_what_is_no_document_is_refused(kind: str) -> None:
    with pytest.raises(InvalidInput):
        documents.read(b"no document at all", kind)
