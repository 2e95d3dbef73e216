"""Many tenants with nearly the same texts on one server: does any answer hold another's, and is one's own found?"""

from __future__ import annotations

import json
import random
import re
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

QUESTIONS = {
    "door code": "Which digits do I type to get into the {}?",
    "spare key": "How does somebody get in at the {} who is locked out?",
    "meter reading": "How much current has the {} used?",
    "alarm number": "Whom do I ring when the siren goes at the {}?",
    "parcel shelf": "Where do deliveries wait at the {}?",
    "wifi name": "How do I get online in the {}?",
    "fuse box": "Where is the power switched off at the {}?",
    "ladder": "What do I climb on at the {}?",
    "first aid box": "Where are bandages in the {}?",
    "water tap": "Where can I fill a bottle at the {}?",
    "fire exit": "How do we get out of the {} when it burns?",
    "bin day": "When is rubbish collected at the {}?",
    "cleaning rota": "Who sweeps the {} next?",
    "lift contract": "Who repairs the elevator of the {}?",
    "post box": "Where do letters go at the {}?",
}
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
    asked: int = 0

    def add(self, other: Crossed) -> None:
        self.calls += other.calls
        self.foreign += other.foreign
        self.found += other.found
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
    few = range(min(SINGLE, tenants))
    crowd, alone = Crossed(), Crossed()
    for n in few:
        crowd.add(together[n])
        alone.add(single(command, n, environment, together[n].calls))
    total = Crossed()
    for each in together:
        total.add(each)
    return [
        [
            f"{total.calls:,} cross-tenant calls over {tenants} tenants with near-identical texts",
            f"{total.foreign} foreign markers",
            "0",
            "reached" if total.foreign == 0 else "NOT reached",
        ],
        [
            f"own recall@10 of {len(few)} tenants in the crowd, and of the same questions where each is alone",
            f"{crowd.recall:.4f} and {alone.recall:.4f}; of all in the crowd {total.recall:.4f}"
            f" ({total.asked:,} questions)",
            "within 1 %",
            "reached" if abs(crowd.recall - alone.recall) <= WITHIN else "NOT reached",
        ],
    ]


def tenants_of(count: int) -> list[Tenant]:
    """Return tenants of whom what they state differs in the value and the marker alone."""
    found: list[Tenant] = []
    for n in range(count):
        chance, name = random.Random(n), f"tenant{n:03d}"
        marker = f"mk{n:04d}{''.join(chance.choices('abcdefghijk', k=3))}"
        values = {(thing, place): chance.randint(1_000, 9_999) for thing in QUESTIONS for place in PLACES}
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


def asked(server: Server, tenants: Sequence[Tenant], stored: dict[str, Stored], calls: int) -> list[Crossed]:
    """Have all tenants ask at once, each for its own things and for those of others; return what came, by tenant."""
    each = -(-calls // len(tenants))
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda n: _ask(server, tenants, n, stored, each), range(len(tenants))))


def _ask(server: Server, tenants: Sequence[Tenant], n: int, stored: dict[str, Stored], calls: int) -> Crossed:
    tenant, own, chance = tenants[n], stored[tenants[n].name], random.Random(1_000 + n)
    crossed = Crossed()
    client = HttpClient(server.port, own.token, era=("legacy", "modern")[n % 2])
    questions = iter(questions_of(n, calls))
    for number in range(calls):
        if _is_own(number):
            text = _ask_own(client, own, next(questions), crossed)
        else:
            other = tenants[(n + chance.randint(1, len(tenants) - 1)) % len(tenants)]
            method, params = _reach_for(other, stored[other.name], chance)
            text = client.raw(method, params)
            # What is not one's own can be neither forgotten nor replaced.
            crossed.foreign += (
                params.get("name") in ("forget", "remember") and not message_in(text)["result"]["isError"]
            )
        crossed.calls += 1
        crossed.foreign += any(mark != tenant.marker for mark in MARK.findall(text))
    client.close()
    return crossed


def questions_of(n: int, calls: int) -> list[tuple[str, str]]:
    """Return which things of which places a tenant asks for in so many calls."""
    chance = random.Random(2_000 + n)
    return [(chance.choice([*QUESTIONS]), chance.choice(PLACES)) for number in range(calls) if _is_own(number)]


def _is_own(number: int) -> bool:
    return number % 5 < 3


def _ask_own(client: HttpClient, own: Stored, about: tuple[str, str], crossed: Crossed) -> str:
    thing, place = about
    arguments = {"query": QUESTIONS[thing].format(place), "limit": 10, "include": ["memories"]}
    text = client.raw("tools/call", {"name": "recall", "arguments": arguments})
    hits = message_in(text)["result"]["structuredContent"]["hits"]
    crossed.asked += 1
    crossed.found += own.ids[f"{thing}/{place}"] in [hit["id"] for hit in hits]
    return text


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


def single(command: Path, n: int, environment: dict[str, str], calls: int) -> Crossed:
    """Return what one tenant finds of the same statements with the same questions where nobody else has any."""
    tenant = tenants_of(n + 1)[n]
    with data_directory() as folder:
        env = {"PERDURE_DATA_DIR": str(folder), **environment}
        own = filled(env, [tenant])[tenant.name]
        with serving(command, env) as server:
            client, crossed = HttpClient(server.port, own.token), Crossed()
            wait_until_indexed({tenant.name: client})
            for about in questions_of(n, calls):
                _ask_own(client, own, about, crossed)
            client.close()
    return crossed


if __name__ == "__main__":
    print(json.dumps(fill([int(each) for each in sys.argv[1:]])))
