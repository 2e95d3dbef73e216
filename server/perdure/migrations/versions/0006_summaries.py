"""Summaries of threads, readings of notes, what a language model was used for, and memories that are archived."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "summary",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("thread", sa.String(), nullable=False),
        sa.Column("first_seq", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("writer", sa.String(), nullable=False),
        sa.Column("trust", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("replaced_at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["seq"], ["episode.seq"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("summary_by_thread", "summary", ["namespace", "thread", "seq"])
    op.create_table(
        "reading",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("file", sa.String(), nullable=False),
        sa.Column("reading", sa.Text(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "file"),
    )
    op.create_table(
        "spending",
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("day"),
    )
    op.add_column("memory", sa.Column("archived_at", sa.String(), nullable=True))
