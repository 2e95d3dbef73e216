"""Every SQL statement: one file per noun. Functions take the open transaction and the namespace first."""

from perdure.store.engine import Database, Reader, reader_of
from perdure.store.fairlock import FairLock

__all__ = ["Database", "FairLock", "Reader", "reader_of"]
