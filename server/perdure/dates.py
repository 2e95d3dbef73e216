"""Dates in words: which days a text names, by the calendar or from the day it is said. English. Pure.

Ready parsers were measured and do worse: dateparser takes "we" for Wednesday and 2 to 50 ms a question, parsedatetime
and ctparse read "mail-relay" or "version 1.2" as days, and none gives the span that "last month" means.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

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
MONTH_NUMBERS = {name[:n].lower(): m for m, name in enumerate(MONTHS, 1) for n in (3, len(name))} | {"sept": 9}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS = {"a": 1, "an": 1, "a couple of": 2, "a few": 3} | {
    word: n for n, word in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 1)
}

Days = tuple[date, date]  # the first and the last, both meant


@dataclass(frozen=True, slots=True)
class Named:
    """Days that a text names, and where and in which words: "before March 2026", in lower case."""

    start: int
    end: int
    words: str
    first: date
    last: date


_LEAD = re.compile(
    r"\b(?:back |as )?(?:on|of|at|in|by|around|during|until|at the end of|before|prior to|after|since|from|between|and|"
    r"to|over|within)\s+(?:the )?$|(?<!\w)the $",
    re.IGNORECASE,
)
# A month or a year alone needs one of these: May is a name as well, and 2000 a number.
_WITHIN = r"(?:in|during|since|until|before|after|by|as of|at the end of)\s+"
_MONTH = rf"(?P<month>{'|'.join(sorted(MONTH_NUMBERS, key=len, reverse=True))})\b\.?"
_WEEKDAY = rf"(?P<weekday>{'|'.join(WEEKDAYS)})"
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})"
_COUNT = rf"(?P<count>\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_UNIT = r"(?P<unit>day|week|month|year)s?"

_SAYS_DATE = re.compile(rf"\b(?:{'|'.join(MONTHS)}|(?:19|20)\d\d|\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}})\b")
_SAYS_CLOCK = re.compile(
    rf"\b(?:{'|'.join(f'{day}s?' for day in WEEKDAYS)}|\d{{1,2}}[:.]\d\d|(?:at|from|until|by) \d{{1,2}}|"
    r"\d{1,2} ?[ap]\.?m|noon|midnight)\b",
    re.IGNORECASE,
)

_MAYBE = re.compile(
    r"\d|\b(?:yesterday|today|morning|ago|last|past|previous|this|on the first|weekend|"
    rf"{'|'.join((*MONTH_NUMBERS, *WEEKDAYS))})\b",
    re.IGNORECASE,
)


def _form(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b{pattern}\b", re.IGNORECASE | re.ASCII)  # ASCII: the long s is no s of August


_QUARTER = r"q(?P<quarter>[1-4])"
_CALENDAR = (
    _form(rf"{_QUARTER}(?: of)? {_YEAR}"),
    _form(rf"{_YEAR}(?P<mark>[-/])(?P<number>\d\d)(?:(?P=mark)(?P<day>\d\d))?(?![-/]?\d)"),
    _form(rf"{_DAY}(?: of)? {_MONTH},? {_YEAR}"),
    _form(rf"{_MONTH} {_DAY},? {_YEAR}"),
    _form(rf"{_MONTH},? {_YEAR}"),
    _form(rf"(?<![\d.])(?P<day>\d{{1,2}})(?P<mark>[./-])(?P<number>\d{{1,2}})(?P=mark){_YEAR}(?![.\d])"),
)
_PAST = (
    _form(r"(?P<before>day before )?yesterday"),
    _form(rf"{_COUNT} {_UNIT} ago"),
    _form(rf"(?:last|past|previous)(?: {_COUNT}|(?<=past)) {_UNIT}(?! of)"),
    _form(rf"(?:last|previous) (?:{_WEEKDAY}|{_MONTH}|(?P<span>night|weekend|week|month|year))(?! of)"),
)
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_SINCE_THEN = r"(?:in|on|by|from|starting|beginning|after|until|as of|effective|of)(?: the)?"
_AHEAD = (
    _form(r"tomorrow"),
    _form(rf"in {_COUNT} {_UNIT}"),
    _form(rf"next (?:{_WEEKDAY}|{_MONTH}|(?P<span>week|month|quarter|year|{'|'.join(_SEASONS)}))"),
    _form(rf"{_DAY}(?: of)? {_MONTH}"),
    _form(rf"{_MONTH} {_DAY}"),
    _form(rf"{_SINCE_THEN} {_MONTH}(?! \d)"),
    _form(rf"{_SINCE_THEN} (?P<year>20\d\d)(?![-/.,]\d)"),
)

# What these mean in another tense lies ahead, or comes again and again.
_IF_PAST = (
    _form(rf"{_DAY}(?: of)? {_MONTH}"),
    _form(rf"{_MONTH} {_DAY}"),
    _form(r"(?:today|this morning)"),
    _form(r"this (?P<span>week|month|year)"),
    _form(rf"(?<=on |ce |il ){_WEEKDAY}"),  # on, since, until
    _form(r"(?<=on the )(?:(?P<day>\d{1,2})(?:st|nd|rd|th)|(?P<first>first))(?=\s*(?:[?.!,;]|$))"),
    _form(r"(?<=(?:at|on) the )(?P<span>weekend)"),
    _form(rf"(?:in|during|since|before|after) {_QUARTER}"),
    _form(rf"{_WITHIN}{_MONTH}(?! \d)"),
    _form(rf"{_WITHIN}(?P<year>(?:19|20)\d\d)(?![-/.,]\d)"),
)


def find(text: str, today: date | None = None, *, past: bool = False) -> list[Named]:
    """Return the days that the text names, in order; those counted from `today` if it is given.

    `past` says that the text speaks of the past: then "in March", "on Monday" and "this year" mean days up to today.
    03/04/2026 is the third of April, as most of the world writes it, unless that is impossible.
    """
    found: list[Named] = []
    if not _MAYBE.search(text):
        return found  # at once for most texts
    _add(found, text, _CALENDAR, None)
    if today is not None:
        # "Between May 11 and May 15 2023": the day without a year is the last of its name before the one that has it.
        until = max((each.last for each in found), default=today)
        _add(found, text, _PAST, today)
        _add(found, text, _IF_PAST if past else (), until)
    return sorted(found, key=lambda each: each.start)


def _add(found: list[Named], text: str, forms: Sequence[re.Pattern[str]], today: date | None) -> None:
    """Add the days named in these forms, where none is found yet."""
    for form in forms:
        for match in form.finditer(text):
            if any(match.start() < other.end and other.start < match.end() for other in found):
                continue
            if days := _days(match.groupdict(), match[0].lower(), today):
                lead = _LEAD.search(text, 0, match.start())
                # "Moved from 4 years ago": from where, not from when.
                lead = None if lead and lead[0].startswith("from") and match[0].endswith("ago") else lead
                start = lead.start() if lead else match.start()
                found.append(Named(start, match.end(), text[start : match.end()].lower(), *days))


def ahead(text: str, told: date) -> date | None:
    """Return the first day that the text, told on a day of the past or the present, names of what was to come then.

    "In January" is the next one; None if it names no such day.
    """
    found = [each.first for each in find(text)]
    for form in _AHEAD if not found else ():
        for match in form.finditer(text):
            try:
                found.append(_forward(match.groupdict(), told))
            except (ValueError, OverflowError):
                continue  # there is no such day
    return min((day for day in found if day > told), default=None)


def says_when(text: str, *, clock: bool) -> bool:
    """Return whether the text says when: a month, a year or a date; with `clock` also a weekday or a time of day."""
    return _SAYS_DATE.search(text) is not None or (clock and _SAYS_CLOCK.search(text) is not None)


def _days(parts: dict[str, str | None], words: str, today: date | None) -> Days | None:
    """Return the first and last day meant, or None if there is no such day."""
    try:
        days = _by_calendar(parts) if parts.get("year") else _from_today(parts, words, today) if today else None
    except (ValueError, OverflowError):
        return None
    return days if days and days[0] > date.min else None  # before the first day there is none to compare with


def _by_calendar(parts: dict[str, str | None]) -> Days:
    year = int(parts["year"] or 0)
    if quarter := parts.get("quarter"):
        return _quarter(year, int(quarter))
    if not parts.get("month") and not parts.get("number"):
        return date(year, 1, 1), date(year, 12, 31)
    month = int(parts.get("number") or MONTH_NUMBERS[(parts.get("month") or "").lower()])
    if not parts.get("day"):
        return _month(year, month)
    day = int(parts["day"] or 0)
    return _day(date(year, day, month) if month > 12 else date(year, month, day))


def _from_today(parts: dict[str, str | None], words: str, today: date) -> Days:
    """Return the days that are counted from today, or that are the latest of their name up to today."""
    if parts.get("weekday"):
        back = (today.weekday() - WEEKDAYS.index((parts["weekday"] or "").lower())) % 7
        return _day(today - timedelta(days=back or 7))
    if parts.get("month"):
        return _latest(MONTH_NUMBERS[(parts["month"] or "").lower()], parts.get("day"), today)
    if quarter := parts.get("quarter"):
        begun = today.month > int(quarter) * 3 - 3
        return _quarter(today.year if begun else today.year - 1, int(quarter))
    if parts.get("day") or parts.get("first"):  # of this month or the last one
        day = int(parts.get("day") or 1)
        month = today if day <= today.day else _back(today, 1, "month")
        return _day(month.replace(day=day))
    if parts.get("unit"):
        count, unit = (parts["count"] or "one").lower(), (parts["unit"] or "").lower()
        n = int(count) if count.isdecimal() else _NUMBERS[count]
        then = _back(today, n, unit)
        if not words.endswith("ago"):
            return then, today
        if unit == "week" and n == 1:
            return then - timedelta(days=1), then + timedelta(days=1)  # not all days since, as the week of a Monday is
        return _day(then) if unit == "day" else _week(then) if unit == "week" else _month(then.year, then.month)
    if span := (parts.get("span") or "").lower():
        return _SPANS[span](today) if "this" not in words.split() else (_SPANS["this " + span](today)[0], today)
    if "yesterday" in words:
        return _day(today - timedelta(days=2 if parts.get("before") else 1))
    return _day(today)


def _forward(parts: dict[str, str | None], told: date) -> date:
    """Return the first of the days that are counted from `told`, or that are the next of their name after it."""
    if weekday := parts.get("weekday"):
        return told + timedelta(days=(WEEKDAYS.index(weekday.lower()) - told.weekday() - 1) % 7 + 1)
    if year := parts.get("year"):
        return date(int(year), 1, 1)
    if unit := parts.get("unit"):
        count = (parts["count"] or "one").lower()
        return _back(told, -(int(count) if count.isdecimal() else _NUMBERS[count]), unit.lower())
    span = (parts.get("span") or "").lower()
    if month := MONTH_NUMBERS.get((parts.get("month") or "").lower()) or _SEASONS.get(span):
        day = int(parts.get("day") or 1)
        passed = (month, day) < (told.month, told.day if parts.get("day") else 1)
        return date(told.year + passed, month, day)
    return _NEXT[span](told)


def _latest(month: int, day: str | None, today: date) -> Days:
    """Return that month or day of it in the last year in which it had begun before today."""
    year = today.year if (month, int(day or 1)) <= (today.month, today.day) else today.year - 1
    return _day(date(year, month, int(day))) if day else _month(year, month)


def _back(today: date, n: int, unit: str) -> date:
    if unit in ("day", "week"):
        return today - timedelta(days=n * (7 if unit == "week" else 1))
    months = today.year * 12 + today.month - 1 - n * (12 if unit == "year" else 1)
    year, month = divmod(months, 12)
    return date(year, month + 1, min(today.day, monthrange(year, month + 1)[1]))


def _day(day: date) -> Days:
    return day, day


def _week(day: date) -> Days:
    monday = day - timedelta(days=day.weekday())
    return monday, monday + timedelta(days=6)


def _quarter(year: int, quarter: int) -> Days:
    return date(year, quarter * 3 - 2, 1), _month(year, quarter * 3)[1]


def _month(year: int, month: int) -> Days:
    return date(year, month, 1), date(year, month, monthrange(year, month)[1])


_SPANS: dict[str, Callable[[date], Days]] = {
    "night": lambda today: _day(today - timedelta(days=1)),
    "weekend": lambda today: (_week(today)[0] - timedelta(days=2), _week(today)[0] - timedelta(days=1)),
    "week": lambda today: _week(today - timedelta(days=7)),
    "month": lambda today: _month(*_back(today, 1, "month").timetuple()[:2]),
    "year": lambda today: (date(today.year - 1, 1, 1), date(today.year - 1, 12, 31)),
    "this week": _week,
    "this month": lambda today: _month(today.year, today.month),
    "this year": lambda today: (date(today.year, 1, 1), today),
}

_NEXT: dict[str, Callable[[date], date]] = {
    "": lambda told: told + timedelta(days=1),
    "week": lambda told: _week(told)[1] + timedelta(days=1),
    "month": lambda told: _month(told.year, told.month)[1] + timedelta(days=1),
    "quarter": lambda told: _quarter(told.year, (told.month + 2) // 3)[1] + timedelta(days=1),
    "year": lambda told: date(told.year + 1, 1, 1),
}
