"""What one namespace may hold: writes that would take more are refused, and say how much there is."""

from __future__ import annotations

import threading
import time

from perdure.errors import Refused
from perdure.settings import LimitSettings
from perdure.store import Reader, usage

COUNTED_EVERY_S = 30.0  # between two counts of all bytes; what is written here meanwhile is added


class Quotas:
    """The limits of the settings, for every namespace.

    Bytes are counted together where servers share a database; beside a file, what another process writes counts after
    half a minute."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[float, int]] = {}  # when the bytes of a namespace were counted, and how many

    def admit_memory(self, reader: Reader, namespace: str) -> None:
        """Raise Refused if the transaction, with the memory that it has just stored, goes over the limit."""
        limit = self._limits.memories
        if limit and (held := usage.memories(reader, namespace)) > limit:
            raise Refused(
                f"The namespace {namespace} holds {held - 1:,} memories; the limit is {limit:,} ([limits] memories). "
                "Nothing was stored. Forget or archive some, give a key to what replaces another, or have the limit "
                "raised."
            )

    def held(self, reader: Reader, namespace: str) -> dict[str, int]:
        """Return how much there is of what is limited, by the name of the limit; reads every row for the bytes."""
        counts = {"memories": usage.memories, "bytes": usage.stored_bytes}
        return {name: count(reader, namespace) for name, count in counts.items() if getattr(self._limits, name)}

    def admit_import(self, reader: Reader, namespace: str, before: dict[str, int]) -> None:
        """Raise Refused if the transaction took the namespace over a limit; `before` is what was held then."""
        for name, now in self.held(reader, namespace).items():
            if now > max(limit := getattr(self._limits, name), before[name]):
                raise Refused(
                    f"The namespace {namespace} would hold {now:,} {name}; the limit is {limit:,} ([limits] {name}). "
                    f"To import all the same, lift it for this command: PERDURE_LIMITS__{name.upper()}=0."
                )

    def admit_bytes(self, reader: Reader, namespace: str, size: int) -> None:
        """Raise Refused if `size` more bytes would go over the limit; otherwise count them in."""
        limit = self._limits.bytes
        if not limit or not size:
            return
        with self._lock:
            common = usage.counted(reader, namespace, COUNTED_EVERY_S)
            at, held = self._counted.get(namespace, (float("-inf"), 0))
            if common is not None:
                at, held = time.monotonic(), common
            elif time.monotonic() - at > COUNTED_EVERY_S:
                at, held = time.monotonic(), usage.stored_bytes(reader, namespace)
            if held + size > limit:
                raise Refused(
                    f"The namespace {namespace} holds {held:,} bytes; these {size:,} would bring it over the limit of "
                    f"{limit:,} ([limits] bytes; history and former versions of files count). Nothing was stored. "
                    "Write less, or have the limit raised."
                )
            self._counted[namespace] = at, held + size
        usage.keep_count(reader, namespace, held + size, anew=common is None)
