"""Versions of files whose bytes were given up, and which versions have the same bytes."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("file_version", sa.Column("pruned_at", sa.String(), nullable=True))
    op.create_index("file_version_by_content", "file_version", ["namespace", "sha256", "pruned_at", "bytes"])
