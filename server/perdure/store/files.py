"""Files: the present version of each path, and every version it had."""

from __future__ import annotations

from sqlmodel import Session, col, select

from perdure.tables import FileRow, FileVersionRow


def get(tx: Session, namespace: str, path: str) -> FileRow | None:
    return tx.get(FileRow, (namespace, path))


def get_version(tx: Session, namespace: str, path: str, version: int) -> FileVersionRow | None:
    return tx.get(FileVersionRow, (namespace, path, version))


def put(tx: Session, row: FileRow, *, seq: int) -> None:
    """Make `row` the present version and note it among the versions."""
    tx.merge(row)
    tx.add(
        FileVersionRow(
            namespace=row.namespace,
            path=row.path,
            version=row.version,
            bytes=row.bytes,
            sha256=row.sha256,
            at=row.modified,
            seq=seq,
        )
    )
    tx.flush()


def all_files(tx: Session, namespace: str) -> list[FileRow]:
    return list(tx.exec(select(FileRow).where(FileRow.namespace == namespace).order_by(col(FileRow.path))))
