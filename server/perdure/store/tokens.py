"""Tokens that open the store over HTTP, by their digests. The secrets themselves are stored nowhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlmodel import Session

from perdure.store.port import Reader, reader_of
from perdure.tables import TokenRow
from perdure.tokens import Token

_TOKEN = "SELECT id, namespace, agent, scopes, created_at, expires_at, revoked_at, used_at, rotated_to FROM token"


def any_of(reader: Reader) -> bool:
    """Return whether a token was ever made here, whatever became of it."""
    return reader.execute("SELECT 1 FROM token LIMIT 1").fetchone() is not None


def by_digest(reader: Reader, digest: str) -> Token | None:
    row = reader.execute(f"{_TOKEN} WHERE digest = ?", (digest,)).fetchone()
    return _token(row) if row else None


def get(reader: Reader, id: str) -> Token | None:
    row = reader.execute(f"{_TOKEN} WHERE id = ?", (id,)).fetchone()
    return _token(row) if row else None


def every(reader: Reader) -> list[Token]:
    """Return all tokens, also those that hold no more, in the order they were made."""
    return [_token(row) for row in reader.execute(f"{_TOKEN} ORDER BY created_at, id")]


def add(tx: Session, token: Token, digest: str) -> None:
    tx.add(
        TokenRow(
            id=token.id,
            digest=digest,
            namespace=token.namespace,
            agent=token.agent,
            scopes=json.dumps(token.scopes),
            created_at=token.created_at,
            expires_at=token.expires_at,
        )
    )


def revoke(tx: Session, id: str, at: str) -> None:
    """Note since when a token is refused; the first time counts."""
    statement = "UPDATE token SET revoked_at = :at WHERE id = :id AND revoked_at IS NULL"
    reader_of(tx).execute(statement, {"id": id, "at": at})


def give_way(tx: Session, id: str, *, to: str, expires_at: str) -> None:
    """Note which token follows one, and until when that one holds."""
    statement = "UPDATE token SET rotated_to = :to, expires_at = :expires_at WHERE id = :id"
    reader_of(tx).execute(statement, {"id": id, "to": to, "expires_at": expires_at})


def used(tx: Session, id: str, at: str) -> None:
    """Note when a token was used last."""
    statement = "UPDATE token SET used_at = :at WHERE id = :id AND (used_at IS NULL OR used_at < :at)"
    reader_of(tx).execute(statement, {"id": id, "at": at})


def _token(row: Sequence[Any]) -> Token:  # Any: the driver's columns
    id, namespace, agent, scopes, *times = row
    return Token(id, namespace, agent, tuple(json.loads(scopes)), *times)
