"""What the documentation says is what the code does: commands, settings, tools, snippets, links."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from perdure.cli import app
from perdure.mcp.tools import TOOLS
from perdure.settings import NOT_SETTINGS, load_settings, variable_of, walk_settings

pytestmark = pytest.mark.no_store

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
EXAMPLE = (ROOT / "config.example.toml").read_text(encoding="utf-8")

COMMAND_OF_TOOL = {
    "remember": "remember",
    "recall": "recall",
    "forget": "forget",
    "append_history": "append",
    "list_history": "history",
    "get_context": "context",
    "get_state": "state get",
    "set_state": "state set",
    "read_file": "files read",
    "write_file": "files write",
    "edit_file": "files edit",
    "list_files": "files list",
    "delete_file": "files delete",
}
DEFAULTS = {(section, name): default for section, name, default, _ in walk_settings()}
FROM_STDIN = {("append_history", "turns"), ("write_file", "content"), ("edit_file", "edits")}


def commands() -> dict[str, Any]:  # Any: Typer does not export the type of its commands
    """Return every command by its words: "remember", "files read"."""
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = {"": group}
    for name, command in group.commands.items():
        found[name] = command
        for inner, inner_command in getattr(command, "commands", {}).items():
            found[f"{name} {inner}"] = inner_command
    return found


def code(page: str) -> Iterator[str]:
    """Yield every line of code blocks and every inline code of a page."""
    for fenced in re.findall(r"^```\w*\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
        yield from fenced.splitlines()
        yield from re.findall(r'"command": "([^"]+)"', fenced)
    for line in re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE).splitlines():
        if line.startswith("    "):
            yield line.strip()
        else:
            yield from re.findall(r"`([^`]+)`", line)


def blocks(language: str) -> list[str]:
    return [
        block
        for page in PAGES.values()
        for block in re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    ]


def perdure_lines() -> list[str]:
    lines = [line for page in PAGES.values() for line in code(page)]
    return [line for line in lines if re.match(r"(\S*/bin/)?perdure +\S", line)]


def test_every_make_command_of_the_docs_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {word for page in PAGES.values() for line in code(page) for word in re.findall(r"^make +([a-z]+)", line)}
    named |= set(re.findall(r"^make +([a-z]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), flags=re.MULTILINE))

    assert {"serve", "demo", "test", "install"} <= named
    assert named <= targets


def test_the_first_screen_of_the_readme_has_the_three_commands() -> None:
    first_screen = "\n".join(README.splitlines()[:24])

    assert all(f"make {target}" in first_screen for target in ("serve", "demo", "test"))


@pytest.mark.parametrize("line", perdure_lines())
def test_every_perdure_command_of_the_docs_exists_with_its_options(line: str) -> None:
    known = commands()
    words = shlex.split(re.split(r" +[#<|] *| *…", line)[0])[1:]
    here = ""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            options: dict[str, Any] = {opt: param for param in known[here].params for opt in param.opts}
            if word == "--help":
                continue
            assert word in options, f"{line}: {here or 'perdure'} has no option {word}"
            skip = not options[word].is_flag
        elif f"{here} {word}".strip() in known:
            here = f"{here} {word}".strip()
        else:
            assert here or word == "COMMAND", f"{line}: there is no command {word}"


def test_every_command_is_in_the_readme() -> None:
    described = " ".join(code(README))

    assert [name for name in commands() if name and f"perdure {name}" not in described] == []


def test_the_tool_table_of_the_readme_is_the_tool_table_of_the_server() -> None:
    rows = re.findall(r"^\| (\w+) \| ([a-z_?, ]+) \| [A-Z].* \|$", README.split("## Tools")[1], flags=re.MULTILINE)
    said = {name: arguments.split(", ") for name, arguments in rows}

    assert said == {
        name: [argument if argument in schema["required"] else f"{argument}?" for argument in schema["properties"]]
        for name, schema in schemas().items()
    }


@pytest.mark.parametrize("tool", COMMAND_OF_TOOL)
def test_a_command_takes_the_arguments_of_its_tool(tool: str) -> None:
    parameters = {param.name for param in commands()[COMMAND_OF_TOOL[tool]].params}
    arguments = {name for name in schemas()[tool]["properties"] if (tool, name) not in FROM_STDIN}

    assert arguments <= parameters


def test_every_tool_has_a_command() -> None:
    assert set(COMMAND_OF_TOOL) == set(schemas())


def schemas() -> dict[str, dict[str, Any]]:  # Any: JSON schema
    """Return the input schema of every tool, with `required` always there."""
    return {tool.name: {"required": []} | tool.definition["inputSchema"] for tool in TOOLS}


def example_settings() -> dict[tuple[str, str], str]:
    """Return the commented value of each setting in config.example.toml, as written."""
    found: dict[tuple[str, str], str] = {}
    section = ""
    for line in EXAMPLE.splitlines():
        if header := re.fullmatch(r"\[([\w.]+)\]", line):
            section = header[1]
        elif setting := re.fullmatch(r"#(\w+) = (.+)", line):
            assert (section, setting[1]) not in found
            found[section, setting[1]] = setting[2]
    return found


def test_the_example_settings_are_all_settings_with_their_defaults() -> None:
    example = example_settings()

    assert list(example) == list(DEFAULTS)
    for name, default in DEFAULTS.items():
        if default is not None and name != ("", "data_dir"):
            value = tomllib.loads(f"value = {example[name]}")["value"]
            assert json.dumps(value) == json.dumps(default), name


def test_the_example_settings_say_where_there_is_no_default() -> None:
    for section, name, default, _ in walk_settings():
        if default is None:
            above = re.search(rf"((?:^#.*\n)+)#{name} = ", EXAMPLE[EXAMPLE.index(f"[{section}]") :], flags=re.MULTILINE)
            assert above is not None and "ot set by default" in above[1], name


def test_the_example_settings_load_as_they_are_and_uncommented(tmp_path: Path) -> None:
    whole = tmp_path / "whole.toml"
    whole.write_text(re.sub(r"^#(\w+ = )", r"\1", EXAMPLE, flags=re.MULTILINE), encoding="utf-8")

    assert load_settings(ROOT / "config.example.toml").namespace == "default"
    assert load_settings(whole).http.port == 8420


def test_every_variable_in_the_docs_is_a_setting() -> None:
    known = {variable_of(section, name) for section, name, _, _ in walk_settings()}
    texts = [*PAGES.values(), EXAMPLE, (ROOT / "Dockerfile").read_text(encoding="utf-8")]
    named = {variable for text in texts for variable in re.findall(r"PERDURE_[A-Z_]*[A-Z]", text)}

    assert named <= known | NOT_SETTINGS


@pytest.mark.parametrize("block", [block for block in blocks("json") if "hooks" not in json.loads(block)])
def test_every_client_snippet_is_json_that_names_the_command_or_the_address(block: str) -> None:
    (servers,) = json.loads(block).values()
    entry = servers["perdure"]

    assert set(entry) <= {"type", "command", "args", "url", "httpUrl"}
    if "command" in entry:
        assert entry["command"].startswith("/")
        assert entry["command"].endswith("/.venv/bin/perdure")
    else:
        assert (
            entry.get("url") or entry["httpUrl"]
        ) == f"http://{DEFAULTS['http', 'host']}:{DEFAULTS['http', 'port']}/mcp"


@pytest.mark.parametrize("block", blocks("toml"))
def test_every_toml_snippet_is_of_codex_or_loads_as_settings(block: str, tmp_path: Path) -> None:
    values = tomllib.loads(block)
    file = tmp_path / "config.toml"
    file.write_text(block, encoding="utf-8")

    if "mcp_servers" in values:
        assert set(values["mcp_servers"]["perdure"]) in ({"command"}, {"url"})
    else:
        load_settings(file)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_within_the_repository_leads_somewhere(name: str) -> None:
    here = (ROOT / name).parent
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#([\w-]+))?\)", PAGES[name])

    for target, anchor in targets:
        assert (here / target).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (here / target).read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}


def test_every_proof_the_readme_names_selects_a_test() -> None:
    names = "\n".join(
        match
        for path in (ROOT / "tests").rglob("test_*.py")
        for match in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )

    for keyword in re.findall(r"ARGS='-k (\w+)'", README):
        assert keyword in names, keyword


def test_docs_carry_no_word_of_an_unfinished_page() -> None:
    assert not [name for name, page in PAGES.items() if re.search(r"\b(TODO|FIXME|TBD|XXX)\b", page)]


def test_every_test_that_the_docs_name_exists() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }
    named = {name for page in PAGES.values() for name in re.findall(r"`(test_\w+)`", page)}
    assert named and named <= defined, named - defined
