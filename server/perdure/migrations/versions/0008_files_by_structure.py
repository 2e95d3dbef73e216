"""What a part of a file stands below, and which files recall does not search and why."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("passage", sa.Column("place", sa.String(), nullable=True))
    op.create_table(
        "unsearched",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("mtime_us", sa.Integer(), nullable=False),
        sa.Column("why", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "path"),
    )
