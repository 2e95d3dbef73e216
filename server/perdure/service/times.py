"""Times at the border: what cannot be read in two ways in, one fixed UTC form inside, ISO 8601 with an offset out."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

from perdure.dates import MONTH_NUMBERS, MONTHS
from perdure.errors import InvalidInput

# A year or a week alone is no date: at its end a range would stop days too early.
_ISO_DATE = re.compile(r"[0-9]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-W[0-9]{2}-[0-9]|[0-9]{4}W[0-9]{3}")
# fromisoformat takes any character for the T, even a digit of a Unix time.
_ISO = re.compile(rf"(?:{_ISO_DATE.pattern})(?:[Tt ].+)?")

_YEAR, _DAY = r"(?P<year>[0-9]{4})", r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?"
_MONTH = rf"(?P<month>{'|'.join(sorted(MONTH_NUMBERS, key=len, reverse=True))})\.?"
_CLOCK = (
    r"(?P<hour>[0-9]{1,2})(?P<rest>:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)"
    r"(?: ?(?P<half>[ap])\.?m\.?)?(?: ?(?:(?P<zero>Z|UTC|GMT)|(?P<offset>[+-][0-9]{2}:?[0-9]{2})))?"
)
_WITH_MONTH_NAME = [
    re.compile(form, re.IGNORECASE | re.ASCII)  # ASCII: the long s is no s of August
    for order in ((_MONTH, _DAY, _YEAR), (_DAY, _MONTH, _YEAR), (_YEAR, _MONTH, _DAY))
    for day in (r"(?:, ?|[ -])".join(order),)
    for form in (rf"{day}(?:(?:T|,? (?:at )?){_CLOCK})?", rf"{_CLOCK},? (?:on )?{day}")
]


def now() -> str:
    """Return the present moment in the stored form, which sorts as text."""
    return store(datetime.now(UTC))


def store(moment: datetime) -> str:
    # isoformat keeps four digits of the year, which strftime does not on every platform.
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def parse(value: str, name: str) -> str:
    """Return the stored form of a time or date; without an offset it is UTC, a date its first moment.

    It is ISO 8601, or has its month in letters and a year of four digits, like March 1, 2026 14:30. What can be read in
    two ways, like 03/04/2026, and what is not whole is refused. Raises InvalidInput.
    """
    return store(_read(value, name)[0])


def parse_end(value: str, name: str) -> str:
    """Like parse, for the excluded end of a range: a bare date means the whole of that day is included."""
    moment, whole_day = _read(value, name)
    try:
        return store(moment + timedelta(days=1) if whole_day else moment)
    except OverflowError:
        return store(datetime.max.replace(tzinfo=UTC))


def parse_moment(value: str, name: str) -> str:
    """Like parse, for a moment that is included: a bare date means the last microsecond of that day."""
    moment, whole_day = _read(value, name)
    return store(datetime.combine(moment, time.max, UTC) if whole_day else moment)


def _read(value: str, name: str) -> tuple[datetime, bool]:
    """Return the first moment of what was given, in UTC, and whether it was a bare date."""
    text = value.strip()
    try:
        if not _ISO.fullmatch(text):
            text = _as_iso(text)
        if _ISO_DATE.fullmatch(text):
            return datetime.combine(date.fromisoformat(text), time.min, UTC), True
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)), False
    except (ValueError, OverflowError) as exc:
        raise InvalidInput(
            f"{name} is {value[:60]!r}; give an ISO 8601 time like 2026-03-01T14:30:00+01:00,"
            " or a date like 2026-03-01 or 1 March 2026."
        ) from exc


def _as_iso(text: str) -> str:
    """Return the ISO 8601 form of a time whose month is in letters. Raises ValueError for any other text."""
    found = next((match for form in _WITH_MONTH_NAME if (match := form.fullmatch(text))), None)
    if found is None:
        raise ValueError(text)
    day = f"{found['year']}-{MONTH_NUMBERS[found['month'].lower()]:02}-{found['day']:0>2}"
    if found["hour"] is None:
        return day
    hour = int(found["hour"])
    if found["half"]:
        if not 1 <= hour <= 12:
            raise ValueError(text)
        hour = hour % 12 + (12 if found["half"] in "pP" else 0)
    return f"{day}T{hour:02}{found['rest']}{'Z' if found['zero'] else found['offset'] or ''}"


def show(stored: str) -> str:
    """Return a stored time for a reader: seconds unless it has a finer part, always with the offset."""
    return stored.replace(".000000", "")


def later(stored: str, days: int) -> str:
    return after(stored, timedelta(days=days))


def after(stored: str, time: timedelta) -> str:
    return store(datetime.fromisoformat(stored) + time)


def between(first: str, last: str) -> timedelta:
    """Return the time from one stored time to another."""
    return datetime.fromisoformat(last) - datetime.fromisoformat(first)


def day(stored: str) -> str:
    """Return the day of a stored time, in UTC."""
    return stored[:10]


def date_of(stored: str) -> date:
    return date.fromisoformat(day(stored))


def day_in_words(stored: str) -> str:
    """Return the day as people write it, like 7 May 2023: questions name months by their words."""
    moment = datetime.fromisoformat(stored)
    return f"{moment.day} {MONTHS[moment.month - 1]} {moment.year}"
