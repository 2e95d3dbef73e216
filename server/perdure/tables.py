"""SQLModel tables. Row types never leave store/. Times are text in one fixed UTC form, so that they sort as text."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
    TextClause,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine
from sqlmodel import Field, SQLModel

EMBEDDING_PENDING = text("embedding IS NULL AND deleted = 0")
TOMBSTONE = text("deleted = 1")
EXPIRING = text("expires_at IS NOT NULL")


def _index_of(condition: TextClause, name: str, *columns: str) -> Index:
    """Return an index of the rows alone that meet a condition, in either database."""
    return Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


class Flag(TypeDecorator[bool]):
    """Yes or no, stored as 1 or 0 in either database, so that a statement compares it with a number in both."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:  # Any: SQLAlchemy types it so
        return dialect.type_descriptor(SmallInteger() if dialect.name == "postgresql" else Boolean())

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> Any:
        return int(value) if value is not None and dialect.name == "postgresql" else value

    def process_result_value(self, value: Any | None, dialect: Dialect) -> bool | None:
        return None if value is None else bool(value)


class EpisodeRow(SQLModel, table=True):
    """One thing that happened. `seq` orders all episodes of the store and is never given twice."""

    __tablename__ = "episode"  # pyright: ignore[reportAssignmentType] SQLModel types it as a declared_attr
    __table_args__ = (
        Index("episode_by_namespace", "namespace", "seq"),
        Index("episode_by_thread", "namespace", "thread", "seq"),
        {"sqlite_autoincrement": True},
    )

    seq: int | None = Field(default=None, primary_key=True)
    namespace: str
    kind: str
    at: str
    recorded_at: str
    agent: str
    thread: str | None = None
    role: str | None = None
    name: str | None = None
    content: str | None = Field(default=None, sa_column=Column(Text))
    subject: str | None = None


class MemoryRow(SQLModel, table=True):
    """One durable statement. `fingerprint` is equal for the same text under the same key, and for some others."""

    __tablename__ = "memory"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (
        Index("memory_by_fingerprint", "namespace", "fingerprint"),
        Index("memory_by_key", "namespace", "key"),
    )

    id: str = Field(primary_key=True)
    namespace: str
    seq: int = Field(foreign_key="episode.seq")
    content: str = Field(sa_column=Column(Text, nullable=False))
    fingerprint: str
    key: str | None = None
    kind: str
    tags: str = Field(sa_column=Column(Text, nullable=False))  # JSON list, in the order given
    details: str = Field(sa_column=Column("metadata", Text, nullable=False))  # JSON object of strings
    thread: str | None = None
    source: str
    agent: str
    at: str
    recorded_at: str
    expires_at: str | None = None
    superseded_by: str | None = None
    superseded_at: str | None = None
    forgotten_at: str | None = None
    archived_at: str | None = None
    seen: int = 1


class MemoryTagRow(SQLModel, table=True):
    """A tag of a memory, for filters."""

    __tablename__ = "memory_tag"  # pyright: ignore[reportAssignmentType]

    namespace: str = Field(primary_key=True)
    tag: str = Field(primary_key=True)
    memory_id: str = Field(primary_key=True, foreign_key="memory.id")


class StateRow(SQLModel, table=True):
    """One value a key of the live state had, from `at` until `replaced_at`; `value` is JSON, NULL for a deletion."""

    __tablename__ = "state"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (Index("state_by_episode", "seq"),)

    namespace: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    version: int = Field(primary_key=True)
    value: str | None = Field(default=None, sa_column=Column(Text))
    at: str
    replaced_at: str | None = None
    seq: int = Field(foreign_key="episode.seq")


class SummaryRow(SQLModel, table=True):
    """What the turns `first_seq` to `last_seq` of a thread said, in short, until a summary of more replaced it.

    `seq` is the episode that wrote it; `writer` is how: extractive, model or client. `trust` is its lowest turn's.
    """

    __tablename__ = "summary"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (Index("summary_by_thread", "namespace", "thread", "seq"),)

    seq: int = Field(primary_key=True, foreign_key="episode.seq")
    namespace: str
    thread: str
    first_seq: int
    last_seq: int
    turns: int
    content: str = Field(sa_column=Column(Text, nullable=False))
    writer: str
    trust: str
    at: str
    replaced_at: str | None = None


class ReadingRow(SQLModel, table=True):
    """What a file of notes said when it was read last, as JSON: digests of its statements and what each became."""

    __tablename__ = "reading"  # pyright: ignore[reportAssignmentType]

    namespace: str = Field(primary_key=True)
    file: str = Field(primary_key=True)
    reading: str = Field(sa_column=Column(Text, nullable=False))
    at: str


class SpendingRow(SQLModel, table=True):
    """Tokens of a language model that work in the background used on one day (UTC) for a namespace."""

    __tablename__ = "spending"  # pyright: ignore[reportAssignmentType]

    day: str = Field(primary_key=True)
    namespace: str = Field(primary_key=True)
    tokens: int = 0


class FileRow(SQLModel, table=True):
    """The present version of a file, as last written through Perdure; the bytes lie in the workspace.

    `mtime_us` is FileStat.changed_us of the file once it is in its place, and else a mark of store/files.py.
    """

    __tablename__ = "file"  # pyright: ignore[reportAssignmentType]

    namespace: str = Field(primary_key=True)
    path: str = Field(primary_key=True)
    version: int
    bytes: int
    sha256: str
    mtime_us: int
    modified: str


class FileVersionRow(SQLModel, table=True):
    """One version a file had, from 1 up. `pruned_at` is when its bytes were given up for the limits of versions."""

    __tablename__ = "file_version"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (Index("file_version_by_content", "namespace", "sha256", "pruned_at", "bytes"),)

    namespace: str = Field(primary_key=True)
    path: str = Field(primary_key=True)
    version: int = Field(primary_key=True)
    bytes: int
    sha256: str
    at: str
    seq: int = Field(foreign_key="episode.seq")
    pruned_at: str | None = None


class UnsearchedRow(SQLModel, table=True):
    """A file of which recall finds nothing, and why; derived, made again by looking at the file.

    `bytes` and `mtime_us`, FileStat.changed_us, are those that the file had then, if it has no version.
    """

    __tablename__ = "unsearched"  # pyright: ignore[reportAssignmentType]

    namespace: str = Field(primary_key=True)
    path: str = Field(primary_key=True)
    bytes: int
    mtime_us: int
    why: str


class PassageRow(SQLModel, table=True):
    """What recall returns as one hit: a memory, a turn, or some lines of a file. Repeats what filters ask for.

    `subject` is the memory's id, the episode's seq or the file's path. Of files there is also `text`, since their bytes
    may change under us, and `place`, which names the headings, definitions or pages it stands below. Its words stand in
    the full-text table passage_fts under the same id.
    """

    __tablename__ = "passage"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (
        Index("passage_by_subject", "namespace", "type", "subject"),
        Index("passage_by_thread", "namespace", "thread", "seq"),
        Index("passage_in_reach", "namespace", "hidden", "type", "superseded_at", "expires_at", "at"),
        Index(
            "passage_expiring",
            "namespace",
            "expires_at",
            sqlite_where=text("expires_at IS NOT NULL"),
            postgresql_where=text("expires_at IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True)
    namespace: str
    type: str
    subject: str
    seq: int
    at: str
    thread: str | None = None
    author: str | None = None
    key: str | None = None
    kind: str | None = None
    words: int
    hidden: bool = False
    superseded_at: str | None = None
    expires_at: str | None = None
    version: int | None = None
    first_line: int | None = None
    last_line: int | None = None
    text: str | None = Field(default=None, sa_column=Column(Text))
    place: str | None = None


class InReachRow(SQLModel, table=True):
    """How many passages of each type are neither hidden nor superseded. Triggers keep it, so it is exact and free."""

    __tablename__ = "in_reach"  # pyright: ignore[reportAssignmentType]

    namespace: str = Field(primary_key=True)
    type: str = Field(primary_key=True)
    passages: int


class AuthorRow(SQLModel, table=True):
    """Who spoke in a namespace: a question that names one of them means that one's words."""

    __tablename__ = "author"  # pyright: ignore[reportAssignmentType]

    namespace: str = Field(primary_key=True)
    name: str = Field(primary_key=True)


class ChunkRow(SQLModel, table=True):
    """The piece of a passage that one model embeds: characters `start` to `end` of its text.

    `model` is that of a ModelRow; while a model is built beside the one in force, each piece stands here twice.
    `embedding` is float32, little-endian, of unit length; NULL while pending. `generation` is the newest generation of
    the model's index that holds it, 0 for none. `attempts` counts how often the model refused it, which is not asked
    again before `retry_at`. A deleted chunk stays as a tombstone until the index dropped it.
    """

    __tablename__ = "chunk"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (
        Index("chunk_by_passage", "passage_id", "model"),
        Index("chunk_by_generation", "model", "namespace", "generation"),
        Index(
            "chunk_pending",
            "model",
            "attempts",
            "id",
            sqlite_where=EMBEDDING_PENDING,
            postgresql_where=EMBEDDING_PENDING,
        ),
        _index_of(TOMBSTONE, "chunk_tombstone", "model", "id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True)
    namespace: str
    passage_id: int | None = None
    start: int
    end: int
    model: int = Field(sa_column=Column(Integer, nullable=False, server_default="1"))
    embedding: bytes | None = Field(default=None, sa_column=Column(LargeBinary))
    generation: int = 0
    attempts: int = 0
    retry_at: str | None = None
    deleted: bool = False


class IdempotencyRow(SQLModel, table=True):
    """The first receipt given for a key, and what was asked then."""

    __tablename__ = "idempotency"  # pyright: ignore[reportAssignmentType]

    namespace: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    tool: str
    request: str  # SHA-256 of the arguments
    receipt: str = Field(sa_column=Column(Text, nullable=False))  # JSON
    at: str


class TokenRow(SQLModel, table=True):
    """What opens the store over HTTP: the digest of a token, whom it proves, and until when."""

    __tablename__ = "token"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (Index("token_by_digest", "digest", unique=True),)

    id: str = Field(primary_key=True)
    digest: str  # SHA-256 of the token
    namespace: str
    agent: str
    scopes: str = Field(sa_column=Column(Text, nullable=False))  # JSON list
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None
    used_at: str | None = None
    rotated_to: str | None = None


class AuditRow(SQLModel, table=True):
    """One change: who made it, with which tool, of what. `hash` is over that of the row before and the rest.

    `target` is an id, a key, a thread or a path, never what was said. The chain holds `target_sha256`, over `salt` and
    `target`: an erasure takes both away, and the chain stays whole. `seq` is the episode that tells of it, if any.
    """

    __tablename__ = "audit"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (Index("audit_by_namespace", "namespace", "id"), {"sqlite_autoincrement": True})

    id: int | None = Field(default=None, primary_key=True)
    at: str
    namespace: str
    agent: str
    token: str | None = None
    tool: str
    target: str | None = Field(default=None, sa_column=Column(Text))
    salt: str | None = None
    target_sha256: str
    outcome: str
    seq: int | None = None
    previous: str
    hash: str


class ModelRow(SQLModel, table=True):
    """What makes vectors. Those of two rows are never compared, even if both bear the same name.

    `name` is the embedder's id, NULL until the first embedder of the store said it; `dimensions` is NULL until the
    first vector. `settings` is JSON that says how to open it again, without secrets. `generation` and `token` are those
    of its index; `backend` is what that one is called, NULL until somebody said it. While another index is filled
    beside it, `next_backend` and `next_token` are of that one; `next_generation` is the highest number such a one had.
    `enlisted` says that each piece stands in chunk for it, `retired_at` since when it is out of use.
    """

    __tablename__ = "model"  # pyright: ignore[reportAssignmentType]
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: int | None = Field(default=None, primary_key=True)
    name: str | None = None
    dimensions: int | None = None
    settings: str | None = Field(default=None, sa_column=Column(Text))
    generation: int = 1
    token: str
    enlisted: bool = False
    retired_at: str | None = None
    backend: str | None = None
    next_backend: str | None = None
    next_token: str | None = None
    next_generation: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))


class LeftIndexRow(SQLModel, table=True):
    """An index out of use whose vectors are still to be removed from where it is."""

    __tablename__ = "left_index"  # pyright: ignore[reportAssignmentType]

    token: str = Field(primary_key=True)
    model: int
    backend: str
    at: str


class IndexStateRow(SQLModel, table=True):
    """Which vectors are in force: the model that answers, and the one that is built beside it, if any."""

    __tablename__ = "index_state"  # pyright: ignore[reportAssignmentType]

    id: int = Field(default=1, primary_key=True)
    model: int = Field(foreign_key="model.id")
    next_model: int | None = Field(default=None, foreign_key="model.id")


for _table in SQLModel.metadata.tables.values():
    for _column in _table.columns:
        if isinstance(_column.type, Boolean):
            _column.type = Flag()
        elif isinstance(_column.type, Integer):  # which has 32 bits in Postgres, and as many as it takes in SQLite
            _column.type = BigInteger().with_variant(Integer(), "sqlite")
