"""Every SQL statement: one file per noun. Functions take the open transaction and the namespace first."""

from perdure.store.engine import FileDatabase
from perdure.store.fairlock import FairLock
from perdure.store.opening import look, open_database
from perdure.store.port import EVERY, Database, Reader, Turns, reader_of

__all__ = ["EVERY", "Database", "FairLock", "FileDatabase", "Reader", "Turns", "look", "open_database", "reader_of"]
