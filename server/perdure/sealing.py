"""Backups that only a key or a passphrase opens, in the format of age (age-encryption.org/v1), by pyrage.

Sealed for keys, the file is what `age -d -i KEY` opens. Sealed with a passphrase it is a ZIP of two: `key.age` is a key
under the passphrase, and `backup.age` is sealed for that key. `unzip` and `age -d -i key.age backup.age` open it. A
passphrase by itself would take the whole backup into memory: the library works in pieces for keys alone.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import pyrage
from pyrage import passphrase, ssh, x25519

from perdure.errors import InvalidInput, PerdureError, Refused, Unavailable

BEGINS = b"age-encryption.org/v1\n"
KEY, SEALED = "key.age", "backup.age"
MAX_KEYS_BYTES = 1024 * 1024  # of a file of keys; one takes a hundred bytes, one of SSH some thousand

Recipient = x25519.Recipient | ssh.Recipient
Identity = x25519.Identity | ssh.Identity
Lock = Literal["key", "passphrase"]


@dataclass(frozen=True, slots=True)
class Seal:
    """What will open a backup: one of the keys that belong to `recipients`, or the passphrase where there are none."""

    recipients: tuple[Recipient, ...] = ()
    secret: str = ""

    def __repr__(self) -> str:
        return f"Seal({'passphrase' if self.secret else len(self.recipients)})"


def recipients_of(texts: Sequence[str]) -> tuple[Recipient, ...]:
    """Return public keys: each text is age1…, an SSH key, or a file of such lines. Raises InvalidInput."""
    found: list[Recipient] = []
    for text in texts:
        is_key = text.startswith(("age1", "ssh-"))
        lines = [text] if is_key else _lines(Path(text).expanduser(), "public keys, and it is no age1… or ssh-… itself")
        for line in lines:
            kind = ssh.Recipient if line.startswith("ssh-") else x25519.Recipient
            try:
                found.append(kind.from_str(line))
            except pyrage.RecipientError as exc:
                # Whatever it is, a secret key by mistake perhaps, is not shown.
                raise InvalidInput(f"What --recipient gives is no public key, age1… or ssh-…: {exc}.") from exc
    return tuple(found)


def identities_of(files: Sequence[Path]) -> tuple[Identity, ...]:
    """Return the secret keys in files of age or SSH. Raises InvalidInput, which never shows a key."""
    found: list[Identity] = []
    for file in files:
        lines = _lines(file, "secret keys")
        try:
            if lines and lines[0].startswith("-----BEGIN"):
                found.append(ssh.Identity.from_buffer(file.read_bytes()))
            else:
                found += [x25519.Identity.from_str(line) for line in lines]
        except pyrage.IdentityError as exc:
            raise InvalidInput(
                f"{file} holds no key that can be used: {exc}. Give a file of age-keygen, or of ssh-keygen without a "
                "passphrase."
            ) from exc
    return tuple(found)


def lock_of(file: Path) -> Lock | None:
    """Return what opens a backup, None for one that is not sealed. Raises InvalidInput if it cannot be read."""
    try:
        with file.open("rb") as opened:
            if opened.read(len(BEGINS)) == BEGINS:
                return "key"
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                return "passphrase" if archive.namelist() == [KEY, SEALED] else None
    except zipfile.BadZipFile:
        return None  # told when it is unpacked
    except OSError as exc:
        raise InvalidInput(f"{file} cannot be read: {exc.strerror}.") from exc
    return None


@contextmanager
def sealing(out: IO[bytes], seal: Seal) -> Generator[IO[bytes]]:
    """Give what takes the plain bytes in order; all of them are in `out`, sealed, when the block has ended."""
    if seal.recipients:
        with _encrypted(out, seal.recipients) as plain:
            yield plain
        return
    key = x25519.Identity.generate()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(KEY, passphrase.encrypt(f"{key}\n".encode(), seal.secret))
        with (
            archive.open(zipfile.ZipInfo(SEALED), "w", force_zip64=True) as member,
            _encrypted(member, [key.to_public()]) as plain,
        ):
            yield plain


@contextmanager
def _encrypted(out: IO[bytes], recipients: Sequence[Recipient]) -> Generator[IO[bytes]]:
    # The library asks for what it encrypts, and a backup is written: a pipe between the two, and a thread for one.
    read, write = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(_encrypt, os.fdopen(read, "rb"), out, recipients)
        try:
            with os.fdopen(write, "wb") as plain:
                yield plain
        except (OSError, PerdureError):
            # The pipe broke since the other end failed: why is what there is to be told.
            if (failed := done.exception()) is not None:
                raise failed from None
            raise
        done.result()


def _encrypt(source: IO[bytes], out: IO[bytes], recipients: Sequence[Recipient]) -> None:
    with source:
        try:
            pyrage.encrypt_io(source, out, recipients)  # pyright: ignore[reportArgumentType] any object with read and write
        except (pyrage.EncryptError, OSError) as exc:
            raise Unavailable(f"The backup cannot be written: {exc}. There is none.") from exc


def unsealed(file: Path, lock: Lock, identities: Sequence[Identity], secret: str, folder: Path) -> Path:
    """Return the backup in the clear, as a new file in `folder`.

    Raises Refused for a wrong key or passphrase, a file that is damaged, and one that does not fit on the disk.
    """
    if (needed := file.stat().st_size) > (free := shutil.disk_usage(folder).free):
        raise Refused(f"{file} needs {needed:,} bytes to be opened, and {free:,} are free in {folder}. Make room.")
    plain = folder / "opened.zip"
    try:
        with plain.open("xb") as out:
            if lock == "key":
                with file.open("rb") as source:
                    _decrypt(source, out, identities)
            else:
                with zipfile.ZipFile(file) as archive, archive.open(SEALED) as source:
                    key = passphrase.decrypt(archive.read(KEY), secret).decode().strip()
                    _decrypt(source, out, [x25519.Identity.from_str(key)])
    except pyrage.DecryptError as exc:
        what = "None of the keys opens" if lock == "key" else "The passphrase does not open"
        raise Refused(f"{what} {file} ({exc}). Nothing was changed.") from exc
    except (OSError, zipfile.BadZipFile, pyrage.IdentityError, UnicodeDecodeError) as exc:
        raise Refused(f"{file} cannot be opened, or is damaged: {exc}. Nothing was changed.") from exc
    return plain


def _decrypt(source: IO[bytes], out: IO[bytes], identities: Sequence[Identity]) -> None:
    pyrage.decrypt_io(source, out, identities)  # pyright: ignore[reportArgumentType] any object with read and write


def _lines(file: Path, what: str) -> list[str]:
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_KEYS_BYTES).decode()
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise InvalidInput(f"{file} cannot be read for {what}: {why}.") from exc
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
