"""What MCP, CLI and console all call. Synchronous; the caller comes first; every write returns after its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.types import (
    Appended,
    FileInfo,
    FileReceipt,
    FileText,
    Forgotten,
    HistoryPage,
    Principal,
    Recall,
    Receipt,
    Turn,
)


class Service:
    """Memories, history and files of every namespace in one data directory. Safe to call from many threads."""

    def remember(
        self,
        caller: Principal,
        content: str,
        *,
        key: str | None = None,
        kind: str = "note",
        tags: Sequence[str] = (),
        thread: str | None = None,
        source: str = "agent",
        at: str | None = None,
        expires_at: str | None = None,
        supersedes: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt: ...

    def recall(
        self,
        caller: Principal,
        query: str,
        *,
        limit: int = 10,
        max_chars: int = 8000,
        include: Sequence[str] = ("memories", "history", "files"),
        tags: Sequence[str] = (),
        kind: str | None = None,
        thread: str | None = None,
        key: str | None = None,
        since: str | None = None,
        until: str | None = None,
        as_of: str | None = None,
        min_score: float | None = None,
        explain: bool = False,
        cursor: str | None = None,
    ) -> Recall: ...

    def forget(
        self, caller: Principal, *, id: str | None = None, key: str | None = None, reason: str | None = None, undo: bool = False
    ) -> Forgotten: ...

    def append_history(
        self, caller: Principal, thread: str, turns: Sequence[Turn], *, idempotency_key: str | None = None
    ) -> Appended: ...

    def list_history(
        self,
        caller: Principal,
        *,
        thread: str | None = None,
        kinds: Sequence[str] = (),
        since: str | None = None,
        until: str | None = None,
        order: str = "newest",
        limit: int = 50,
        max_chars: int = 16000,
        cursor: str | None = None,
    ) -> HistoryPage: ...

    def read_file(
        self, caller: Principal, path: str, *, offset: int = 0, limit: int | None = None, version: int | None = None
    ) -> FileText: ...

    def write_file(
        self,
        caller: Principal,
        path: str,
        content: str,
        *,
        mode: str = "write",
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> FileReceipt: ...

    def list_files(self, caller: Principal) -> list[FileInfo]: ...

    def status(self, caller: Principal) -> dict[str, Any]: ...

    def reindex(self, caller: Principal, progress: Any = None) -> dict[str, Any]: ...

    def close(self) -> None: ...
