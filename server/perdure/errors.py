"""The failures a caller may see. Every message says what happened and what to do next."""


class PerdureError(Exception):
    """The base of every failure that is written for a model or an operator to read."""


class InvalidInput(PerdureError):
    """An argument or a setting is wrong; the message names it, its value and the right form."""


class NotFound(PerdureError):
    """What was asked for does not exist in this namespace."""


class Refused(PerdureError):
    """The caller may not do this, or the request would break a rule that protects stored bytes."""


class Unproved(PerdureError):
    """A credential that proves nobody. The message is plain ASCII, says why, and quotes nothing of what was sent."""


class Conflict(PerdureError):
    """The stored version is not the expected one; the message names the present version."""


class Unavailable(PerdureError):
    """A part that is needed does not answer now (database, embedder, index); nothing was half done."""


class Interrupted(Unavailable):
    """The database went away or gave up a transaction; nothing of it was stored, and the same call may succeed."""


class Damaged(Unavailable):
    """A part of the database cannot be read; the rest can, and nothing is written until it was looked at."""
