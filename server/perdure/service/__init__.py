"""What MCP, CLI and console all call. Synchronous; the caller comes first; every write returns after its commit."""

from __future__ import annotations

from perdure.service.context import Contexts
from perdure.service.core import Core
from perdure.service.evaluation import Evaluating
from perdure.service.exporting import Exporting
from perdure.service.extraction import Extracting
from perdure.service.history import History
from perdure.service.importing import Importing
from perdure.service.inspection import Inspecting
from perdure.service.mounting import Mounting
from perdure.service.state import State
from perdure.service.writing_back import WritingBack


class Service(
    Mounting, WritingBack, Extracting, Inspecting, Evaluating, Contexts, History, State, Exporting, Importing
):
    """Memories, history and files of every namespace in one data directory. Safe to call from many threads.

    Files and upkeep come with Mounting, which follows both of them.
    """


__all__ = ["Core", "Service"]
