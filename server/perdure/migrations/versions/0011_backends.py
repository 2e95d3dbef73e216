"""Where the index of each model is, the one that is filled beside it, and what is to be removed of former ones.

Every index of an older store is the one in the data directory.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("model", sa.Column("backend", sa.String(), nullable=True))
    op.add_column("model", sa.Column("next_backend", sa.String(), nullable=True))
    op.add_column("model", sa.Column("next_token", sa.String(), nullable=True))
    op.add_column("model", sa.Column("next_generation", sa.Integer(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE model SET backend = 'chroma' WHERE EXISTS"
        " (SELECT 1 FROM chunk WHERE chunk.model = model.id AND chunk.generation > 0)"
    )
    op.create_table(
        "left_index",
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("model", sa.Integer(), nullable=False),
        sa.Column("backend", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("token"),
    )
