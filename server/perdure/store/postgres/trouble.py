"""What Postgres says, in words that tell what to do. No address and no statement: a model may read them."""

from __future__ import annotations

import psycopg
from psycopg import errors

from perdure.errors import Interrupted, Unavailable
from perdure.store.trouble import Unwritable

AWAY = "The database does not answer ({}). Nothing of this call was stored. Send it again; `perdure doctor` says more."
ABORTED = "Another write came between ({}), and nothing of this call was stored. Send it again."
BUSY = "Others have been writing for {:.0f} s; nothing was stored. Try again, or end the process that does."
UNKNOWN = (
    "The database went away while this was being stored ({}): it may have been stored. Look before you send it again,"
    " or send it with the same idempotency_key."
)
FULL = "The disk of the database is full: nothing of this call was stored. Reading goes on. Free some space there."
STANDBY = "The database takes no writes ({}). Nothing was stored; reading goes on. Point database.url at its primary."
BUG = (errors.ProgrammingError, errors.DataError, errors.IntegrityError, errors.NotSupportedError)


def is_away(exc: BaseException | None) -> bool:
    """Return whether a driver's error says that the connection is gone, or that none can be made."""
    if not isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    state = getattr(exc, "sqlstate", None)
    return state is None or state.startswith(("08", "57P"))


def of_driver(exc: psycopg.Error) -> Unavailable | None:
    """Return the failure that tells what a driver's error means; None where a statement of ours is wrong."""
    match exc:
        case errors.SerializationFailure() | errors.DeadlockDetected():
            return Interrupted(ABORTED.format(_said(exc)))
        case errors.LockNotAvailable():
            return Unavailable(BUSY.format(LOCK_WAIT_S))
        case errors.DiskFull():
            return Unwritable(FULL)
        case errors.ReadOnlySqlTransaction():
            return Unwritable(STANDBY.format(_said(exc)))
        case _ if isinstance(exc, BUG) and not is_away(exc):
            return None
        case _:
            return Interrupted(AWAY.format(_said(exc)))


def _said(exc: psycopg.Error) -> str:
    """Return the server's one line, or what kind of failure it is: the driver's own text names hosts and users."""
    return exc.diag.message_primary or type(exc).__name__


LOCK_WAIT_S = 20.0  # for the writes of others to end, as with SQLite
