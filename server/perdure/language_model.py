"""Text from an OpenAI-compatible chat endpoint, under a deadline. Nothing is sent anywhere unless one is configured."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from perdure.endpoint import is_url, within
from perdure.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    # Importing openai takes a second and more: it waits for the first text.
    from openai import OpenAI

    from perdure.settings import LanguageModelSettings

FIRST_PAUSE_S = 0.2
CHARS_A_TOKEN = 3  # fewer than in English prose, so that a guess is seldom too low
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.S)  # of models that think aloud, before their answer
NOT_SET = (
    "No language model is set: give language_model.base_url and language_model.model in the settings file, or leave the"
    " model out (extractive rules need none)."
)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model answered, and the tokens it cost, question and answer together."""

    text: str
    tokens: int


class Late(Unavailable):
    """The model was asked and did not answer in time: what that cost is not known."""


class LanguageModel:
    """One model behind one endpoint. Nothing is contacted before the first question."""

    def __init__(self, settings: LanguageModelSettings) -> None:
        self._settings = settings
        self._client: OpenAI | None = None
        self._opening = threading.Lock()

    @property
    def configured(self) -> bool:
        return bool(self._settings.base_url and self._settings.model)

    def complete(self, system: str, prompt: str, *, max_tokens: int) -> Completion:
        """Return the model's answer to `prompt` under the instructions `system`.

        It takes at most deadline_s, tries again included. Raises InvalidInput where no model is set, and Unavailable.
        """
        client = self._open()
        end = time.monotonic() + self._settings.deadline_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self._ask(client, system, prompt, max_tokens, end - time.monotonic())
            except _Failure as failure:
                if failure.passing and time.monotonic() + pause_s < end:
                    time.sleep(pause_s)
                    pause_s *= 2
                    continue
                kind = Late if failure.late else Unavailable
                raise kind(f"The language model {failure}") from failure.__cause__

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _open(self) -> OpenAI:
        """Return the client. Outside the deadline, which the first import would eat in a one-call command."""
        with self._opening:
            if self._client is None:
                if not self._settings.base_url or not self._settings.model:
                    raise InvalidInput(NOT_SET)
                if not is_url(self._settings.base_url):
                    raise InvalidInput("language_model.base_url is not a URL. Write it like http://127.0.0.1:11434/v1.")
                from openai import Omit, OpenAI

                # The package would take these two from the environment, which belongs to other programs.
                unsent: Any = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}  # Any: typed as str only
                key = self._settings.api_key or "none"  # local servers take any
                self._client = OpenAI(
                    api_key=key, base_url=self._settings.base_url, max_retries=0, default_headers=unsent
                )
            return self._client

    def _ask(self, client: OpenAI, system: str, prompt: str, max_tokens: int, seconds: float) -> Completion:
        import openai

        # A lone surrogate, which JSON may carry, cannot be encoded.
        sent = [text.encode("utf-8", "replace").decode("utf-8") for text in (system, prompt)]
        # OpenAI's newer models refuse the one name, and many compatible servers do not know the other.
        own = (urlsplit(self._settings.base_url or "").hostname or "").endswith("openai.com")

        def ask() -> tuple[Any, Any]:
            answer = client.chat.completions.create(
                model=self._settings.model or "",
                messages=[{"role": "system", "content": sent[0]}, {"role": "user", "content": sent[1]}],
                max_completion_tokens=max_tokens if own else openai.omit,
                max_tokens=openai.omit if own else max_tokens,
                timeout=seconds,
            )
            return answer.choices[0].message.content, answer.usage.total_tokens if answer.usage else None

        try:
            text, tokens = within(seconds, ask)
        except (TimeoutError, openai.APITimeoutError) as exc:
            raise _Failure(f"did not answer within {self._settings.deadline_s:g} s.", late=True) from exc
        except openai.APIStatusError as exc:
            raise _status_failure(exc.status_code) from exc
        except openai.APIConnectionError as exc:
            raise _Failure("cannot be reached. Check language_model.base_url and the network.", passing=True) from exc
        except (openai.OpenAIError, AttributeError, TypeError, ValueError, IndexError) as exc:
            raise _Failure("gave an answer that is not one of a chat. Check language_model.base_url.") from exc
        answer = _THOUGHTS.sub("", text).strip() if isinstance(text, str) else ""
        guessed = tokens_of(*sent, text if isinstance(text, str) else "")
        return Completion(answer, tokens if isinstance(tokens, int) and tokens > 0 else guessed)


def tokens_of(*texts: str) -> int:
    """Return about how many tokens the texts are, rather too many than too few."""
    return sum(len(text.encode("utf-8", "replace")) // CHARS_A_TOKEN + 8 for text in texts)


class _Failure(Exception):
    """Why one request failed. `passing`: worth another try; `late`: the model may have worked all the same."""

    def __init__(self, text: str, *, passing: bool = False, late: bool = False) -> None:
        super().__init__(text)
        self.passing = passing
        self.late = late


def _status_failure(status: int) -> _Failure:
    match status:
        case 400 | 413 | 422:
            return _Failure(f"refused the text or its length (HTTP {status}). Check language_model.model.")
        case 401 | 403:
            return _Failure(f"refused the credential (HTTP {status}). Check language_model.api_key.")
        case 404:
            return _Failure(
                "has no such name or path (HTTP 404). Check language_model.model and language_model.base_url."
            )
        case 429:
            return _Failure("is over its rate limit or quota (HTTP 429).", passing=True)
        case _:
            return _Failure(f"failed (HTTP {status}).", passing=status in (408, 409) or status >= 500)
