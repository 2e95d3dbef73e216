"""Tokens: who may reach the memory over HTTP, as whom, and what for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from perdure import tokens
from perdure.errors import Conflict, InvalidInput, NotFound, Unavailable
from perdure.service import times
from perdure.service.core import Core, Part
from perdure.settings import is_name
from perdure.store import EVERY, audit, reader_of
from perdure.store import tokens as stored
from perdure.tokens import NewToken, Token
from perdure.types import Principal

log = logging.getLogger(__name__)

NOTED_EVERY_S = 60.0  # the last use of a token is written at most so often


class Tokens(Part):
    """Tokens of the whole store: `admin` is the scope of who keeps it, and of no namespace."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._noted: dict[str, float] = {}  # when the use of a token was noted last
        self._noting = threading.Lock()

    def create_token(
        self, caller: Principal, namespace: str, agent: str, scopes: Sequence[str], *, expires: str | None = None
    ) -> NewToken:
        """Make a token by which `agent` may use a namespace; its secret is told now and never again.

        `expires` is how long it holds, like 90d; None for until it is revoked. Raises InvalidInput.
        """
        caller.require("admin")
        for name, value in (("namespace", namespace), ("agent", agent)):
            if not is_name(value):
                raise InvalidInput(f"{name} is {value!r}; give 1 to 80 of letters, digits, _ and -.")
        now = times.now()
        until = times.after(now, tokens.lasting(expires, "expires")) if expires is not None else None
        allowed = tokens.checked_scopes(tuple(scopes))
        made = NewToken(tokens.new_secret(), Token(tokens.new_id(), namespace, agent, allowed, now, until))
        with self._core.database.write(EVERY) as tx:
            stored.add(tx, made.token, tokens.digest(made.secret))
            audit.note(tx, _change(caller, made.token, "create_token", now))
        return replace(made, token=_shown(made.token))

    def list_tokens(self, caller: Principal) -> tuple[Token, ...]:
        """Return all tokens there are and were, of all namespaces, in the order they were made."""
        caller.require("admin")
        with self._core.database.read(EVERY) as tx:
            return tuple(_shown(each) for each in stored.every(tx))

    def revoke_token(self, caller: Principal, id: str) -> Token:
        """Have a token refused from now on, by every server of the store. Raises NotFound."""
        caller.require("admin")
        with self._core.database.write(EVERY, spend_reserve=True) as tx:
            now = times.now()
            audit.note(tx, _change(caller, _known(stored.get(reader_of(tx), id), id), "revoke_token", now))
            stored.revoke(tx, id, now)
            return _shown(_known(stored.get(reader_of(tx), id), id))

    def rotate_token(self, caller: Principal, id: str, *, grace: str, expires: str | None = None) -> NewToken:
        """Make a token that follows another: the same namespace, agent and scopes; the former holds for `grace` yet.

        Without `expires` it lasts as long as the former was made for. Raises NotFound, Conflict, InvalidInput.
        """
        caller.require("admin")
        now = times.now()
        ends = times.after(now, tokens.lasting(grace, "grace"))
        until = times.after(now, tokens.lasting(expires, "expires")) if expires is not None else None
        with self._core.database.write(EVERY) as tx:
            former = _known(stored.get(reader_of(tx), id), id)
            if (why := _why_not(former, now)) is not None:
                raise Conflict(f"{id} {why}, so nothing can follow it. Make a new one: perdure token create.")
            if former.rotated_to is not None:
                raise Conflict(f"{id} was followed by {former.rotated_to} already. Rotate that one.")
            if expires is None and former.expires_at is not None:
                until = times.after(now, times.between(former.created_at, former.expires_at))
            new = Token(tokens.new_id(), former.namespace, former.agent, former.scopes, now, until)
            made = NewToken(tokens.new_secret(), new)
            stored.add(tx, new, tokens.digest(made.secret))
            stored.give_way(tx, id, to=new.id, expires_at=min(ends, former.expires_at or ends))
            audit.note(tx, _change(caller, new, "rotate_token", now))
        return replace(made, token=_shown(made.token))

    # --- at the edge, where there is no caller yet

    def any_tokens(self) -> bool:
        """Return whether a token was ever made here, so that nobody is let in without one."""
        return self.again(self._any_tokens)

    def _any_tokens(self) -> bool:
        with self._core.database.read(EVERY) as tx:
            return stored.any_of(tx)

    def principal_of_token(self, secret: str) -> Principal | None:
        """Return whom a token proves; None for one that is unknown, expired or revoked. Raises Unavailable."""
        if not tokens.is_secret(secret):
            return None
        now = times.now()
        found = self.again(partial(self._by_digest, tokens.digest(secret)))
        if found is None or _why_not(found, now) is not None:
            return None
        self._note_use(found.id, now)
        return Principal(found.namespace, found.agent, frozenset(found.scopes), found.id)

    def _note_use(self, id: str, now: str) -> None:
        with self._noting:
            moment = time.monotonic()
            if moment - self._noted.get(id, float("-inf")) < NOTED_EVERY_S:
                return
            self._noted[id] = moment
        # Beside the call, which waits neither for the disk nor for another writer.
        self._core.background.submit(("token used", id), partial(self._write_use, id, now))

    def _by_digest(self, digest: str) -> Token | None:
        with self._core.database.read(EVERY) as tx:
            return stored.by_digest(tx, digest)

    def _write_use(self, id: str, now: str) -> None:
        try:
            with self._core.database.write_derived(EVERY) as tx:
                stored.used(tx, id, now)
        except Unavailable as exc:
            log.warning("the last use of a token was not noted: %s", exc)


def _known(token: Token | None, id: str) -> Token:
    if token is None:
        raise NotFound(f"No token {id[:80]!r}. perdure token list shows the ids, which begin with tok_.")
    return token


def _why_not(token: Token, now: str) -> str | None:
    """Return why a token holds no more, or None."""
    if token.revoked_at is not None:
        return "was revoked"
    return "has expired" if token.expires_at is not None and token.expires_at <= now else None


def _change(caller: Principal, token: Token, tool: str, now: str) -> audit.Change:
    """Return what the audit tells of a token: in the namespace that it opens, by its id."""
    return audit.Change(now, token.namespace, caller.agent, tool, token.id, token=caller.token)


def _shown(token: Token) -> Token:
    def show(at: str | None) -> str | None:
        return times.show(at) if at is not None else None

    return replace(
        token,
        created_at=times.show(token.created_at),
        expires_at=show(token.expires_at),
        revoked_at=show(token.revoked_at),
        used_at=show(token.used_at),
    )
