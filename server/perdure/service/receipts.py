"""Idempotency: the same key again returns the first receipt and writes nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from sqlmodel import Session

from perdure.errors import Conflict
from perdure.service import checks
from perdure.store import Database, Reader, episodes
from perdure.tables import IdempotencyRow
from perdure.types import Appended, FileDeleted, FileEdited, FileReceipt, Forgotten, Receipt, StateReceipt

Written = Receipt | Appended | FileReceipt | FileEdited | FileDeleted | Forgotten | StateReceipt

MAX_IDEMPOTENCY_KEY = 200
OTHER_WRITE = (
    "This idempotency_key was used before for another write, whose receipt this is; nothing was written now. Use a new"
    " key for a new write."
)


class Once:
    """One write under an optional idempotency key: look for its first receipt, then keep the new one."""

    def __init__(self, namespace: str, key: str | None, tool: str, *request: object) -> None:
        self.namespace = namespace
        self._key = checks.label(key, "idempotency_key", limit=MAX_IDEMPOTENCY_KEY)
        self._tool = tool
        self._request = ""
        if self._key is not None:
            self._request = hashlib.sha256(json.dumps([tool, *request], sort_keys=True).encode()).hexdigest()

    def before(self, database: Database) -> dict[str, Any] | None:
        """Return what `first` does, of a transaction of its own; none is needed without a key."""
        if self._key is None:
            return None
        with database.read(self.namespace) as reader:
            return self.first(reader)

    def first(self, reader: Reader) -> dict[str, Any] | None:  # Any: the fields of whichever receipt it was
        """Return the first receipt's fields, with a note if it is that of another write with the same tool.

        Raises Conflict if the key was used with another tool.
        """
        if self._key is None or (found := episodes.first_receipt(reader, self.namespace, self._key)) is None:
            return None
        tool, request, receipt = found
        if tool != self._tool:
            raise Conflict(f"idempotency_key {self._key!r} was used with {tool}. Use a new key for a new write.")
        fields: dict[str, Any] = json.loads(receipt)
        return fields if request == self._request else {**fields, "note": OTHER_WRITE}

    def keep(self, tx: Session, receipt: Written, at: str) -> None:
        if self._key is None:
            return
        episodes.keep_receipt(
            tx,
            IdempotencyRow(
                namespace=self.namespace,
                key=self._key,
                tool=self._tool,
                request=self._request,
                receipt=json.dumps({name: value for name, value in asdict(receipt).items() if name != "note"}),
                at=at,
            ),
        )
