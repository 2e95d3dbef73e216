"""The process that stays with the service open: a worker whose folder is named after its settings."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import Unavailable
from perdure.warm import asking
from perdure.worker import owner
from perdure.worker.owner import Caller
from perdure.worker.wire import Header

if TYPE_CHECKING:
    from perdure.service import Service
    from perdure.types import Principal

IDLE_S = 120.0
OUTDATED_S = 86_400.0  # after this the folder of settings that nobody has any more is removed


def main() -> None:
    folder, argument = Path(sys.argv[1]), json.loads(sys.argv[2])
    owner.detach()
    owner.run(folder, ContextWork(asking.Settings(**argument)), IDLE_S)


class ContextWork:
    """Answers "context" with the block and how many lines memory holds for it."""

    def __init__(self, settings: asking.Settings) -> None:
        self._settings = settings
        self._open = contextlib.ExitStack()

    def load(self) -> None:
        # Imported here: it costs most of a second, and pings are answered meanwhile.
        from perdure.app import open_service
        from perdure.errors import InvalidInput
        from perdure.identity import local_principal
        from perdure.settings import load_settings

        told = self._settings
        config = Path(told.config) if told.config else None
        try:
            settings = load_settings(config, namespace=told.namespace, agent=told.agent, data_dir=told.data_dir)
        except InvalidInput as exc:
            raise Unavailable(str(exc)) from exc
        # Read after they were: a settings file that changes meanwhile makes another digest.
        if not _are_same(told):
            raise Unavailable("The settings have changed.")
        if not Path(told.folder).is_dir():  # which opening the service might make anew
            raise Unavailable("The data directory is gone.")
        self._caller: Principal = local_principal(settings)
        self._service: Service = self._open.enter_context(open_service(settings))
        self._service.get_context(self._caller, "warm")  # the model starts with the first question

    def answer(self, header: Header, body: bytes, caller: Caller) -> tuple[Header, bytes]:
        if header["digest"] != self._settings.digest:
            return {"error": "It has other settings.", "kind": "other"}, b""
        found = self._service.get_context(
            self._caller, header["query"], thread=header["thread"], max_chars=header["max_chars"]
        )
        return {"text": found.text, "items": found.items}, b""

    def info(self) -> Header:
        return {}

    def close(self) -> None:
        self._open.close()


def _are_same(settings: asking.Settings) -> bool:
    """Say whether the settings read now are those that this process is to answer for."""
    options = {name: value for name, value in settings._asdict().items() if value is not None}
    return asking.settings_of(options) == settings


def leave_behind(settings: asking.Settings) -> None:
    """Start a process that answers the next question. What keeps it from starting keeps nobody from an answer."""
    import subprocess

    from perdure.worker.link import spawn

    folder = Path(settings.folder)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _remove_outdated(folder)
        spawn(folder, "perdure.warm.answering", settings._asdict(), os.environ)


def dismiss(data_dir: Path) -> None:
    """Have the processes of a data directory end, and wait a moment for them: its content is to be replaced."""
    from perdure.worker.link import Link

    for folder in (data_dir / "workers").glob(f"{asking.NAME}*"):
        Link(folder, "", {}).end()


def _remove_outdated(folder: Path) -> None:
    for log in folder.parent.glob(f"{asking.NAME}*/{owner.LOG}"):
        if log.parent != folder and time.time() - log.stat().st_mtime > OUTDATED_S:
            shutil.rmtree(log.parent, ignore_errors=True)


if __name__ == "__main__":
    main()
