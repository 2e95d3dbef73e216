"""The function of Postgres that rates passages by their words, which migrations/postgres.py makes anew after a step."""

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Change nothing in a table that both databases have."""
