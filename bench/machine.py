"""Where and from what a figure came, and what a process weighs."""

from __future__ import annotations

import datetime
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def provenance() -> list[str]:
    """Return the lines every result file starts with: command, date, commit, machine."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    return [
        f"- command: `python {' '.join(_shown(arg) for arg in sys.argv)}`",
        f"- date: {date}",
        f"- commit: {_commit()}",
        f"- machine: {_cpu()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()},"
        f" Python {platform.python_version()}; load average at the end {load}",
    ]


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process in MB of 2^20 bytes, the unit of the kernel's and the peers' figures."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(x for x in status.read_text(encoding="utf-8").splitlines() if x.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return int(_output("ps", "-o", "rss=", "-p", str(pid))) / 1024


def worker_pids(data_dir: Path) -> dict[str, int]:
    """Return the running workers of a data directory by name, from the command lines of this user's processes."""
    found: dict[str, int] = {}
    for line in _output("ps", "-axww", "-o", "pid=,args=").splitlines():
        pid, _, args = line.strip().partition(" ")
        for name in ("embed", "index"):
            if f"perdure.worker.{name}" in args and str(data_dir) in args:
                found[name] = int(pid)
    return found


def stop_workers(data_dir: Path) -> None:
    """End the workers of a data directory that is about to be removed; they would end when idle otherwise."""
    for pid in worker_pids(data_dir).values():
        os.kill(pid, signal.SIGTERM)


def _commit() -> str:
    head = _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", "server", "models").strip()
    return f"{head or 'none yet'}{' with uncommitted changes' if changed else ''}"


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return _output("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.processor() or "unknown processor"


def _shown(argument: str) -> str:
    """Leave the reader's own folders out of a file that is published: of a path outside the project, its name."""
    path = Path(argument)
    if path.resolve().is_relative_to(ROOT):
        return os.path.relpath(path, ROOT) if path.is_absolute() else argument
    return path.name


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""
