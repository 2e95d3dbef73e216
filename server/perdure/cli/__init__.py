"""The command line: the tools' words, one function a command, each calling one method of the service."""

from perdure.cli import health, upkeep  # their commands join the others of app
from perdure.cli.commands import app

__all__ = ["app", "health", "upkeep"]
