"""Which former versions of files the limits leave no room for, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from perdure.settings import FilesSettings
from perdure.types import PrunedVersion

PRESENT, NEWEST_FORMER = 0, 1


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A version whose bytes are kept. `back` counts from the present version of its path, which is 0 and does not
    exist where the file was deleted. `until` is when the next version of it was made, None if there is none.
    """

    path: str
    version: int
    bytes: int
    sha256: str
    until: str | None
    back: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be pruned, the oldest first; `unmet` are bytes above the limit that only versions take which stay."""

    pruned: tuple[PrunedVersion, ...] = ()
    unmet: int = 0


def plan(versions: Iterable[KeptVersion], policy: FilesSettings, now: str) -> Plan:
    """Return what the limits leave no room for. The present version and the newest former one of a path always stay.

    A version is as old as its replacement. For keep_bytes, `versions` are all of the namespace; bytes that several
    versions share are as old as the last of them, and go with all of them or not at all.
    """
    stay: list[KeptVersion] = []
    pruned: list[PrunedVersion] = []
    before = (datetime.fromisoformat(now) - timedelta(days=policy.keep_days)).isoformat(timespec="microseconds")
    for each in sorted(versions, key=lambda each: (each.until or now, each.path, each.version)):
        if each.back <= NEWEST_FORMER:
            stay.append(each)
        elif policy.keep_versions and each.back > policy.keep_versions:
            pruned.append(_pruned(each, "count", f"more than {policy.keep_versions} former versions of its path"))
        elif policy.keep_days and each.until is not None and each.until < before:
            pruned.append(_pruned(each, "age", f"replaced more than {policy.keep_days} days ago"))
        else:
            stay.append(each)
    if not policy.keep_bytes:
        return Plan(tuple(pruned))
    more, unmet = _above(stay, policy.keep_bytes)
    return Plan((*pruned, *more), unmet)


def _above(versions: Sequence[KeptVersion], limit: int) -> tuple[list[PrunedVersion], int]:
    """Return what goes until the rest takes no more than the limit, and how much is above it even then."""
    present = {each.sha256 for each in versions if each.back == PRESENT}
    by_content: dict[str, list[KeptVersion]] = {}
    for each in versions:
        if each.sha256 not in present:  # what the present files keep on disk anyway costs nothing
            by_content.setdefault(each.sha256, []).append(each)
    excess = sum(of_it[0].bytes for of_it in by_content.values()) - limit
    going: list[PrunedVersion] = []
    # Lists keep the order of their versions, so that the last of each is the one that was in use last.
    for of_it in sorted(by_content.values(), key=lambda of_it: of_it[-1].until or ""):
        if excess <= 0:
            break
        if all(each.back > NEWEST_FORMER for each in of_it):
            going += [_pruned(each, "bytes", f"former versions take more than {limit} bytes") for each in of_it]
            excess -= of_it[0].bytes
    return going, max(0, excess)


def _pruned(version: KeptVersion, rule: str, why: str) -> PrunedVersion:
    return PrunedVersion(version.path, version.version, version.bytes, version.sha256, rule, why)
