"""The audit: one row for each change, each bound to the one before it by its hash."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("salt", sa.String(), nullable=True),
        sa.Column("target_sha256", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=True),
        sa.Column("previous", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_namespace", "audit", ["namespace", "id"])
