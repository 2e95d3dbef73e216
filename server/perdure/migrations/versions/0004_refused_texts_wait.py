"""A text that its model refuses waits until a time of its own before it is tried again."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("chunk", sa.Column("retry_at", sa.String(), nullable=True))
