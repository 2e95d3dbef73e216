"""Two disposable processes per data directory: `embed` holds the local model, `index` holds Chroma or Qdrant.

    wire.py     one frame: a JSON header and raw bytes, over a Unix socket
    owner.py    the life of a worker: detached, one per folder under a kernel lock, ends when idle
    link.py     the calling side: a pool of connections, deadlines, start, replacement of a dead or silent worker
    clients.py  EmbedClient, IndexClient and QdrantIndexClient, which implement the two ports
    embed.py    `python -m perdure.worker.embed FOLDER JSON`: one text at a time, questions first
    index.py    `python -m perdure.worker.index FOLDER JSON`: Chroma, moved to when nobody asks, or Qdrant

A second kind of model, and the index of a store's second model, have a process of their own under another name
(`embed-multilingual`, `index-2`). Each has a folder DATA/workers/NAME of mode 0700 with `lock` (held by the owner; its
pid inside), `sock` (0600) and `log`. Any of them may be killed at any moment: the next call starts another. Nothing a
worker holds is the only copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.worker.clients import EmbedClient, IndexClient, QdrantIndexClient

__all__ = ["EmbedClient", "IndexClient", "QdrantIndexClient"]


def __getattr__(name: str) -> Any:  # Any: a module's attributes; a worker's own start must not import the clients
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perdure.worker import clients

    return getattr(clients, name)
