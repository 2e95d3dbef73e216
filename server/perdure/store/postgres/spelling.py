"""How Postgres spells what the statements say in the words of SQLite. Each statement is rewritten once. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

_VALUE = r"(\?|:\w+)"
_LISTED = rf"\(SELECT value( AS number)? FROM json_each\({_VALUE}\)\)"
_ELEMENTS = "json_array_elements_text(CAST({} AS json))"


def _list(found: re.Match[str]) -> str:
    # An array, so that an index is asked for each of its members; a subquery may be joined in any order.
    kind = "bigint" if found[2] else "text"
    elements = _ELEMENTS.format(found[3])
    return f"{'<> ALL' if found[1] else '= ANY'} (ARRAY(SELECT CAST(value AS {kind}) FROM {elements} AS listed(value)))"


def _rows(found: re.Match[str]) -> str:
    kind = "CAST(value AS bigint)" if found[1] else 'value COLLATE "C"'
    return f"SELECT {kind} FROM {_ELEMENTS.format(found[2])} AS listed(value)"


_RULES = (
    (re.compile(rf"(?:(NOT )?IN ){_LISTED}"), _list),
    (re.compile(rf"SELECT value( AS number)? FROM json_each\({_VALUE}\)"), _rows),
    # Each that is wanted is looked up by its id: joined in an order of the planner's, which knows nothing of new rows,
    # all of the namespace were compared with all that are wanted.
    (
        re.compile(r"FROM wanted w JOIN (\w+) (\w+) ON \2\.id = w\.id"),
        r"FROM wanted w CROSS JOIN LATERAL (SELECT * FROM \1 \2 WHERE \2.id = w.id OFFSET 0) \2",
    ),
    (re.compile(r" INDEXED BY \w+"), ""),
    # A plus sign keeps SQLite from an index; here the planner is left to choose.
    (re.compile(r"(?<=[\s(])\+(?=[A-Za-z_])"), ""),
    (re.compile(r"json_extract\(([\w.]+), '\$\.(\w+)'\)"), r"(CAST(\1 AS json) ->> '\2')"),
    (re.compile(r"json_group_array\(([\w.]+)\)"), r"coalesce(CAST(json_agg(\1) AS text), '[]')"),
    (re.compile(r"printf\('#%019d', ([\w.]+)\)"), r"'#' || lpad(CAST(\1 AS text), 19, '0')"),
    (re.compile(r"length\(CAST\((\w+) AS BLOB\)\)"), r"octet_length(\1)"),
    (re.compile(rf"\bIS {_VALUE}"), r"IS NOT DISTINCT FROM \1"),
    (re.compile(rf"\bLIMIT {_VALUE}"), r"LIMIT nullif(CAST(\1 AS bigint), -1)"),  # -1 is no limit to SQLite
    (re.compile(r"CREATE INDEX temp\."), "CREATE INDEX "),
    (re.compile(r"\btemp\."), "pg_temp."),
    (re.compile(r"\bINTEGER\b"), "BIGINT"),  # 32 bits are too few for a sequence number
)
_MARKS = re.compile(r"'[^']*'|::|\?|:(?P<name>[A-Za-z_]\w*)|%")


@lru_cache(2_000)
def spelled(statement: str) -> str:
    """Return the statement as psycopg takes it: in the words of Postgres, `?` as %s and `:name` as %(name)s."""
    for pattern, replacement in _RULES:
        statement = pattern.sub(replacement, statement)
    return _MARKS.sub(_mark, statement)


def _mark(found: re.Match[str]) -> str:
    if found["name"]:
        return f"%({found['name']})s"
    return "%s" if found[0] == "?" else found[0].replace("%", "%%")
