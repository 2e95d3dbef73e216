"""The MIME type of a file by its name: the same on every machine, of which each has another list of its own."""

from __future__ import annotations

import functools
from mimetypes import MimeTypes

_OFFICE = "application/vnd.openxmlformats-officedocument"
_TYPES = {
    "text/markdown": "md markdown",
    "text/plain": "txt log rst ini cfg conf diff patch tex bib sql sh bash zsh ps1 bat"
    " c h cc cpp hpp cs go java kt lua php pl r rb rs scala swift ts tsx jsx proto graphql tf",
    "text/csv": "csv",
    "text/html": "html htm",
    "text/javascript": "js mjs",
    "text/vtt": "vtt",
    "text/xml": "xml",
    "application/json": "json",
    "application/jsonl": "jsonl ndjson",
    "application/toml": "toml",
    "application/yaml": "yaml yml",
    "application/x-ipynb+json": "ipynb",
    "application/epub+zip": "epub",
    "application/rtf": "rtf",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}.presentationml.presentation": "pptx",
    "image/webp": "webp",
    "image/avif": "avif",
    "image/heic": "heic",
    "audio/mp4": "m4a",
    "audio/ogg": "ogg opus",
    "audio/flac": "flac",
    "audio/wav": "wav",
    "video/x-matroska": "mkv",
    "video/webm": "webm",
}
_PACKED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


def type_of(path: str) -> str | None:
    """Return the MIME type that a file's ending tells, None for one that tells nothing."""
    found, packed = _known().guess_type(path)
    return _PACKED.get(packed, "application/octet-stream") if packed else found


def is_text(mime_type: str) -> bool:
    """Say whether what has this type may be text, as a file with an ending of images is not meant to be."""
    return not mime_type.startswith(("image/", "audio/", "video/")) or mime_type.endswith("+xml")


@functools.cache
def _known() -> MimeTypes:
    known = MimeTypes()  # what Python itself lists, and no file of the machine
    for mime_type, endings in _TYPES.items():
        for ending in endings.split():
            known.add_type(mime_type, f".{ending}")
    return known
