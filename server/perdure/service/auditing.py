"""audit: what was changed by whom, and whether the chain of it is whole."""

from __future__ import annotations

from dataclasses import replace

from perdure.errors import InvalidInput
from perdure.service import checks, times
from perdure.service.core import Part
from perdure.store import EVERY, audit
from perdure.store.audit import Noted, Verified
from perdure.types import Principal

MAX_ROWS = 10_000
HASH_LENGTH = 64


class Auditing(Part):
    """The audit, read. It is written with each change, by store/episodes.py."""

    def audit_rows(self, caller: Principal, *, limit: int = 50, all_namespaces: bool = False) -> tuple[Noted, ...]:
        """Return the last rows, the newest first, of the caller's namespace or of all."""
        caller.require("admin")
        checks.between(limit, "limit", 1, MAX_ROWS)
        with self._core.database.read(EVERY if all_namespaces else caller.namespace) as tx:
            found = audit.newest(tx, namespace=None if all_namespaces else caller.namespace, limit=limit)
        return tuple(replace(row, at=times.show(row.at)) for row in found)

    def verify_audit(self, caller: Principal, *, head: str | None = None) -> Verified:
        """Read the whole chain, of all namespaces, and say what of it was changed, removed or put elsewhere.

        `head` is what a former call gave: rows that were cut off at the end, and the chain made anew, show by it.
        """
        caller.require("admin")
        if head is not None and (len(head) != HASH_LENGTH or any(c not in "0123456789abcdef" for c in head)):
            raise InvalidInput(f"head is {head!r}; it is the 64 digits that an earlier `perdure audit verify` printed.")
        with self._core.database.read(EVERY) as tx:
            return audit.verify(tx, head=head)
