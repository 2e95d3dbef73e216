"""The lines of an export: what each holds, and what it must hold to. docs/export.md is the same for people."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from perdure import paths
from perdure.errors import InvalidInput, PerdureError
from perdure.service.compaction import WRITERS
from perdure.service.history import KINDS
from perdure.settings import NAME, SPACE
from perdure.types import MAX_FILE_BYTES, MAX_TURN, MEMORY_KINDS, SOURCES

FORMAT = 1
MAX_TEXT_BYTES = 1024 * 1024  # of a file whose content is given as text; above that Base64 is the shorter one at worst
MAX_LINE_BYTES = 4 * MAX_FILE_BYTES // 3 + 64 * 1024

T = TypeVar("T", bound=str)


def _whole(value: str) -> str:
    if "\0" in value:
        raise ValueError("it holds a NUL")
    return value


def _time(value: str) -> str:
    if datetime.fromisoformat(value).isoformat(timespec="microseconds") != value or not value.endswith("+00:00"):
        raise ValueError("a time is written like 2026-03-01T14:30:00.000000+00:00")
    return value


def _path(value: str) -> str:
    try:
        normal = paths.normalize(value)
    except PerdureError as exc:
        raise ValueError(str(exc)) from exc
    if normal != value:
        raise ValueError(f"the path is written as {normal!r}")
    return value


def _json(value: str) -> str:
    json.loads(value)
    return value


def _one_of(allowed: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"it is none of {', '.join(allowed)}")
        return value

    return AfterValidator(check)


Text = Annotated[str, Field(max_length=MAX_TURN), AfterValidator(_whole)]
JsonText = Annotated[str, Field(max_length=MAX_TURN), AfterValidator(_json)]
Time = Annotated[str, AfterValidator(_time)]
FilePath = Annotated[str, AfterValidator(_path)]
Name = Annotated[str, Field(pattern=NAME)]
Space = Annotated[str, Field(pattern=SPACE)]
MemoryId = Annotated[str, Field(pattern=r"^mem_[a-z0-9]{1,40}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
Number = Annotated[int, Field(ge=1, lt=2**62)]


class Line(BaseModel):
    """One line. Its fields, in this order, are those of the JSON object; the ones that are null are left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def columns(cls, *but: str) -> list[str]:
        return [name for name in cls.model_fields if name not in ("type", *but)]


class HeaderLine(Line):
    type: Literal["perdure-export"] = "perdure-export"
    format: int


class NamespaceLine(Line):
    type: Literal["namespace"] = "namespace"
    namespace: Space


class EpisodeLine(Line):
    type: Literal["episode"] = "episode"
    seq: Number
    kind: Annotated[str, _one_of(KINDS)]
    at: Time
    recorded_at: Time
    agent: Name
    thread: Text | None = None
    role: Text | None = None
    name: Text | None = None
    content: Text | None = None
    subject: Text | None = None


class MemoryLine(Line):
    type: Literal["memory"] = "memory"
    id: MemoryId
    seq: Number
    content: Text
    key: Text | None = None
    kind: Annotated[str, _one_of(MEMORY_KINDS)]
    tags: list[Text]
    metadata: dict[Text, Text]
    thread: Text | None = None
    source: Annotated[str, _one_of(SOURCES)]
    agent: Name
    at: Time
    recorded_at: Time
    expires_at: Time | None = None
    superseded_by: MemoryId | None = None
    superseded_at: Time | None = None
    forgotten_at: Time | None = None
    archived_at: Time | None = None
    seen: Number


class StateLine(Line):
    """One value a key of the live state had, as the text of its JSON; without one the key was deleted."""

    type: Literal["state"] = "state"
    key: Text
    version: Number
    seq: Number
    at: Time
    value: JsonText | None = None


class SummaryLine(Line):
    """What the turns `first_seq` to `last_seq` of a thread said, in short; replaced by a later one at `replaced_at`."""

    type: Literal["summary"] = "summary"
    seq: Number
    thread: Text
    first_seq: Number
    last_seq: Number
    turns: Number
    content: Text
    writer: Annotated[str, _one_of(WRITERS)]
    trust: Annotated[str, _one_of(SOURCES)]
    at: Time
    replaced_at: Time | None = None


class VersionLine(Line):
    """One version of a file; without `text` and `base64` its bytes were lost before the export, or were given up at
    `pruned_at`.
    """

    type: Literal["file_version"] = "file_version"
    path: FilePath
    version: Number
    seq: Number
    at: Time
    bytes: Size
    sha256: Digest
    pruned_at: Time | None = None
    text: str | None = None
    base64: str | None = None


class FileLine(Line):
    """What stood at a path: its last version, nothing, or what was put there from outside, which the line carries."""

    type: Literal["file"] = "file"
    path: FilePath
    version: Annotated[int, Field(ge=0, lt=2**62)]
    placed: Literal["version", "outside", "nothing"]
    bytes: Size | None = None
    sha256: Digest | None = None
    text: str | None = None
    base64: str | None = None


def content_of(line: VersionLine | FileLine) -> bytes | None:
    """Return the bytes the line carries, None if it carries none. Raises InvalidInput unless they are whole."""
    if line.text is not None:
        data = line.text.encode()
    elif line.base64 is not None:
        try:
            data = base64.b64decode(line.base64, validate=True)
        except binascii.Error as exc:
            raise InvalidInput(f"base64 cannot be read: {exc}.") from exc
    else:
        return None
    if (len(data), hashlib.sha256(data).hexdigest()) != (line.bytes, line.sha256):
        raise InvalidInput("the content has another size or SHA-256 than the line says.")
    return data


class ReadingLine(Line):
    type: Literal["reading"] = "reading"
    file: Text
    reading: Text
    at: Time


class ReceiptLine(Line):
    type: Literal["receipt"] = "receipt"
    key: Text
    tool: Text
    request: Text
    receipt: Text
    at: Time


class EndLine(Line):
    type: Literal["end"] = "end"
    counts: dict[str, int]
    sha256: Digest


AnyLine = Annotated[
    HeaderLine
    | NamespaceLine
    | EpisodeLine
    | MemoryLine
    | StateLine
    | SummaryLine
    | VersionLine
    | FileLine
    | ReadingLine
    | ReceiptLine
    | EndLine,
    Field(discriminator="type"),
]
_ANY: TypeAdapter[AnyLine] = TypeAdapter(AnyLine)


def read_line(line: bytes) -> AnyLine:
    """Return what a line says. Raises InvalidInput with the field that is wrong."""
    try:
        return _ANY.validate_json(line)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{field}: {first['msg']}." if field else f"{first['msg']}.") from exc


def as_line(type: str, fields: dict[str, Any]) -> bytes:  # Any: JSON values
    """Return the line of these fields. What a damaged row holds is written as it is; reading it is what is strict."""
    held = {"type": type} | {name: value for name, value in fields.items() if value is not None}
    return json.dumps(held, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"


def bytes_fields(data: bytes) -> dict[str, Any]:  # Any: JSON values
    """Return the fields that carry the bytes of a file: as text where they are text, else in Base64."""
    size = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if len(data) <= MAX_TEXT_BYTES and b"\0" not in data:
        try:
            return size | {"text": data.decode()}
        except UnicodeDecodeError:
            pass
    return size | {"base64": base64.b64encode(data).decode()}
