"""Vectors from an OpenAI-compatible endpoint, under a deadline, and checked before anybody trusts them."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perdure.embedders import Matrix, Vector
from perdure.endpoint import is_url, within
from perdure.errors import Unavailable

if TYPE_CHECKING:
    # Importing openai takes a second and more: it waits for the first text.
    from openai import OpenAI

    from perdure.settings import EmbedderSettings

BATCH = 64
SECONDS_A_TEXT = 0.25  # what a batch may take when that is more than the deadline
FAILURES = 3  # this many calls in a row fail, then calls fail at once until rest_s has passed
FIRST_PAUSE_S = 0.1
OPENAI = "https://api.openai.com/v1"


class OpenAIEmbedder:
    """One model behind one endpoint. Safe to call from many threads; nothing is contacted before the first text.

    `id` names the model, the configured dimensions and the prefixes, not the endpoint: the same model served elsewhere
    gives the same vectors. `dimensions` is 0 until it is configured or the first answer has come.
    """

    weak_below = None
    latin_only = False

    def __init__(self, settings: EmbedderSettings, *, rest_s: float = 5.0) -> None:
        self._settings = settings
        self._rest_s = rest_s
        self._dimensions = settings.dimensions or 0
        self._lock = threading.Lock()
        self._client: OpenAI | None = None
        self._failures = 0
        self._rest_until = 0.0

    @property
    def id(self) -> str:
        prefixes = f"{self._settings.query_prefix}\0{self._settings.document_prefix}"
        view = hashlib.sha256(prefixes.encode()).hexdigest()[:8] if len(prefixes) > 1 else "plain"
        return f"{self._settings.model}/{self._settings.dimensions or 'full'}/{view}"

    @property
    def dimensions(self) -> int:
        return self._dimensions

    def embed_documents(self, texts: Sequence[str], *, deadline_s: float | None = None) -> Matrix:
        """Return one row per text. Each 64 texts get `deadline_s`, retries included.

        Without one it is the settings' deadline_s, or 0.25 s a text if that is more.
        """
        rows: list[Matrix] = []
        for first in range(0, len(texts), BATCH):
            batch = [self._settings.document_prefix + text for text in texts[first : first + BATCH]]
            budget_s = deadline_s or max(self._settings.deadline_s, SECONDS_A_TEXT * len(batch))
            rows.append(self._call(batch, budget_s, retry=True))
        return np.concatenate(rows) if rows else np.empty((0, self._dimensions), np.float32)

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a question: one try within deadline_s."""
        return self._call([self._settings.query_prefix + text], self._settings.deadline_s, retry=False)[0]

    def begin_query(self, text: str) -> Callable[[], Vector]:
        return lambda: self.embed_query(text)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _call(self, texts: list[str], budget_s: float, *, retry: bool) -> Matrix:
        client = self._open()
        self._admit()
        end = time.monotonic() + budget_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                vectors = self._checked(self._ask(client, texts, end - time.monotonic()), len(texts))
            except _Failure as failure:
                if retry and failure.passing and time.monotonic() + pause_s < end:
                    time.sleep(pause_s)
                    pause_s *= 2
                    continue
                self._note(failed=not failure.by_input)
                raise Unavailable(f"The embedding endpoint {failure}") from failure.__cause__
            self._note(failed=False)
            return vectors

    def _open(self) -> OpenAI:
        """Return the client. Outside the deadline, which the first import would eat in a one-call command."""
        with self._lock:
            if self._client is None:
                if not self._settings.api_key and not self._settings.base_url:
                    raise Unavailable(
                        "No embedding endpoint is set: embedder.api_key, or embedder.base_url for a local one."
                    )
                url = self._settings.base_url or OPENAI
                if not is_url(url):
                    raise Unavailable("embedder.base_url is not a URL. Write it like http://127.0.0.1:11434/v1.")
                from openai import Omit, OpenAI

                # The package would take these two from the environment, which belongs to other programs.
                unsent: Any = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}  # Any: typed as str only
                key = self._settings.api_key or "none"  # local servers take any
                self._client = OpenAI(api_key=key, base_url=url, max_retries=0, default_headers=unsent)
            return self._client

    def _admit(self) -> None:
        """Raise Unavailable while the endpoint rests; when the rest is over, let one call through to try it."""
        with self._lock:
            if self._failures < FAILURES:
                return
            now = time.monotonic()
            if now < self._rest_until:
                raise Unavailable(
                    f"The embedding endpoint failed {self._failures} times in a row. It is tried again soon."
                )
            self._rest_until = now + self._rest_s

    def _note(self, *, failed: bool) -> None:
        with self._lock:
            self._failures = self._failures + 1 if failed else 0
            if self._failures >= FAILURES:
                self._rest_until = time.monotonic() + self._rest_s

    def _ask(self, client: OpenAI, texts: list[str], seconds: float) -> list[tuple[Any, Any]]:
        """Return (index, embedding) as the endpoint gave them, unchecked."""
        import openai

        def ask() -> list[tuple[Any, Any]]:
            answer = client.embeddings.create(
                model=self._settings.model,
                # A lone surrogate, which JSON may carry, cannot be encoded.
                input=[text.encode("utf-8", "replace").decode("utf-8") for text in texts],
                # Left alone the package asks for base64, which some compatible servers get wrong.
                encoding_format="float",
                dimensions=self._settings.dimensions or openai.omit,
                timeout=seconds,
            )
            return [(each.index, each.embedding) for each in answer.data]

        try:
            return within(seconds, ask)
        except TimeoutError as exc:
            raise _Failure(f"did not answer within {seconds:.2g} s.", passing=True) from exc
        except openai.APITimeoutError as exc:
            raise _Failure(f"did not answer within {seconds:.2g} s.", passing=True) from exc
        except openai.APIStatusError as exc:
            raise _status_failure(exc.status_code) from exc
        except openai.APIConnectionError as exc:
            raise _Failure("cannot be reached. Check embedder.base_url and the network.", passing=True) from exc
        except (openai.OpenAIError, AttributeError, TypeError, ValueError) as exc:
            raise _Failure("gave an answer that is not one of embeddings. Check embedder.base_url.") from exc

    def _checked(self, answer: list[tuple[Any, Any]], count: int) -> Matrix:
        """Return the vectors in the order of the texts, of unit length, or raise _Failure."""
        if sorted(index for index, _ in answer if isinstance(index, int)) != list(range(count)):
            raise _Failure(f"gave {len(answer)} vectors for {count} texts, or numbered them wrongly.")
        try:
            rows = np.asarray([embedding for _, embedding in sorted(answer, key=lambda each: each[0])], np.float64)
        except (TypeError, ValueError) as exc:
            raise _Failure("gave vectors that are not equally long lists of numbers.") from exc
        if rows.ndim != 2:
            raise _Failure("gave vectors that are not lists of numbers.")
        with np.errstate(over="ignore"):
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and (lengths > 0).all()):
            raise _Failure("gave a vector that is zero or not finite.")
        with self._lock:
            self._dimensions = self._dimensions or rows.shape[1]
        if rows.shape[1] != self._dimensions:
            raise _Failure(
                f"gave {rows.shape[1]} dimensions instead of {self._dimensions}. Set embedder.model and "
                "embedder.dimensions to what it serves now, then run `perdure reindex`."
            )
        return (rows / lengths).astype(np.float32)


class _Failure(Exception):
    """Why one request failed. `passing`: worth another try; `by_input`: the text's fault, not the endpoint's."""

    def __init__(self, text: str, *, passing: bool = False, by_input: bool = False) -> None:
        super().__init__(text)
        self.passing = passing
        self.by_input = by_input


def _status_failure(status: int) -> _Failure:
    match status:
        case 400 | 413 | 422:
            return _Failure(f"refused the text, the model or the dimensions (HTTP {status}).", by_input=True)
        case 401 | 403:
            return _Failure(f"refused the credential (HTTP {status}). Check embedder.api_key.")
        case 404:
            return _Failure("has no such model or path (HTTP 404). Check embedder.model and embedder.base_url.")
        case 429:
            return _Failure("is over its rate limit or quota (HTTP 429).", passing=True)
        case _:
            return _Failure(f"failed (HTTP {status}).", passing=status in (408, 409) or status >= 500)
