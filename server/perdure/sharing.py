"""Collections: memories that several namespaces have together, and which of them a key leads into.

A collection's rows stand under `collection.NAME`, a name that no namespace can have. A memory goes into it by its key,
which begins with `shared/NAME/`; the keys of a collection are stored whole, so that they mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.errors import Refused
from perdure.settings import Settings
from perdure.types import COLLECTION_SPACE, EVERY_NAMESPACE


@dataclass(frozen=True, slots=True)
class Collection:
    """Memories under one name: `namespaces` recall them, `writers` store and forget them too."""

    name: str
    namespaces: tuple[str, ...]
    writers: tuple[str, ...]

    @property
    def space(self) -> str:
        """What its rows stand under in the place of a namespace."""
        return COLLECTION_SPACE + self.name

    @property
    def prefix(self) -> str:
        """What the keys of its memories begin with; by itself, it stands for a memory without a key."""
        return f"shared/{self.name}/"

    def is_for(self, namespace: str) -> bool:
        return _among(namespace, self.namespaces) or self.is_written_by(namespace)

    def is_written_by(self, namespace: str) -> bool:
        return _among(namespace, self.writers)

    def refuse_write(self, namespace: str) -> None:
        """Raise Refused where a namespace only reads it."""
        if not self.is_written_by(namespace):
            raise Refused(
                f"The collection {self.name} is read-only for the namespace {namespace}: its memories can be recalled. "
                f"Remember under another key than {self.prefix}…, or have the operator add the namespace to "
                f"collections.{self.name}.writers."
            )


class Collections:
    """The collections of the settings."""

    def __init__(self, settings: Settings) -> None:
        each = settings.collections.items()
        self._collections = tuple(Collection(name, its.namespaces, its.writers) for name, its in sorted(each))

    def of(self, namespace: str) -> tuple[Collection, ...]:
        """Return those that a namespace has, by name."""
        return tuple(each for each in self._collections if each.is_for(namespace))

    def of_key(self, namespace: str, key: str | None) -> Collection | None:
        """Return the collection that a key leads into; None for the namespace's own memories."""
        return next((each for each in self.of(namespace) if key is not None and key.startswith(each.prefix)), None)

    def is_prefix(self, namespace: str, key: str | None) -> bool:
        """Say whether a key is what those of a collection begin with, and no more."""
        return (found := self.of_key(namespace, key)) is not None and found.prefix == key

    def of_space(self, namespace: str, space: str) -> Collection | None:
        return next((each for each in self.of(namespace) if each.space == space), None)

    def spaces(self, namespace: str) -> tuple[str, ...]:
        """Return the namespace and the collections it has, as rows name them."""
        return (namespace, *(each.space for each in self.of(namespace)))


def name_of(space: str) -> str | None:
    """Return the name of the collection whose rows stand under this; None for a namespace or a volume."""
    return space.removeprefix(COLLECTION_SPACE) if space.startswith(COLLECTION_SPACE) else None


def _among(namespace: str, names: Sequence[str]) -> bool:
    return EVERY_NAMESPACE in names or namespace in names
