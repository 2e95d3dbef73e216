"""Run `perdure` commands in processes forked from one that has imported it: a command in a tenth of its time.

Reads one JSON object a line, {"arguments", "environment", "input"}, and answers {"code", "out", "err"}. A code below
zero is the signal that ended the process.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import IO, Any, NoReturn

DEADLINE_S = 60
IMPORTED = ("perdure.__main__", "perdure.cli", "perdure.app", "perdure.identity", "perdure.embedders.hashing")
IMPORTED_LATER = (
    "perdure.worker",
    "perdure.mcp.engine",
    "perdure.mcp.server",
    "perdure.mcp.front",
    "mcp.server.lowlevel",
    "alembic.command",
    "alembic.config",
    "sqlalchemy.dialects.sqlite.pysqlite",
)


def run(arguments: list[str], environment: dict[str, str], files: list[IO[bytes]]) -> NoReturn:
    """Be the command: as the interpreter would start it, but for the imports."""
    signal.alarm(DEADLINE_S)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    sys.argv = ["perdure", *arguments]
    code: Any = 0  # Any: whatever sys.exit was given
    try:
        importlib.import_module("perdure.__main__").main()
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException:  # noqa: BLE001 the interpreter's own edge
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    for module in (*IMPORTED, *IMPORTED_LATER):
        importlib.import_module(module)
    importlib.import_module("perdure.words").query_terms("café")  # the function words of all languages are read
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(asked["input"].encode())
            given.seek(0)
            if not (child := os.fork()):
                run(asked["arguments"], asked["environment"], [given, out, err])
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts: list[str] = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
        print(json.dumps({"code": code, "out": texts[0], "err": texts[1]}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
