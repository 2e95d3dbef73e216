"""Encrypted backups: opened by the right key or passphrase alone, by Perdure and by age, and made in pieces."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pyrage import decrypt, passphrase, x25519

from test_cli import PERDURE, CommandLine

pytestmark = pytest.mark.sqlite(reason="backups are of a store in a file")

SECRET = "correct horse battery staple"
SAID = "The zanzibarine gate is green."
MANY_BYTES = 96 * 1024 * 1024


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    found = CommandLine(tmp_path)
    found.answer("remember", SAID)
    found.answer("files", "write", "gate.md", stdin=f"{SAID}\n" * 1_000)
    return found


def age_key(folder: Path, name: str = "key.txt") -> tuple[Path, str]:
    """Return the file of a new key, as age-keygen writes it, and its public key."""
    key = x25519.Identity.generate()
    file = folder / name
    file.write_text(f"# created: 2026-01-01T00:00:00Z\n# public key: {key.to_public()}\n{key}\n", encoding="utf-8")
    return file, str(key.to_public())


def ssh_key(folder: Path) -> tuple[Path, str]:
    key, file = Ed25519PrivateKey.generate(), folder / "id"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return file, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def restored(cli: CommandLine, home: Path, *options: str, **environment: str) -> tuple[int, str, CommandLine]:
    """Return how a restore into an empty directory went, and what is there."""
    home.mkdir()
    other = CommandLine(home)
    status, _, err = other.run("restore", *options, **environment)
    return status, err, other


def assert_whole(other: CommandLine) -> None:
    assert SAID in other.answer("recall", "zanzibarine gate")
    assert other.answer("files", "read", "gate.md").count(SAID) > 10


def test_a_passphrase_opens_a_backup_and_another_one_changes_nothing(cli: CommandLine, tmp_path: Path) -> None:
    backup = tmp_path / "b.zip"
    assert cli.run("backup", str(backup), "--encrypt", PERDURE_PASSPHRASE=SECRET)[0] == 0
    assert b"zanzibarine" not in backup.read_bytes() and backup.stat().st_mode & 0o077 == 0

    status, err, other = restored(cli, tmp_path / "wrong", str(backup), PERDURE_PASSPHRASE="another one")
    assert status == 1 and "The passphrase does not open" in err and "Nothing was changed" in err
    assert not (other.data_dir / "perdure.db").exists() and not [*other.data_dir.glob(".*")]
    status, err, _ = restored(cli, tmp_path / "none", str(backup))
    assert status == 2 and "PERDURE_PASSPHRASE" in err
    status, err, other = restored(cli, tmp_path / "right", str(backup), PERDURE_PASSPHRASE=SECRET)
    assert status == 0, err
    assert_whole(other)
    assert SECRET not in err


def test_any_of_the_keys_opens_a_backup_and_no_other_does(cli: CommandLine, tmp_path: Path) -> None:
    (age, age_public), (ssh, ssh_public) = age_key(tmp_path), ssh_key(tmp_path)
    stranger, _ = age_key(tmp_path, "other.txt")
    backup = tmp_path / "b.zip.age"
    assert cli.run("backup", str(backup), "--recipient", age_public, "--recipient", ssh_public)[0] == 0
    assert b"zanzibarine" not in backup.read_bytes()

    for name, key in (("age", age), ("ssh", ssh)):
        status, err, other = restored(cli, tmp_path / name, str(backup), "--identity", str(key))
        assert status == 0, err
        assert_whole(other)
    status, err, _ = restored(cli, tmp_path / "wrong", str(backup), "--identity", str(stranger))
    assert status == 1 and "None of the keys opens" in err
    status, err, _ = restored(cli, tmp_path / "none", str(backup))
    assert status == 2 and "--identity" in err


def test_what_is_no_key_is_refused_before_anything_is_written(cli: CommandLine, tmp_path: Path) -> None:
    secret, public = age_key(tmp_path)
    keys = tmp_path / "keys.txt"
    keys.write_text(f"# ours\n{public}\n", encoding="utf-8")
    backup = tmp_path / "b.zip.age"
    for wrong in ("age1nonsense", "ssh-ed25519 nonsense", str(tmp_path / "missing"), str(secret)):
        status, _, err = cli.run("backup", str(backup), "--recipient", wrong)
        assert status == 2 and not backup.exists(), wrong
        assert "AGE-SECRET-KEY" not in err.replace(str(secret), "")
    assert cli.run("backup", str(backup), "--recipient", public, "--encrypt")[0] == 2
    assert cli.run("backup", str(backup), "--recipient", str(keys))[0] == 0
    status, _, err = cli.run("restore", str(backup), "--identity", str(keys))
    assert status == 2 and "holds no key" in err


def test_a_damaged_or_short_one_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    key, public = age_key(tmp_path)
    assert cli.run("backup", str(tmp_path / "b.age"), "--recipient", public)[0] == 0
    whole = (tmp_path / "b.age").read_bytes()
    middle = len(whole) // 2
    for name, data in (
        ("short", whole[:middle]),
        ("cut", whole[:-1]),
        ("flipped", whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]),
    ):
        file = tmp_path / f"{name}.age"
        file.write_bytes(data)
        status, err, other = restored(cli, tmp_path / name, str(file), "--identity", str(key))
        assert status == 1 and "Nothing was changed" in err, (name, err)
        assert not (other.data_dir / "perdure.db").exists()


def test_age_and_unzip_open_it_without_perdure(cli: CommandLine, tmp_path: Path) -> None:
    key, public = age_key(tmp_path)
    assert cli.run("backup", str(tmp_path / "b.age"), "--recipient", public)[0] == 0
    assert cli.run("backup", str(tmp_path / "b.zip"), "--encrypt", PERDURE_PASSPHRASE=SECRET)[0] == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as sealed:
        assert sealed.namelist() == ["key.age", "backup.age"]
        inner = x25519.Identity.from_str(passphrase.decrypt(sealed.read("key.age"), SECRET).decode().strip())
        plain = [decrypt(sealed.read("backup.age"), [inner])]
    if (age := shutil.which("age")) is not None:
        command = [age, "-d", "-i", str(key), str(tmp_path / "b.age")]
        plain.append(subprocess.run(command, capture_output=True, check=True).stdout)
    for each in plain:
        with zipfile.ZipFile(io.BytesIO(each)) as archive:
            assert archive.testzip() is None and b"zanzibarine" in archive.read("perdure.db")


def test_an_erasure_names_the_backups_it_cannot_look_into(cli: CommandLine, tmp_path: Path) -> None:
    _, public = age_key(tmp_path)
    backups = tmp_path / "backups"
    backups.mkdir()
    assert cli.run("backup", str(backups / "a.age"), "--recipient", public)[0] == 0
    assert cli.run("backup", str(backups / "b.zip"), "--encrypt", PERDURE_PASSPHRASE=SECRET)[0] == 0
    _, out, err = cli.run("erase", "--namespace", "default", "--backups", str(backups), "--yes")
    for name in ("a.age", "b.zip"):
        assert re.search(rf"{name}: .*is encrypted, so it was not looked into", out + err), out + err


def test_a_large_backup_does_not_lie_in_memory(cli: CommandLine, tmp_path: Path) -> None:
    _, public = age_key(tmp_path)
    files = cli.data_dir / "workspace" / "default" / "files"
    with (files / "film.bin").open("wb") as film:
        film.truncate(MANY_BYTES)
    assert cli.run("backup", str(tmp_path / "warm"))[0] == 0
    most: dict[str, int] = {}
    for name, options in (("plain", []), ("sealed", ["--recipient", public])):
        made = tmp_path / name
        process = subprocess.Popen([PERDURE, "backup", str(made), *options], env=cli.environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        assert status == 0 and made.stat().st_size > MANY_BYTES
        most[name] = usage.ru_maxrss * 1024
    assert most["sealed"] - most["plain"] < MANY_BYTES // 4, most
