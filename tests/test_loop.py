"""The loop of docs/loop.md, run as it stands there, against a local chat model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from chat_endpoint import ChatEndpoint
from conftest import DEADLINE_S, PERDURE, environment

PAGE = (Path(__file__).parent.parent / "docs" / "loop.md").read_text(encoding="utf-8")


@pytest.fixture
def model() -> Generator[ChatEndpoint]:
    endpoint = ChatEndpoint(lambda message: f"You said: {message}")
    yield endpoint
    endpoint.close()


def test_the_second_run_of_the_loop_puts_before_the_model_what_the_first_one_said(
    model: ChatEndpoint, data_dir: Path, tmp_path: Path
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in code.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) <= 31
    script = tmp_path / "chat.py"
    script.write_text(code, encoding="utf-8")
    env = environment(data_dir, OPENAI_BASE_URL=model.url, OPENAI_API_KEY="test-key")
    env["PATH"] = f"{Path(PERDURE).parent}{os.pathsep}{env.get('PATH', '')}"

    def chat(message: str) -> str:
        command = [sys.executable, str(script), "trip", message]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # Each run starts a server of its own, and ends it.
    told = "My name is Ana and I travel to Porto in May."
    assert chat(told) == f"You said: {told}"
    assert chat("Where do I travel, and when?") == "You said: Where do I travel, and when?"

    first, second = (request["messages"] for request in model.asked)
    assert [each["role"] for each in second] == ["system", "user", "user"]
    assert first[0] == second[0] and second[2]["content"] == "Where do I travel, and when?"
    assert "Porto" not in first[1]["content"] and "there is no thread trip yet" in first[1]["content"]
    block = second[1]["content"]
    assert block.startswith("<perdure>\n") and block.endswith("</perdure>")
    assert re.search(rf"\[\d+ user \S+\] {re.escape(told)}\n", block)
    assert re.search(rf"\[\d+ assistant agent \S+\] You said: {re.escape(told)}\n", block)
