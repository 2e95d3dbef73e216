"""What holds on a server that many share: each part is a module with `measure`, and a row of the table or more.

usage: python bench/server.py [--part NAME ...] [--quick] [--command PERDURE] [--store NAME:VARIABLE=VALUE,...]
       [--out FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import parity
import tenants
from client import default_command, run_bench
from figures import table
from machine import ROOT, provenance

TENANTS, CALLS = 100, 10_000
Part = Callable[[argparse.Namespace], list[list[str]]]


def _tenants(options: argparse.Namespace) -> list[list[str]]:
    count, calls = (5, 250) if options.quick else (TENANTS, CALLS)
    return tenants.measure(options.command, count, calls, dict(options.store[0].environment))


def _parity(options: argparse.Namespace) -> list[list[str]]:
    return parity.measure(options.command, options.store)


PARTS: dict[str, Part] = {"parity": _parity, "tenants": _tenants}


def main() -> int:
    options = _options()
    rows: list[list[str]] = []
    for name in options.part or PARTS:
        found = PARTS[name](options)
        print("\n".join(" | ".join(row) for row in found), flush=True)
        rows += found
    if not options.part or options.out_was_given:
        head = ["# What holds on a shared server", "", *provenance(), ""]
        lines = [*head, *table(["what", "measured", "reach", ""], rows), ""]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines), encoding="utf-8")
        print(f"written to {options.out}")
    return 0 if all(row[-1] == "reached" for row in rows) else 1


def _store(text: str) -> parity.Store:
    """Return a store from NAME:VARIABLE=VALUE,VARIABLE=VALUE."""
    name, _, settings = text.partition(":")
    return parity.Store(name, dict(pair.split("=", 1) for pair in settings.split(",") if pair))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What holds on a server that many share.")
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="this one alone; repeat it")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a look")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument(
        "--store", action="append", help="NAME:VARIABLE=VALUE,...; repeat it. Default: both databases × each index"
    )
    parser.add_argument("--out", type=Path, help="where the table goes; of single parts only if it is given")
    options = parser.parse_args()
    options.out_was_given = options.out is not None
    options.out = options.out or ROOT / "bench" / "results" / "server.md"
    options.store = [_store(each) for each in options.store] if options.store else list(parity.STORES)
    return options


if __name__ == "__main__":
    run_bench(main)
