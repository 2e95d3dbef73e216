"""The `perdure` command. Bare and without a terminal it speaks MCP over stdio, before anything heavy is imported."""

from __future__ import annotations

import sys

FLAGS = {"--namespace": "namespace", "--agent": "agent", "--data-dir": "data_dir", "--config": "config"}


def main() -> None:
    """Run what the command line asks for: the stdio server when it names no other command."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from perdure import __version__

        sys.stdout.write(f"perdure {__version__}\n")
        return
    options, rest = _options(arguments)
    if options is not None and (rest == ["stdio"] or (not rest and not sys.stdin.isatty())):
        from perdure.mcp.front import Options, serve_stdio

        serve_stdio(Options(**options))
    if options is not None and rest[:1] == ["context"]:
        from perdure.warm import asking

        if (parsed := asking.parse(rest[1:])) is not None:
            if (left := asking.answer(options, *parsed)) is not None:
                from perdure.cli.context import answer_here  # opens the service: most of a second

                answer_here(options, left)
            return
    from perdure.cli import app

    app(args=arguments or ["--help"], prog_name="perdure", command=rest[0] if rest else None)


def _options(arguments: list[str]) -> tuple[dict[str, str] | None, list[str]]:
    """Split the global options off the front; None when one lacks its value, which the full parser then says."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].partition("=")[0] in FLAGS:
        flag, equals, value = rest.pop(0).partition("=")
        if not equals:
            if not rest:
                return None, arguments
            value = rest.pop(0)
        options[FLAGS[flag]] = value
    return options, rest


if __name__ == "__main__":
    main()
