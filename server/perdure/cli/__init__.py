"""The command line: the tools' words, one function a command, each calling one method of the service."""

from perdure.cli import (  # their commands join app
    auditing,
    compaction,
    context,
    erasure,
    extraction,
    files,
    health,
    seeding,
    tidying,
    tokens,
    upkeep,
)
from perdure.cli.commands import app

__all__ = [
    "app",
    "auditing",
    "compaction",
    "context",
    "erasure",
    "extraction",
    "files",
    "health",
    "seeding",
    "tidying",
    "tokens",
    "upkeep",
]
