"""Tokens of a language model by the namespace that they were spent for; what was spent before belongs to none."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.rename_table("spending", "spending_of_all")
    op.create_table(
        "spending",
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("day", "namespace"),
    )
    op.execute("INSERT INTO spending (day, namespace, tokens) SELECT day, '', tokens FROM spending_of_all")
    op.drop_table("spending_of_all")
