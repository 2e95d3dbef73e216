"""Where words came from, and which of several sources is the least to be relied on. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.types import SOURCES, Source

_ROLES: dict[str, Source] = {
    "user": "user",
    "assistant": "agent",
    "agent": "agent",
    "system": "agent",
    "developer": "agent",
    "tool": "tool",
    "function": "tool",
    "web": "web",
}


def of_role(role: str | None) -> Source:
    """Return the trust of a turn, by its role. One that is not known here is no more than the agent's word."""
    return _ROLES.get((role or "").casefold(), "agent")


def lowest(sources: Iterable[Source]) -> Source:
    """Return the least trusted of the sources: user, agent, tool, web, in falling order. Of none it is the user."""
    return SOURCES[max(map(SOURCES.index, sources), default=0)]
