"""The full-text table holds the words of any language: made again through perdure.words."""

from alembic import op

from perdure.words import index_form

revision = "0002"
down_revision = "0001"

BATCH = 500  # rows in memory at once; each holds up to 65,536 characters

# Marks are letters here: the vowel signs of Hindi, Thai and their neighbours stand in the middle of a word.
FULL_TEXT = """
CREATE VIRTUAL TABLE passage_words USING fts5(
    body, context, namespace, tokenize="porter unicode61 remove_diacritics 2 categories 'L* N* Co M*'"
)
"""


def upgrade() -> None:
    op.execute(FULL_TEXT)
    connection = op.get_bind()
    last = -1
    while rows := connection.exec_driver_sql(
        "SELECT rowid, body, context, namespace FROM passage_fts WHERE rowid > ? ORDER BY rowid LIMIT ?", (last, BATCH)
    ).fetchall():
        connection.exec_driver_sql(
            "INSERT INTO passage_words (rowid, body, context, namespace) VALUES (?, ?, ?, ?)",
            [(id, index_form(body), index_form(context), namespace) for id, body, context, namespace in rows],
        )
        last = rows[-1][0]
    op.execute("DROP TABLE passage_fts")
    op.execute("ALTER TABLE passage_words RENAME TO passage_fts")
    # How many passages have a word: a question over very many is looked up by its rarer words first.
    op.execute("CREATE VIRTUAL TABLE passage_vocab USING fts5vocab(passage_fts, row)")


def downgrade() -> None:
    raise NotImplementedError("The texts as they were are in memory, episode and passage.")
