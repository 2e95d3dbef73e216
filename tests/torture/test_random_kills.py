"""SIGKILL at random moments of mixed writes that come without pause, life after life of one store."""

from __future__ import annotations

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import DEADLINE_S, PERDURE, Json, StdioClient, environment
from torture import history
from torture.conftest import Report, Scale
from torture.history import Operation, Outcome, Verdict, asked_of

OPERATIONS = 40
DELAY_S = 0.02  # in which a server on a quiet machine answers a few more
SEED = 20261129
PAGE_EVERY = 30  # kills between two examinations of every page


def start(data_dir: Path) -> StdioClient:
    client = StdioClient([PERDURE], environment(data_dir))
    client.initialize()
    client.call("list_history", limit=1)  # the engine is loaded
    return client


def operations_of(mark: str) -> list[Operation]:
    """Return mixed writes; the files of one life are versions of one path."""
    operations: list[Operation] = []
    for n in range(OPERATIONS):
        each = f"{mark}.{n}"
        match n % 3:
            case 0:
                operations.append(history.remember(each))
            case 1:
                operations.append(history.append(each, mark))
            case _:
                operations.append(history.write(each, f"{mark}.md"))
    return operations


def kill_after(client: StdioClient, answers: int, delay_s: float) -> None:
    """Kill the server some time after so many more answers, however long they take on this machine."""
    before, deadline = len(client.lines), time.monotonic() + DEADLINE_S
    while len(client.lines) < before + answers and time.monotonic() < deadline:
        time.sleep(0.0005)
    time.sleep(delay_s)
    client.process.kill()


def write_until_killed(client: StdioClient, operations: list[Operation], answers: int, delay_s: float) -> None:
    """Send the operations without waiting for answers, and kill the server meanwhile."""
    killer = threading.Thread(target=kill_after, args=(client, answers, delay_s))
    killer.start()
    try:
        for n, operation in enumerate(operations):
            params = {"name": operation.tool, "arguments": operation.arguments}
            operation.outcome = Outcome.UNKNOWN  # also where it may not have been sent
            client.send({"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": params})
            time.sleep(0.001)  # spread over the time in which the kill may come
    except BrokenPipeError:
        pass
    killer.join()
    client.stop()
    replies: list[Json] = [json.loads(line) for line in client.lines if line.endswith(b"\n")]
    for reply in replies:
        if reply.get("id") in range(OPERATIONS):
            operations[int(reply["id"])].answered(reply["result"])


def kill_rounds(data_dir: Path, seed: int, rounds: int) -> Verdict:
    rng = random.Random(seed)
    verdict = Verdict()
    client, last = start(data_dir), 0
    for n in range(rounds):
        operations = operations_of(f"r{seed}x{n}")
        write_until_killed(client, operations, rng.randrange(OPERATIONS), rng.uniform(0.0, DELAY_S))
        client = start(data_dir)
        seen = history.look(asked_of(client), operations, after=last)
        last = max((episode["seq"] for episode in seen.episodes), default=last)
        verdict.add(history.check(seen, operations, where=f"kill {n} of seed {seed}"))
        if n % PAGE_EVERY == 0:
            verdict.add(history.check_database(data_dir))
    client.end_input()
    client.stop()
    verdict.add(history.check_database(data_dir))
    return verdict


@pytest.mark.long
def test_kills_at_random_moments_lose_no_acknowledged_write_and_leave_none_half_done(
    tmp_path: Path, scale: Scale, report: Report
) -> None:
    kills = scale(60, 600)
    # Two directories at once, since there are two cores.
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(kill_rounds, tmp_path / str(n), SEED + n, kills // 2) for n in range(2)]
        verdict = Verdict()
        for run in runs:
            verdict.add(run.result())
    report(f"{kills} kills: {verdict}")
    assert verdict.right, str(verdict)
    assert verdict.acknowledged > kills // 3, f"the kills came too early to prove anything (seed {SEED})"
