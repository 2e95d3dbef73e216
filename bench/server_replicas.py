"""What holds where several servers share one PostgreSQL: nothing lost when one dies, or when the database restarts;
how fast they recall beside SQL alone, how that grows, and what an erasure leaves in the files of the database.

usage: python bench/server_replicas.py [--part NAME ...] [--quick] [--command PERDURE] [--set VARIABLE=VALUE ...]
       [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bare_vectors import bare_loops, near_texts, put_synthetic, question
from client import ServerGone, child_environment, default_command, run_bench
from figures import table
from machine import provenance
from replicas import Connection, Postgres, Replica, environment_of, postgres, proxied, replicas

CLIENTS, STARTED = 200, 20
EMBEDDER, INDEX = "PERDURE_EMBEDDER", "PERDURE_INDEX__KIND"
PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # of a client whose call failed; twice as long after each further failure
FAILED = (OSError, EOFError, ServerGone, TimeoutError, ValueError)
Rows = list[list[str]]


@dataclass(slots=True)
class Load:
    """What clients that try again saw: facts acknowledged, and the moments in which calls failed."""

    acknowledged: dict[str, float] = field(default_factory=dict[str, float])
    failures: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    @property
    def longest_gap_s(self) -> float:
        times = sorted(self.acknowledged.values())
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


async def remembering(port: int, clients: int, for_s: float, beside: Callable[[], Awaitable[None]]) -> Load:
    """Have clients remember facts, each with a connection of its own for every call; a call that fails is made again
    with its idempotency key. `beside` begins when some have been answered; they go on for `for_s` from then.
    """
    load, until = Load(), float("inf")

    async def disturb() -> None:
        nonlocal until
        while len(load.acknowledged) < STARTED:
            await asyncio.sleep(0.05)
        until = time.monotonic() + for_s
        await beside()

    async def client(number: int) -> None:
        connection = Connection(port, kept=False)
        for n in itertools.count():
            fact = f"The walnut {number}x{n} lies in drawer {n % 17} of cupboard {number}."
            arguments = {"content": fact, "idempotency_key": f"{number}-{n}"}
            pause_s = PAUSE_S
            while True:
                if time.monotonic() > until:
                    return
                try:
                    await connection.call("remember", arguments)
                except FAILED as exc:
                    load.failures.append((time.monotonic(), f"{type(exc).__name__}: {exc}"))
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                    continue
                load.acknowledged[fact] = time.monotonic()
                break

    await asyncio.gather(disturb(), *(client(n) for n in range(clients)))
    return load


def kept_once(database: Postgres, load: Load) -> tuple[int, int]:
    """Return how many acknowledged facts are missing, and how many facts are stored more than once."""
    stored = Counter(row[0] for row in database.sql("SELECT content FROM memory"))
    return len(load.acknowledged.keys() - stored.keys()), sum(count > 1 for count in stored.values())


def one_killed(command: Path, *, quick: bool) -> Rows:
    """Two replicas behind a proxy, one of them killed under load."""
    clients, for_s, kill_s = (40, 10.0, 3.0) if quick else (CLIENTS, 30.0, 10.0)
    killed = [0.0]

    async def measured(running: Sequence[Replica]) -> Load:
        async def kill() -> None:
            await asyncio.sleep(kill_s)
            running[0].process.send_signal(signal.SIGKILL)
            killed[0] = time.monotonic()

        async with proxied([each.port for each in running]) as port:
            return await remembering(port, clients, for_s, kill)

    with postgres() as database, replicas(command, database) as (running, _):
        load = asyncio.run(measured(running))
        lost, doubled = kept_once(database, load)
    after = [at - killed[0] for at, _ in load.failures if at > killed[0]]
    last_s = max(after, default=0.0)
    _show_failures(load)
    before = sum(killed[0] - kill_s < at < killed[0] for at in load.acknowledged.values())
    later = sum(at > killed[0] for at in load.acknowledged.values())
    pace = f"{before / kill_s:.0f}/s with two, {later / (for_s - kill_s):.0f}/s with one"
    said = f"{len(load.acknowledged):,} acknowledged ({pace}), {lost} lost, {doubled} twice; {len(after)} calls failed,"
    said += f" the last {last_s:.2f} s after the kill"
    reached = not lost and not doubled and last_s <= 5 and later > 0
    what = f"two replicas, one killed under {clients} concurrent clients that try again"
    return [[what, said, "0 lost, 0 twice, errors end within 5 s", _verdict(reached)]]


def restarts(command: Path, *, quick: bool) -> Rows:
    """PostgreSQL restarted under load, by turns as its keeper would and as a crash would."""
    clients, for_s, times = (10, 20.0, 2) if quick else (50, 60.0, 5)

    async def measured(database: Postgres, running: Sequence[Replica]) -> Load:
        async def restart() -> None:
            begun = time.monotonic()
            for n in range(times):
                await asyncio.sleep(begun + (n + 0.5) * for_s / times - time.monotonic())
                await asyncio.to_thread(database.restart, "immediate" if n % 2 else "fast")

        async with proxied([each.port for each in running]) as port:
            return await remembering(port, clients, for_s, restart)

    with postgres() as database, replicas(command, database) as (running, _):
        load = asyncio.run(measured(database, running))
        lost, doubled = kept_once(database, load)
    _show_failures(load)
    said = (
        f"{len(load.acknowledged):,} acknowledged, {lost} lost, {doubled} twice; {len(load.failures)} calls failed and"
    )
    said += f" were made again, the longest time without an answer {load.longest_gap_s:.1f} s"
    what = f"PostgreSQL restarted {times} times in {for_s:.0f} s under {clients} clients"
    return [[what, said, "0 lost, 0 twice", _verdict(not lost and not doubled)]]


def throughput(command: Path, *, quick: bool, settings: dict[str, str]) -> Rows:
    """Recall through two replicas, and one statement of SQL and pgvector for each question, in loops of Python.

    Both embed the question by the model of the product, or by the one that `settings` name.
    """
    settings = {f"{EMBEDDER}__KIND": "local", f"{EMBEDDER}__DEADLINE_S": "30", INDEX: "pgvector"} | settings
    memories, for_s, clients = (1_000, 5.0, 8) if quick else (10_000, 20.0, 16)

    async def filled(port: int) -> None:
        connection = Connection(port)
        for start in range(0, memories, 100):
            turns = [{"role": "user", "content": text} for text in near_texts(start, start + 100)]
            await connection.call("append_history", {"thread": f"t{start // 1_000}", "turns": turns})
        while (await connection.call("recall", {"query": "anything"}))["structuredContent"]["pending"]:
            await asyncio.sleep(0.5)
        connection.close()

    async def asked(ports: Sequence[int]) -> list[float]:
        times, until = list[float](), time.monotonic() + for_s

        async def client(number: int) -> None:
            connection, rng = Connection(ports[number % len(ports)]), random.Random(number)
            while (begun := time.monotonic()) < until:
                await connection.call("recall", {"query": question(rng), "include": ["history"]})
                times.append(time.monotonic() - begun)
            connection.close()

        await asyncio.gather(*(client(n) for n in range(clients)))
        return times

    with postgres() as database, replicas(command, database, settings, own_workers=True) as (running, _):
        asyncio.run(filled(running[0].port))
        database.sql("VACUUM ANALYZE")
        times = asyncio.run(asked([each.port for each in running]))
        bare = {n: bare_loops(database.url, n, for_s, settings[f"{EMBEDDER}__KIND"]) for n in (1, 2)}
    per_s = len(times) / for_s
    said = f"{per_s:.0f}/s (p50 {statistics.median(times) * 1000:.0f} ms); bare: {bare[1]:.0f}/s by one loop,"
    said += f" {bare[2]:.0f}/s by two at once; {per_s / bare[1]:.0%} of one, {per_s / bare[2]:.0%} of two"
    what = f"recall of 10 of {memories:,} by {clients} clients of two replicas, beside the model and one statement of"
    what += " SQL and pgvector"
    return [[what, said, "40 % of one loop", _verdict(per_s >= 0.4 * bare[1])]]


def million(command: Path, *, quick: bool, settings: dict[str, str]) -> Rows:
    """How recall grows with what others store: memories with synthetic vectors in 1,000 namespaces."""
    sizes = (1_000, 5_000) if quick else (10_000, 50_000, 200_000)
    spaces, asking, calls = 1_000, 20, 15
    p95 = dict[int, float]()
    with postgres() as database:
        directory = database.folder.parent / "data"
        environment = environment_of(database, directory, settings)
        tokens = [_token(command, environment, f"n{n * spaces // asking}") for n in range(asking)]
        for before, size in itertools.pairwise((0, *sizes)):
            put_synthetic(database.url, directory, before, size, spaces)
            database.sql("VACUUM ANALYZE")
            with replicas(command, database, settings) as (running, _):
                asyncio.run(_recalls(running, tokens, 3))  # opens connections, reads what is cold
                times = asyncio.run(_recalls(running, tokens, calls))
            p95[size] = statistics.quantiles(times, n=20)[-1]
            print(
                f"{size:,} memories: p50 {statistics.median(times) * 1000:.1f} ms, p95 {p95[size] * 1000:.1f} ms",
                flush=True,
            )
    ratio = p95[sizes[-1]] / p95[sizes[0]]
    curve = ", ".join(f"{size:,}: {value * 1000:.1f} ms" for size, value in p95.items())
    what = f"recall p95 over {spaces:,} namespaces of synthetic vectors"
    return [[what, f"{curve}; {ratio:.2f} times", "2 times that at 10,000", _verdict(ratio <= 2)]]


async def _recalls(running: Sequence[Replica], tokens: Sequence[str], calls: int) -> list[float]:
    times, rng = list[float](), random.Random(7)
    for n, token in enumerate(tokens):
        connection = Connection(running[n % len(running)].port, token)
        for _ in range(calls):
            begun = time.monotonic()
            await connection.call("recall", {"query": question(rng)})
            times.append(time.monotonic() - begun)
        connection.close()
    return times


def erase(command: Path, *, quick: bool) -> Rows:
    """Erase a namespace, then read every file of the data directory, of PostgreSQL and of an export for its markers."""
    with postgres() as database:
        directory = database.folder.parent / "data"
        environment = environment_of(database, directory)
        tokens = {name: _token(command, environment, name) for name in ("going", "staying")}
        with replicas(command, database) as (running, _):
            marks = {name: asyncio.run(_marked(running, token, name)) for name, token in tokens.items()}
        _run(command, environment, "erase", "--namespace", "going", "--yes")
        export = database.folder.parent / "export.jsonl"
        _run(command, environment, "--namespace", "staying", "export", "--out", str(export))
        database.sql("CHECKPOINT")
        places = {"the data directory": directory, "the export": export, "PostgreSQL's files": database.folder}
        found = {name: _found(place, marks["going"]) for name, place in places.items()}
        in_log = {path for path in found["PostgreSQL's files"] if path.parent.name == "pg_wal"}
        outside = sum(map(len, found.values())) - len(in_log)
        control = sum(bool(_found(place, marks["staying"])) for place in places.values())
        after, rounds = 1, 4
        while after and rounds:  # segments that were kept for later are more each time
            _recycle_log(database)
            after, rounds = len(_found(database.folder, marks["going"])), rounds - 1
    said = f"{outside} files with one of {len(marks['going'])} markers outside of the write-ahead log, {len(in_log)} in"
    said += (
        f" it; {after} anywhere once its segments were written over; the markers of what stays were found in {control}"
    )
    what = "a namespace erased, then every file of the data directory, PostgreSQL and an export searched"
    return [[what, said + " of 3 places", "0", _verdict(outside == 0 and after == 0 and control == 3)]]


async def _marked(running: Sequence[Replica], token: str, name: str) -> list[bytes]:
    """Store something of each kind with markers that stand nowhere else; return those."""
    rng, marks = random.Random(name), list[str]()

    def mark() -> str:
        marks.append("mk" + "".join(rng.choices("bcdfghjklmnpqrstvwxz", k=14)))
        return marks[-1]

    clients = [Connection(each.port, token) for each in running]
    for n in range(60):
        client = clients[n % 2]
        await client.call("remember", {"content": f"The word of day {n} is {mark()}.", "key": f"day{n % 20}"})
        turns = [{"role": "user", "content": f"Do you know {mark()}? {'It is long. ' * (n % 30)}"} for _ in range(5)]
        await client.call("append_history", {"thread": f"t{n % 6}", "turns": turns})
        await client.call("set_state", {"key": f"word.{n % 10}", "value": mark()})
        await client.call("write_file", {"path": f"notes/{n % 10}.md", "content": f"# Day {n}\n{mark()}\n"})
    for client in clients:
        client.close()
    return [each.encode() for each in marks]


def _found(place: Path, marks: Sequence[bytes]) -> list[Path]:
    paths = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return [path for path in paths if any(mark in (data := path.read_bytes()) for mark in marks) and data]


def _recycle_log(database: Postgres) -> None:
    """Have every segment of the write-ahead log written over: the rest of one that is left is filled with zeros."""
    segments = len(list((database.folder / "pg_wal").glob("0*")))
    for _ in range(2 * segments + 2):
        database.sql("SELECT pg_logical_emit_message(false, 'bench', 'x')")
        database.sql("SELECT pg_switch_wal()")
    database.sql("CHECKPOINT")


def _token(command: Path, environment: dict[str, str], namespace: str) -> str:
    made = _run(command, environment, "token", "create", "--namespace", namespace)
    return next(word for word in made.split() if word.startswith("perdure_"))


def _run(command: Path, environment: dict[str, str], *arguments: str) -> str:
    env = child_environment(environment)
    done = subprocess.run([str(command), *arguments], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerGone(f"perdure {' '.join(arguments)}: {done.stderr[-600:]}")
    return done.stdout


def _show_failures(load: Load) -> None:
    for why, count in Counter(why[:160] for _, why in load.failures).most_common(6):
        print(f"  {count} x {why}", flush=True)


def _verdict(reached: bool) -> str:
    return "reached" if reached else "NOT reached"


PARTS = ("replicas", "restarts", "throughput", "erase", "million")


def measure(part: str, command: Path, *, quick: bool, settings: dict[str, str]) -> Rows:
    """Return the rows of one part; `settings` are variables of the servers beside ours."""
    match part:
        case "replicas":
            return one_killed(command, quick=quick)
        case "restarts":
            return restarts(command, quick=quick)
        case "throughput":
            return throughput(command, quick=quick, settings=settings)
        case "erase":
            return erase(command, quick=quick)
        case _:
            return million(command, quick=quick, settings=settings)


def main() -> int:
    parser = argparse.ArgumentParser(description="What holds where several servers share one PostgreSQL.")
    parser.add_argument("--part", action="append", choices=PARTS, help="this one alone; repeat it")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a look")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--out", type=Path, help="where the table goes")
    parser.add_argument("--set", action="append", default=[], help="VARIABLE=VALUE for the servers; repeat it")
    options = parser.parse_args()
    settings = dict(each.split("=", 1) for each in options.set)
    rows: Rows = []
    for part in options.part or PARTS:
        rows += _said(measure(part, options.command, quick=options.quick, settings=settings))
    head = ["# Several servers on one PostgreSQL", "", *provenance(), ""]
    lines = [*head, *table(["what", "measured", "reach", ""], rows), ""]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines), encoding="utf-8")
    return 0 if all(row[-1] == "reached" for row in rows) else 1


def _said(rows: Rows) -> Rows:
    print("\n".join(" | ".join(row) for row in rows), flush=True)
    return rows


if __name__ == "__main__":
    run_bench(main)
