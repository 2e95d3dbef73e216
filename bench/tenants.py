"""Many tenants with nearly the same texts on one server: does any answer hold another's, and is one's own found?"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from http_client import HttpClient, Server, make_token, message_in, serving, wait_until_indexed
from product import data_directory

THINGS = ("door code", "spare key", "meter reading", "alarm number", "parcel shelf", "wifi name", "fuse box", "ladder")
THINGS += ("first aid box", "water tap", "fire exit", "bin day", "cleaning rota", "lift contract", "post box")
PLACES = ("north warehouse", "old bakery", "harbour office", "tram depot", "glass workshop", "upper school")
THREADS, CLIENTS = 4, 8
MARK = re.compile(r"\bmk\d{4}[a-z]{3}\b")
SINGLE = 4  # tenants that are measured alone, each in a store of its own
WITHIN = 0.01


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks: `marker` stands in every text of this tenant and in no other's."""

    name: str
    marker: str
    token: str
    values: dict[tuple[str, str], int]

    def statement(self, thing: str, place: str) -> str:
        return f"The {thing} of the {place} is {self.values[thing, place]} ({self.marker})"


@dataclass(slots=True)
class Crossed:
    """What came of the calls: `foreign` are answers that hold another tenant's marker."""

    calls: int = 0
    foreign: int = 0
    found: int = 0
    first: int = 0
    asked: int = 0

    def add(self, other: Crossed) -> None:
        self.calls += other.calls
        self.foreign += other.foreign
        self.found += other.found
        self.first += other.first
        self.asked += other.asked

    @property
    def recall(self) -> float:
        return self.found / self.asked


def measure(command: Path, tenants: int, calls: int, environment: dict[str, str]) -> list[list[str]]:
    """Return the rows of the table."""
    with data_directory() as folder:
        env = {"PERDURE_DATA_DIR": str(folder), **environment}
        everybody = made(command, env, tenants)
        with serving(command, env) as server:
            ids = filled(server, everybody)
            together = asked(server, everybody, ids, calls)
    alone = [single(command, tenant, environment, calls // tenants) for tenant in everybody[:SINGLE]]
    by_itself = statistics.mean(each.recall for each in alone)
    within = abs(together.recall - by_itself) <= WITHIN
    first = together.first / together.asked
    return [
        [
            f"{together.calls:,} cross-tenant calls over {tenants} tenants with near-identical texts",
            f"{together.foreign} foreign markers",
            "0",
            "reached" if together.foreign == 0 else "NOT reached",
        ],
        [
            f"own recall@10 beside that of {len(alone)} tenants alone ({together.asked:,} questions)",
            f"{together.recall:.4f} beside {by_itself:.4f} (first: {first:.4f})",
            "within 1 %",
            "reached" if within else "NOT reached",
        ],
    ]


def made(command: Path, env: dict[str, str], count: int) -> list[Tenant]:
    """Return tenants with a token each; what they state differs in the value and the marker alone."""
    found: list[Tenant] = []
    for n in range(count):
        chance, name = random.Random(n), f"tenant{n:03d}"
        marker = f"mk{n:04d}{''.join(chance.choices('abcdefghijk', k=3))}"
        values = {(thing, place): chance.randint(1_000, 9_999) for thing in THINGS for place in PLACES}
        found.append(Tenant(name, marker, make_token(command, env, name), values))
    return found


def filled(server: Server, tenants: Sequence[Tenant]) -> dict[str, dict[tuple[str, str], str]]:
    """Store the statements, some turns and a file of each tenant; return the ids of the statements."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        ids = dict(pool.map(lambda tenant: (tenant.name, _fill(server, tenant)), tenants))
    wait_until_indexed({tenant.name: HttpClient(server.port, tenant.token) for tenant in tenants})
    return ids


def _fill(server: Server, tenant: Tenant) -> dict[tuple[str, str], str]:
    client, ids = HttpClient(server.port, tenant.token), dict[tuple[str, str], str]()
    for (thing, place), value in tenant.values.items():
        arguments = {"content": tenant.statement(thing, place), "tags": ["building", place], "thread": place}
        ids[thing, place] = client.call("remember", arguments)["structuredContent"]["id"]
        if thing == THINGS[0]:
            turn = {"role": "user", "content": f"I was at the {place}, {tenant.marker}, number {value}"}
            client.call("append_history", {"thread": place, "turns": [turn]})
    client.call("write_file", {"path": "plan.md", "content": f"# Plan\n\nThe rota is {tenant.marker}.\n"})
    client.call("set_state", {"key": "user.site", "value": tenant.marker})
    client.close()
    return ids


def asked(server: Server, tenants: Sequence[Tenant], ids: dict[str, dict[tuple[str, str], str]], calls: int) -> Crossed:
    """Have all tenants ask at once, each for its own things and for those of others."""
    total = Crossed()
    each = -(-calls // len(tenants))

    def one(n: int) -> Crossed:
        return _ask(server, tenants, n, ids, each)

    with ThreadPoolExecutor(THREADS) as pool:
        for crossed in pool.map(one, range(len(tenants))):
            total.add(crossed)
    return total


def _ask(
    server: Server, tenants: Sequence[Tenant], n: int, ids: dict[str, dict[tuple[str, str], str]], calls: int
) -> Crossed:
    tenant, chance, crossed = tenants[n], random.Random(1_000 + n), Crossed()
    client = HttpClient(server.port, tenant.token, era=("legacy", "modern")[n % 2])
    for number in range(calls):
        if number % 5 < 3:
            thing, place = chance.choice(THINGS), chance.choice(PLACES)
            arguments = {"query": f"What is the {thing} of the {place}?", "limit": 10, "include": ["memories"]}
            text = client.raw("tools/call", {"name": "recall", "arguments": arguments})
            hits = [hit["id"] for hit in message_in(text)["result"]["structuredContent"]["hits"]]
            crossed.asked += 1
            crossed.found += ids[tenant.name][thing, place] in hits
            crossed.first += hits[:1] == [ids[tenant.name][thing, place]]
        else:
            other = tenants[(n + chance.randint(1, len(tenants) - 1)) % len(tenants)]
            method, params = _reach_for(other, ids[other.name], chance)
            text = client.raw(method, params)
        crossed.calls += 1
        crossed.foreign += any(mark != tenant.marker for mark in MARK.findall(text))
    client.close()
    return crossed


def _reach_for(other: Tenant, ids: dict[tuple[str, str], str], chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a request that would like to have something of another tenant. No answer repeats what was asked."""
    (thing, place), id = chance.choice(list(ids.items()))
    value = other.values[thing, place]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("recall", {"query": f"{other.marker} {value}", "limit": 20}),
        ("recall", {"query": other.statement(thing, place), "limit": 20, "thread": place}),
        ("recall", {"query": f"{other.name} {other.marker}", "include": ["history", "files"]}),
        ("recall", {"query": f"rota {other.marker}", "tags": ["building"], "limit": 50, "max_chars": 20_000}),
        ("list_history", {"limit": 50, "thread": place}),
        ("get_context", {"query": f"{other.marker} {thing} {place}", "thread": place}),
        ("get_state", {"prefix": "user."}),
        ("read_file", {"path": "plan.md"}),
        ("read_file", {"path": f"../{other.name}/files/plan.md"}),
        ("list_files", {"contains": "rota"}),
        ("forget", {"id": id}),
        ("forget", {"id": id, "undo": True}),
        ("remember", {"content": f"a note on {thing}", "supersedes": id}),
    ]
    name, arguments = chance.choice(calls)
    if chance.random() < 0.1:
        return "resources/read", {"uri": f"perdure://memories/{id}"}
    return "tools/call", {"name": name, "arguments": arguments}


def single(command: Path, tenant: Tenant, environment: dict[str, str], questions: int) -> Crossed:
    """Return what one tenant finds of the same statements where nobody else has any."""
    with data_directory() as folder:
        env = {"PERDURE_DATA_DIR": str(folder), **environment}
        alone = Tenant(tenant.name, tenant.marker, make_token(command, env, tenant.name), tenant.values)
        with serving(command, env) as server:
            ids = filled(server, [alone])
            client, crossed = HttpClient(server.port, alone.token), Crossed()
            pairs = list(tenant.values)
            random.Random(7).shuffle(pairs)
            for thing, place in pairs[: max(questions, 50)]:
                arguments = {"query": f"What is the {thing} of the {place}?", "limit": 10, "include": ["memories"]}
                hits = client.call("recall", arguments)["structuredContent"]["hits"]
                crossed.asked += 1
                crossed.found += ids[tenant.name][thing, place] in [hit["id"] for hit in hits]
            client.close()
    return crossed
