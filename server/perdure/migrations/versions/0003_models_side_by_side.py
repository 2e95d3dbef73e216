"""Two models' vectors side by side: a chunk belongs to one model, and a model has its own index and its own settings.

Embeddings stay where they are: every vector of an older store was made by the one model that index_state named.
"""

import json
import secrets

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

# How to open the models that need no endpoint, as this step found them; an endpoint's address was not kept before.
KNOWN = {"bge-small-en-v1.5-int8@6c9c6101/cls/q1": "local", "hashing-64/1": "hashing"}

INDEXES = ("chunk_by_passage", "chunk_by_generation", "chunk_pending", "chunk_tombstone")


def upgrade() -> None:
    op.create_table(
        "model",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("dimensions", sa.Integer(), nullable=True),
        sa.Column("settings", sa.Text(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("enlisted", sa.Boolean(), nullable=False),
        sa.Column("retired_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    connection = op.get_bind()
    state = connection.execute(sa.text("SELECT model, dimensions, generation, token FROM index_state")).fetchone()
    name, dimensions, generation, token = state or (None, None, 1, f"g000001-{secrets.token_hex(6)}")
    connection.execute(
        sa.text("INSERT INTO model VALUES (1, :name, :dimensions, :settings, :generation, :token, 1, NULL)"),
        {
            "name": name,
            "dimensions": dimensions,
            "settings": json.dumps({"kind": KNOWN[name]}) if name in KNOWN else None,
            "generation": generation,
            "token": token,
        },
    )
    op.drop_table("index_state")
    op.create_table(
        "index_state",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model", sa.Integer(), nullable=False),
        sa.Column("next_model", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["model"], ["model.id"]),
        sa.ForeignKeyConstraint(["next_model"], ["model.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.execute("INSERT INTO index_state (id, model) VALUES (1, 1)")
    for index in INDEXES:
        op.drop_index(index, "chunk")
    # Neither step rewrites a vector's bytes into another row: 100,000 take seconds, once.
    op.execute("ALTER TABLE chunk DROP COLUMN model")
    op.execute("ALTER TABLE chunk ADD COLUMN model INTEGER NOT NULL DEFAULT 1")
    op.create_index("chunk_by_passage", "chunk", ["passage_id", "model"])
    op.create_index("chunk_by_generation", "chunk", ["model", "namespace", "generation"])
    pending, tombstone = sa.text("embedding IS NULL AND deleted = 0"), sa.text("deleted = 1")
    op.create_index("chunk_pending", "chunk", ["model", "attempts", "id"], sqlite_where=pending)
    op.create_index("chunk_tombstone", "chunk", ["model", "id"], sqlite_where=tombstone)
