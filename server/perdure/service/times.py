"""Times at the border: ISO 8601 in, one fixed UTC form inside, the shortest exact form with an offset out."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from perdure.errors import InvalidInput


def now() -> str:
    """Return the present moment in the stored form, which sorts as text."""
    return store(datetime.now(UTC))


def store(moment: datetime) -> str:
    # isoformat keeps four digits of the year, which strftime does not on every platform.
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def parse(value: str, name: str) -> str:
    """Return the stored form of an ISO 8601 time or date; without an offset it is UTC. Raises InvalidInput."""
    text = value.strip()
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return store(moment)
    except (ValueError, OverflowError) as exc:
        raise InvalidInput(
            f"{name} is {value[:60]!r}; give an ISO 8601 time like 2026-03-01T14:30:00+01:00 or a date like 2026-03-01."
        ) from exc


def parse_end(value: str, name: str) -> str:
    """Like parse, for the excluded end of a range: a bare date means the whole of that day is included."""
    text = value.strip()
    if len(text) == 10:
        try:
            day = date.fromisoformat(text)
            return store(datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1))
        except OverflowError:
            return store(datetime.max.replace(tzinfo=UTC))
        except ValueError:
            pass  # parse below words the error
    return parse(value, name)


def show(stored: str) -> str:
    """Return a stored time for a reader: seconds unless it has a finer part, always with the offset."""
    return stored.replace(".000000", "")


def later(stored: str, days: int) -> str:
    return store(datetime.fromisoformat(stored) + timedelta(days=days))


def day_in_words(stored: str) -> str:
    """Return the day as people write it, like 7 May 2023: questions name months by their words."""
    moment = datetime.fromisoformat(stored)
    return f"{moment.day} {MONTHS[moment.month - 1]} {moment.year}"


MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
