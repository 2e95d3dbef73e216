"""Short sentences such as an agent would remember, made from a seed; no two are the same and no data set is needed."""

from __future__ import annotations

import random
from collections.abc import Sequence

VOCABULARY = """
person: Amina, Bruno, Chen, Dagny, Elif, Farid, Greta, Hugo, Ines, Jonas, Kofi, Lena, Marta, Nils, Olga, Pavel, Quentin
person: Rosa, Sven, Tove, Umut, Vera, Wiktor, Ximena, Yara, Zoltan
place: Lisbon, Tromsø, Kyoto, Valparaíso, Graz, Nairobi, Tartu, Bologna, Halifax, Pune, Leuven, Oaxaca, Galway, Bergen
place: Izmir, Cusco, Turku, Fez, Utrecht, Hobart
system: the billing service, the mail queue, the staging cluster, the search index, the mobile app, the login page
system: the nightly backup, the invoice export, the map tiles, the payment webhook, the image resizer, the audit log
system: the report builder, the translation cache, the session store, the price feed, the onboarding form
tool: Postgres, Redis, Terraform, Grafana, Kafka, Ansible, nginx, Blender, LibreOffice, Docker, Vim, Figma, SQLite
tool: Gradle, Webpack, Prometheus, Caddy, RabbitMQ
hobby: rock climbing, baking rye bread, restoring old radios, choir practice, open water swimming, watercolours
hobby: beekeeping, long train journeys, board games, growing tomatoes, bird watching, woodturning, night photography
hobby: playing the cello, learning Finnish, repairing bicycles, collecting maps, fencing
food: lentil soup, mushroom risotto, smoked trout, plum cake, pickled beets, ginger tea, flatbread, olive salad
day: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday
month: January, February, March, April, May, June, July, August, September, October, November, December
reason: because the old one timed out, after the outage in the spring, so that the auditors can follow it
reason: since the vendor raised the price, as agreed in the planning meeting, until the new hardware arrives
reason: because two customers asked for it, after reading the incident report, to keep the phone bill low
"""

STATEMENTS = (
    "{person} moved {system} to {tool} on {day} {reason}.",
    "{person} prefers {hobby} on {day} evenings and never answers mail after {hour} o'clock.",
    "The port of {system} is {number}; {person} changed it in {month} {reason}.",
    "{person} and {person2} meet in {place} every {month} for {hobby}.",
    "We decided to replace {tool} with {tool2} in {system} {reason}.",
    "{person} is allergic to {food} and asks for a quiet table when we eat in {place}.",
    "The deploy window of {system} is {day} at {hour}, and {person} has to be on call.",
    "{person} grew up in {place}, studied with {person2}, and took up {hobby} in {month}.",
    "Ticket {number}: {system} fails when {tool} restarts; {person} suspects a stale lock.",
    "{person2} lent {person} {number} euros for the trip to {place} in {month}.",
    "To restore {system}, stop {tool}, copy the folder from {place}, then tell {person}.",
    "{person} cooked {food} for {number} guests in {place} {reason}.",
)

QUESTIONS = (
    "Why did {person} move {system} to {tool}?",
    "What does {person} like to do on {day}?",
    "Which port does {system} use since {month}?",
    "Where do {person} and {person2} meet for {hobby}?",
    "When can {person} deploy {system}?",
    "Does {person} eat {food} in {place}?",
    "How does {person} restore {system} when {tool} is down?",
    "What happened to {person} in {place} in {month}?",
)


def statements(count: int, seed: int = 1) -> list[str]:
    """Return `count` different sentences of 9 to 25 words."""
    return _different(STATEMENTS, count, seed)


def questions(count: int, seed: int = 2) -> list[str]:
    """Return `count` different questions about the same people, places and systems."""
    return _different(QUESTIONS, count, seed)


def _different(patterns: Sequence[str], count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    pools = _pools()
    found: dict[str, None] = {}
    while len(found) < count:
        words = {name: rng.choice(values) for name, values in pools.items()}
        for name in ("person", "tool"):
            words[name], words[name + "2"] = rng.sample(pools[name], 2)
        found[rng.choice(patterns).format(**words, hour=rng.randint(7, 22), number=rng.randint(11, 9899))] = None
    return list(found)


def _pools() -> dict[str, list[str]]:
    pools: dict[str, list[str]] = {}
    for line in VOCABULARY.strip().splitlines():
        name, _, values = line.partition(": ")
        pools.setdefault(name, []).extend(values.split(", "))
    return pools
