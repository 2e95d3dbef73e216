"""get_state and set_state: what is so now, under keys, each change a version."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any, cast

from perdure import shapes
from perdure.errors import Conflict, InvalidInput, NotFound
from perdure.privacy import without_private
from perdure.service import checks, times
from perdure.service.core import Part
from perdure.service.receipts import Once
from perdure.service.redaction import seen_in
from perdure.store import Reader, episodes, reader_of, states
from perdure.tables import EpisodeRow, StateRow
from perdure.types import (
    MAX_KEY,
    MAX_STATE_DEPTH,
    MAX_STATE_VALUE,
    MAX_STATE_VALUES,
    Principal,
    StatePage,
    StateReceipt,
    StateValue,
)

Json = Any  # what json.loads gives

SHOWN = 200  # characters of the present value in a refusal


class State(Part):
    """The current, authoritative value of a field, and the values it had before."""

    def get_state(
        self,
        caller: Principal,
        key: str | None = None,
        *,
        prefix: str | None = None,
        as_of: str | None = None,
        cursor: str | None = None,
    ) -> StatePage:
        """Return the value of a key, or those of all keys that begin with `prefix`, or all, in order of their keys.

        `as_of` answers with what held then. A key that is not set is left out; `cursor` is the last key seen. Raises
        InvalidInput.
        """
        caller.require("memory:read")
        if key is not None and prefix is not None:
            raise InvalidInput("Give key for one value or prefix for several, not both.")
        moment = times.parse_moment(as_of, "as_of") if as_of else None
        with self._core.database.read(caller.namespace) as tx:
            found = states.find(
                tx,
                caller.namespace,
                key=checks.key(key),
                prefix=checks.label(prefix, "prefix", limit=MAX_KEY) or "",
                after=checks.label(cursor, "cursor", limit=MAX_KEY) or "",
                as_of=moment,
                limit=MAX_STATE_VALUES + 1,
            )
        values = tuple(_shown(value) for value in found[:MAX_STATE_VALUES])
        return StatePage(values, values[-1].key if len(found) > len(values) else None)

    def state_versions(self, caller: Principal, key: str) -> tuple[StateValue, ...]:
        """Return the versions a key had, the newest first, deletions too. Raises NotFound."""
        caller.require("history:read")
        with self._core.database.read(caller.namespace) as tx:
            found = states.versions(tx, caller.namespace, checks.key(key) or "", MAX_STATE_VALUES)
        if not found:
            raise NotFound(f"No state under {key!r}. get_state lists the keys.")
        return tuple(_shown(value) for value in found)

    def set_state(
        self,
        caller: Principal,
        key: str,
        value: Json = None,
        *,
        expected_version: int | None = None,
        delete: bool = False,
        idempotency_key: str | None = None,
    ) -> StateReceipt:
        """Give a key a value (any JSON), or delete it; on disk when this returns. Former values are kept.

        `expected_version` is the one the caller read, 0 for a key that must not be set. Versions of a key go on
        counting after it was deleted. Raises InvalidInput, also for what the settings' schema of the key refuses,
        NotFound, Conflict.
        """
        caller.require("memory:write")
        name = checks.key(key) or ""
        if delete and value is not None:
            raise InvalidInput("Give a value or delete, not both.")
        text = None if delete else _json(value)
        if not delete:
            shapes.check(self._core.settings.state.schemas, name, value)
        now = times.now()
        once = Once(caller.namespace, idempotency_key, "set_state", name, text, expected_version)
        with self._core.database.write(caller.namespace, token=caller.token, spend_reserve=delete) as tx:
            if (earlier := once.first(reader_of(tx))) is not None:
                return StateReceipt(**earlier)
            version = _next_version(reader_of(tx), caller, name, expected_version, delete=delete)
            self._core.quotas.admit_bytes(reader_of(tx), caller.namespace, len((text or "").encode()))
            episode = EpisodeRow(
                namespace=caller.namespace, kind="set_state", at=now, recorded_at=now, agent=caller.agent, subject=name
            )
            (seq,) = episodes.append(tx, [episode])
            states.put(tx, StateRow(namespace=caller.namespace, key=name, version=version, value=text, at=now, seq=seq))
            receipt = StateReceipt(name, version, deleted=delete)
            once.keep(tx, receipt, now)
        return replace(receipt, note=seen_in(text or ""))


def _next_version(reader: Reader, caller: Principal, key: str, expected: int | None, *, delete: bool) -> int:
    last = states.last(reader, caller.namespace, key)
    present = last.version if last is not None and last.value is not None else 0
    if expected is not None and expected != present:
        if last is None or last.value is None:
            raise Conflict(
                f"{key!r} is not set, so it is not at version {expected}. Send expected_version 0 to set it."
            )
        shown = f": {last.value[:SHOWN]}" if caller.may("memory:read") else "."
        raise Conflict(
            f"{key!r} is at version {present}, not {expected}{shown}"
            " Look at it, then send its version as expected_version."
        )
    if delete and not present:
        raise NotFound(f"No state under {key!r}, so there is nothing to delete. get_state lists the keys.")
    return last.version + 1 if last is not None else 1


def _json(value: Json) -> str:
    """Return the value as compact JSON. Raises InvalidInput for what is no JSON, too long or too deep."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        depth = _depth(value)
    except RecursionError:
        text, depth = "", sys.getrecursionlimit()
    except (ValueError, TypeError) as exc:
        raise InvalidInput("value is no JSON: it holds NaN or an infinity. Send null or text for those.") from exc
    if depth > MAX_STATE_DEPTH:
        raise InvalidInput(f"value is nested {depth} deep; the limit is {MAX_STATE_DEPTH}. Flatten it.")
    if without_private(text)[1]:
        raise InvalidInput("value holds a <private> tag, and state is kept as it is given. Leave that part out.")
    if len(text) > MAX_STATE_VALUE:
        raise InvalidInput(
            f"value is {len(text)} characters of JSON; the limit is {MAX_STATE_VALUE}. Keep long text in a file."
        )
    return checks.storable(text, "value")


def _depth(value: Json) -> int:
    match value:
        case dict():
            inner = cast("dict[str, Json]", value).values()
        case list():
            inner = cast("list[Json]", value)
        case _:
            return 1
    return 1 + max((_depth(each) for each in inner), default=0)


def _shown(stored: states.StoredValue) -> StateValue:
    value = json.loads(stored.value) if stored.value is not None else None
    return StateValue(stored.key, value, stored.version, times.show(stored.at), deleted=stored.value is None)
