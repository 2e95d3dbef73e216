"""What has to be known of the settings before anything heavy is imported. Standard library only.

perdure.settings reads all of them, with pydantic, which costs a fifth of a second; a test keeps the two equal.
"""

from __future__ import annotations

import os
import sys
from typing import Any

Toml = dict[str, Any]  # Any: TOML of whatever type


def environment() -> dict[str, str]:
    """Return our variables in upper case, as pydantic reads them, but for empty ones."""
    found = {name.upper(): value for name, value in os.environ.items() if name.upper().startswith("PERDURE_")}
    return {name: value for name, value in found.items() if value}


def config_file(config: str | None) -> tuple[str, bool]:
    """Return where the settings file is, and whether somebody said so, so that it has to be there."""
    said = config or os.environ.get("PERDURE_CONFIG")
    return os.path.expanduser(said or _default_config_file()), bool(said)  # noqa: PTH111 pathlib costs 5 ms here


def read_toml(path: str, *, must_exist: bool) -> Toml | None:
    """Return what the settings file says, {} where there is none; None when only the real reader can tell."""
    if not must_exist and not os.path.isfile(path):  # noqa: PTH113
        return {}
    import tomllib  # only then: it costs more than all the rest here

    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return tomllib.load(file)
    except (OSError, ValueError):
        return None


def data_dir(said: str | None, toml: Toml) -> str | None:
    """Return where everything is kept, absolute; None when only the real reader can tell."""
    found: Any = said or environment().get("PERDURE_DATA_DIR") or toml.get("data_dir") or _default_data_dir()
    return os.path.join(os.getcwd(), os.path.expanduser(found)) if isinstance(found, str) else None  # noqa: PTH109 PTH111 PTH118


def _default_data_dir() -> str:
    home = os.path.expanduser("~")  # noqa: PTH111
    if sys.platform == "darwin":
        return home + "/Library/Application Support/perdure"
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA", home + "/AppData/Local") + "/perdure"
    return (os.environ.get("XDG_DATA_HOME") or home + "/.local/share") + "/perdure"


def _default_config_file() -> str:
    if sys.platform in ("darwin", "win32"):
        return _default_data_dir() + "/config.toml"
    return (os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~") + "/.config") + "/perdure/config.toml"  # noqa: PTH111
