"""Many tenants with nearly the same texts on one server: does any answer hold another's, and is one's own found?"""

from __future__ import annotations

import json
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client import ServerGone, child_environment
from http_client import HttpClient, Server, message_in, serving, wait_until_indexed
from perdure.app import open_service
from perdure.identity import local_principal
from perdure.settings import load_settings
from perdure.tokens import USUAL_SCOPES
from perdure.types import Principal, Turn
from product import data_directory

THINGS = ("door code", "spare key", "meter reading", "alarm number", "parcel shelf", "wifi name", "fuse box", "ladder")
THINGS += ("first aid box", "water tap", "fire exit", "bin day", "cleaning rota", "lift contract", "post box")
PLACES = ("north warehouse", "old bakery", "harbour office", "tram depot", "glass workshop", "upper school")
THREADS = 4
MARK = re.compile(r"\bmk\d{4}[a-z]{3}\b")
SINGLE = 4  # tenants that are measured alone, each in a store of its own
WITHIN = 0.01


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks: `marker` stands in every text of this tenant and in no other's."""

    name: str
    marker: str
    values: dict[tuple[str, str], int]

    def statement(self, thing: str, place: str) -> str:
        return f"The {thing} of the {place} is {self.values[thing, place]} ({self.marker})"


@dataclass(frozen=True, slots=True)
class Stored:
    """The token of a tenant, and the ids of its statements by thing and place."""

    token: str
    ids: dict[str, str]


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
        everybody = tenants_of(tenants)
        stored = filled(env, everybody)
        with serving(command, env) as server:
            wait_until_indexed({name: HttpClient(server.port, each.token) for name, each in stored.items()})
            together = asked(server, everybody, stored, calls)
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


def tenants_of(count: int) -> list[Tenant]:
    """Return tenants of whom what they state differs in the value and the marker alone."""
    found: list[Tenant] = []
    for n in range(count):
        chance, name = random.Random(n), f"tenant{n:03d}"
        marker = f"mk{n:04d}{''.join(chance.choices('abcdefghijk', k=3))}"
        values = {(thing, place): chance.randint(1_000, 9_999) for thing in THINGS for place in PLACES}
        found.append(Tenant(name, marker, values))
    return found


def filled(env: dict[str, str], tenants: Sequence[Tenant]) -> dict[str, Stored]:
    """Store what tenants state, in a process of its own with these settings, and return what each has of it."""
    command = [sys.executable, __file__, *(tenant.name.removeprefix("tenant") for tenant in tenants)]
    done = subprocess.run(command, env=child_environment(env), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ServerGone("the store could not be filled")
    return {name: Stored(token, ids) for name, (token, ids) in json.loads(done.stdout).items()}


def fill(numbers: Sequence[int]) -> dict[str, tuple[str, dict[str, str]]]:
    """Store the statements, some turns, a file and a value of each tenant; return token and ids by tenant."""
    settings, stored = load_settings(), dict[str, tuple[str, dict[str, str]]]()
    with open_service(settings) as service:
        keeper = local_principal(settings)
        for tenant in (tenants_of(max(numbers) + 1)[n] for n in numbers):
            caller, ids = Principal(tenant.name, f"{tenant.name}-agent"), dict[str, str]()
            for thing, place in tenant.values:
                told = tenant.statement(thing, place)
                ids[f"{thing}/{place}"] = service.remember(caller, told, tags=["building", place], thread=place).id
            for place in PLACES:
                turn = Turn("user", f"I was at the {place}, {tenant.marker}")
                service.append_history(caller, place, [turn])
            service.write_file(caller, "plan.md", f"# Plan\n\nThe rota is {tenant.marker}.\n")
            service.set_state(caller, "user.site", tenant.marker)
            made = service.create_token(keeper, tenant.name, caller.agent, USUAL_SCOPES)
            stored[tenant.name] = made.secret, ids
    return stored


def asked(server: Server, tenants: Sequence[Tenant], stored: dict[str, Stored], calls: int) -> Crossed:
    """Have all tenants ask at once, each for its own things and for those of others."""
    total = Crossed()
    each = -(-calls // len(tenants))

    def one(n: int) -> Crossed:
        return _ask(server, tenants, n, stored, each)

    with ThreadPoolExecutor(THREADS) as pool:
        for crossed in pool.map(one, range(len(tenants))):
            total.add(crossed)
    return total


def _ask(server: Server, tenants: Sequence[Tenant], n: int, stored: dict[str, Stored], calls: int) -> Crossed:
    tenant, chance, crossed = tenants[n], random.Random(1_000 + n), Crossed()
    own = stored[tenant.name]
    client = HttpClient(server.port, own.token, era=("legacy", "modern")[n % 2])
    for number in range(calls):
        if number % 5 < 3:
            thing, place = chance.choice(THINGS), chance.choice(PLACES)
            arguments = {"query": f"What is the {thing} of the {place}?", "limit": 10, "include": ["memories"]}
            text = client.raw("tools/call", {"name": "recall", "arguments": arguments})
            hits = [hit["id"] for hit in message_in(text)["result"]["structuredContent"]["hits"]]
            crossed.asked += 1
            crossed.found += own.ids[f"{thing}/{place}"] in hits
            crossed.first += hits[:1] == [own.ids[f"{thing}/{place}"]]
        else:
            other = tenants[(n + chance.randint(1, len(tenants) - 1)) % len(tenants)]
            method, params = _reach_for(other, stored[other.name], chance)
            text = client.raw(method, params)
            # What is not one's own can be neither forgotten nor replaced.
            crossed.foreign += params.get("name") in ("forget", "remember") and '"isError":true' not in text
        crossed.calls += 1
        crossed.foreign += any(mark != tenant.marker for mark in MARK.findall(text))
    client.close()
    return crossed


def _reach_for(other: Tenant, stored: Stored, chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a request that would like to have something of another tenant. No answer repeats what was asked."""
    thing, place = chance.choice(list(other.values))
    id, value = stored.ids[f"{thing}/{place}"], other.values[thing, place]
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
        own = filled(env, [tenant])[tenant.name]
        with serving(command, env) as server:
            client, crossed = HttpClient(server.port, own.token), Crossed()
            wait_until_indexed({tenant.name: client})
            pairs = list(tenant.values)
            random.Random(7).shuffle(pairs)
            for thing, place in pairs[: max(questions, 50)]:
                arguments = {"query": f"What is the {thing} of the {place}?", "limit": 10, "include": ["memories"]}
                hits = client.call("recall", arguments)["structuredContent"]["hits"]
                crossed.asked += 1
                crossed.found += own.ids[f"{thing}/{place}"] in [hit["id"] for hit in hits]
            client.close()
    return crossed


if __name__ == "__main__":
    print(json.dumps(fill([int(each) for each in sys.argv[1:]])))
