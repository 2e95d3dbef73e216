"""The command line: the tools' words, one function a command, each calling one method of the service."""

from perdure.cli import compaction, context, extraction, health, seeding, tidying, upkeep  # their commands join app
from perdure.cli.commands import app

__all__ = ["app", "compaction", "context", "extraction", "health", "seeding", "tidying", "upkeep"]
