"""The bytes of files in Postgres, which migrations/postgres.py makes beside the tables; SQLite's files are on disk."""

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Change nothing in a table that both databases have."""
