"""Live state: every value a key had, one of them in force."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "state",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("replaced_at", sa.String(), nullable=True),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["episode.seq"]),
        sa.PrimaryKeyConstraint("namespace", "key", "version"),
    )
    op.create_index("state_by_episode", "state", ["seq"])
