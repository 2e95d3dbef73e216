"""The first schema: history, memories, files, what recall searches, and the full-text table beside it."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# porter unicode61: stemming alone is worth five points of recall@10 on conversations (docs/design.md, recall).
FULL_TEXT = """
CREATE VIRTUAL TABLE passage_fts USING fts5(body, context, namespace, tokenize='porter unicode61 remove_diacritics 2')
"""

# Counting what is in reach would take as long as finding the best of it.
COUNTS = (
    """
    CREATE TRIGGER passage_added AFTER INSERT ON passage
    WHEN new.hidden = 0 AND new.superseded_at IS NULL BEGIN
        INSERT INTO in_reach (namespace, type, passages) VALUES (new.namespace, new.type, 1)
        ON CONFLICT (namespace, type) DO UPDATE SET passages = passages + 1;
    END
    """,
    """
    CREATE TRIGGER passage_removed AFTER DELETE ON passage
    WHEN old.hidden = 0 AND old.superseded_at IS NULL BEGIN
        UPDATE in_reach SET passages = passages - 1 WHERE namespace = old.namespace AND type = old.type;
    END
    """,
    """
    CREATE TRIGGER passage_changed AFTER UPDATE OF hidden, superseded_at ON passage BEGIN
        UPDATE in_reach
        SET passages = passages + (new.hidden = 0 AND new.superseded_at IS NULL)
                                - (old.hidden = 0 AND old.superseded_at IS NULL)
        WHERE namespace = new.namespace AND type = new.type;
    END
    """,
)


def upgrade() -> None:
    op.create_table(
        "author",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name"),
    )
    op.create_table(
        "chunk",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("passage_id", sa.Integer(), nullable=True),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("end", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("embedding", sa.LargeBinary(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("chunk_by_generation", "chunk", ["namespace", "generation"], unique=False)
    op.create_index("chunk_by_passage", "chunk", ["passage_id"], unique=False)
    op.create_index(
        "chunk_pending", "chunk", ["id"], unique=False, sqlite_where=sa.text("embedding IS NULL AND deleted = 0")
    )
    op.create_index("chunk_tombstone", "chunk", ["id"], unique=False, sqlite_where=sa.text("deleted = 1"))
    op.create_table(
        "episode",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("recorded_at", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("thread", sa.String(), nullable=True),
        sa.Column("role", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("content", sa.Text(), nullable=True),
        sa.Column("subject", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("episode_by_namespace", "episode", ["namespace", "seq"], unique=False)
    op.create_index("episode_by_thread", "episode", ["namespace", "thread", "seq"], unique=False)
    op.create_table(
        "file",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("mtime_us", sa.Integer(), nullable=False),
        sa.Column("modified", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "path"),
    )
    op.create_table(
        "idempotency",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("request", sa.String(), nullable=False),
        sa.Column("receipt", sa.Text(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "key"),
    )
    op.create_table(
        "index_state",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("dimensions", sa.Integer(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "passage",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("thread", sa.String(), nullable=True),
        sa.Column("author", sa.String(), nullable=True),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=True),
        sa.Column("words", sa.Integer(), nullable=False),
        sa.Column("hidden", sa.Boolean(), nullable=False),
        sa.Column("superseded_at", sa.String(), nullable=True),
        sa.Column("expires_at", sa.String(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("first_line", sa.Integer(), nullable=True),
        sa.Column("last_line", sa.Integer(), nullable=True),
        sa.Column("text", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("passage_by_subject", "passage", ["namespace", "type", "subject"], unique=False)
    op.create_index("passage_by_thread", "passage", ["namespace", "thread", "seq"], unique=False)
    op.create_index(
        "passage_in_reach",
        "passage",
        ["namespace", "hidden", "type", "superseded_at", "expires_at", "at"],
        unique=False,
    )
    op.create_table(
        "file_version",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["seq"],
            ["episode.seq"],
        ),
        sa.PrimaryKeyConstraint("namespace", "path", "version"),
    )
    op.create_table(
        "memory",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("thread", sa.String(), nullable=True),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("recorded_at", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=True),
        sa.Column("superseded_by", sa.String(), nullable=True),
        sa.Column("superseded_at", sa.String(), nullable=True),
        sa.Column("forgotten_at", sa.String(), nullable=True),
        sa.Column("seen", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["seq"],
            ["episode.seq"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("memory_by_fingerprint", "memory", ["namespace", "fingerprint"], unique=False)
    op.create_index("memory_by_key", "memory", ["namespace", "key"], unique=False)
    op.create_table(
        "memory_tag",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("tag", sa.String(), nullable=False),
        sa.Column("memory_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["memory_id"],
            ["memory.id"],
        ),
        sa.PrimaryKeyConstraint("namespace", "tag", "memory_id"),
    )

    op.create_index(
        "passage_expiring",
        "passage",
        ["namespace", "expires_at"],
        unique=False,
        sqlite_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_table(
        "in_reach",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("passages", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "type"),
    )
    op.execute(FULL_TEXT)
    for trigger in COUNTS:
        op.execute(trigger)


def downgrade() -> None:
    op.execute("DROP TABLE passage_fts")
    for table in (
        "memory_tag",
        "memory",
        "file_version",
        "file",
        "chunk",
        "passage",
        "idempotency",
        "author",
        "in_reach",
        "index_state",
        "episode",
    ):
        op.drop_table(table)
