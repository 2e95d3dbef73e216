"""Three days of conversation, each process killed in the middle, and one call that picks up where they left off."""

from __future__ import annotations

import json
import time
from pathlib import Path

from conftest import DEADLINE_S, Json, StartStdio, environment, run

THREAD = "launch of the shop"
SESSIONS: list[tuple[int, list[str], list[tuple[str, Json]]]] = [
    # Of each process: the day it lived on, what the user and the agent said of substance, and what the agent kept.
    (1, ["Hi! My name is Ioana Petrescu, I run the shop."], [("set_state", {"key": "profile.name", "value": "Ioana"})]),
    (1, ["We decided to launch the shop on 12 May, after the holidays."], []),
    (2, ["We talked it over: we decided to take payments with invoices only, no cards."], []),
    (
        2,
        ["Let me note that the sign company needs the drawings."],
        [("set_state", {"key": "task.drawings", "value": 0})],
    ),
    (3, ["We decided to rent the corner room on Harbour Street for 900 euros a month."], []),
    (3, ["Good. I still have to send the drawings to the sign company by Friday."], []),
]
SMALL_TALK = [
    ("user", "Good morning, how is it going today?"),
    ("assistant", "Fine, thanks! What shall we look at?"),
    ("user", "Just a second, I am getting a coffee."),
    ("assistant", "Sure, take your time."),
    ("user", "Back again. It rained all the way here."),
    ("assistant", "I hope that you did not get too wet."),
]
LAST = [(("user", "assistant")[n % 2], f"Closing remark {n} of the third day, word for word.") for n in range(10)]


def turns(day: int, said: list[tuple[str, str]]) -> list[Json]:
    return [
        {"role": role, "content": text, "at": f"2026-03-{day:02}T10:{n:02}:00Z"} for n, (role, text) in enumerate(said)
    ]


def test_on_the_fourth_day_one_call_holds_who_it_is_what_was_decided_and_what_is_open(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    for n, (day, told, kept) in enumerate(SESSIONS):
        client = start_stdio()
        client.initialize()
        said = [*SMALL_TALK[:3], *(("user", text) for text in told), *SMALL_TALK[3:]]
        for at in range(0, len(said), 3):
            answer = client.call("append_history", thread=THREAD, turns=turns(day, said[at : at + 3]))
            assert not answer["isError"], answer
        for tool, arguments in kept:
            assert not client.call(tool, **arguments)["isError"]
        if n == len(SESSIONS) - 1:
            assert not client.call("append_history", thread=THREAD, turns=turns(day, LAST))["isError"]
        # One more write is under way when the process is killed.
        client.send({"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": "remember"}})
        client.process.kill()
        client.process.wait(DEADLINE_S)

    client = start_stdio()
    client.initialize()
    deadline = time.monotonic() + DEADLINE_S
    while True:
        block: str = client.call("get_context", thread=THREAD, max_chars=6000)["content"][0]["text"]
        if "Harbour Street" in block or time.monotonic() > deadline:
            break  # a fold of the last session may still be under way
    assert len(block) <= 6000
    assert "Ioana" in block
    for decision in ("12 May", "invoices only", "Harbour Street"):
        assert decision in block, block
    assert "send the drawings to the sign company by Friday" in block
    positions = [block.index(text) for _, text in LAST]
    assert positions == sorted(positions)

    printed = run("context", "--thread", THREAD, "--max-chars", "6000", env=environment(data_dir))
    assert printed.stdout.rstrip("\n") == block.rstrip("\n")
    episodes = client.call("list_history", thread=THREAD, kinds=["turn"], order="oldest", limit=100, max_chars=40000)
    written = [text for _, told, _ in SESSIONS for text in (*(t for _, t in SMALL_TALK[:3]), *told)]
    listed = json.dumps(episodes["structuredContent"], ensure_ascii=False)
    assert all(text in listed for text in written)
