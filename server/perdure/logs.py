"""What a server writes to stderr: lines for people, or one JSON object a line, neither with what anybody stored."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from perdure import tracing
from perdure.settings import Settings

REQUEST: ContextVar[str | None] = ContextVar("perdure_request", default=None)
"""The id of the request that is being answered; threads that work for it inherit it."""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
_ALWAYS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure(settings: Settings) -> None:
    """Write what `log_level` lets through to stderr, in the form of `log_format`.

    Libraries are heard from warnings on: below, some of them tell what was sent and stored.
    """
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else Lines("%(levelname)s %(message)s"))
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler])
    logging.getLogger("perdure").setLevel(level)


def frames(exc: BaseException) -> str:
    """Return where it happened, without the messages of exceptions: they can quote what a user stored."""
    parts: list[str] = []
    seen: BaseException | None = exc
    while seen is not None:
        parts.append(f"{type(seen).__name__}\n{''.join(traceback.format_tb(seen.__traceback__))}")
        seen = seen.__cause__ or seen.__context__
    return "caused by ".join(parts)


class Lines(logging.Formatter):
    """Text, with the frames of an exception and not its message."""

    def formatException(self, ei: _ExcInfo) -> str:
        return frames(ei[1]) if ei[1] is not None else ""


class JsonLines(Lines):
    """One object a line: time (UTC), level, logger, message, request and trace if there is one, and what was added."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {  # Any: JSON values
            "time": f"{moment}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request": REQUEST.get(),
            "trace": tracing.trace_id(),
            **{name: value for name, value in record.__dict__.items() if name not in _ALWAYS},
        }
        if record.exc_info:
            line["frames"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in line.items() if value is not None}, default=str)
