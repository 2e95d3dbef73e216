"""What must not be kept: private text, turns off the record, and credentials."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Generator
from pathlib import Path

import pytest

from conftest import Json, StartStdio, StdioClient
from perdure.privacy import is_off_the_record, without_private
from recalls import running
from test_cli import CommandLine

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
DRAW = random.Random(29)


def drawn(count: int, of: str = LETTERS) -> str:
    return "".join(DRAW.choice(of) for _ in range(count))


# A credential and the secret part of it, all drawn here.
CREDENTIALS = [
    (before + secret + after, secret)
    for before, secret, after in (
        ("", "AKIA" + drawn(16, string.ascii_uppercase + "234567"), ""),
        ("aws_secret_access_key = ", drawn(40), ""),
        ("", "AIza" + drawn(35), ""),
        ("DefaultEndpointsProtocol=https;AccountName=x;AccountKey=", base64.b64encode(DRAW.randbytes(63)).decode(), ""),
        ("", "ghp_" + drawn(36), ""),
        ("", "github_pat_" + drawn(60), ""),
        ("", "glpat-" + drawn(20), ""),
        ("", "npm_" + drawn(36), ""),
        ("", "xoxb-123456789012-" + drawn(24), ""),
        ("https://hooks.slack.com/services/", "T0001/B0002/" + drawn(24), ""),
        ("", "123456789:AA" + drawn(33), ""),
        ("", "sk_live_" + drawn(24), ""),
        ("", "sk-proj-9" + drawn(40), ""),
        ("", "hf_" + drawn(34, string.ascii_letters), ""),
        ("", f"SG.{drawn(22)}.{drawn(43)}", ""),
        ("", f"eyJ{drawn(20)}.eyJ{drawn(30)}.{drawn(43)}", ""),
        ("Authorization: Bearer ", "a1" + drawn(30), ""),
        ("Authorization: Basic ", base64.b64encode(b"ana:" + DRAW.randbytes(9)).decode(), ""),
        ("", f"-----BEGIN RSA PRIVATE KEY-----\n{drawn(64)}\n{drawn(64)}\n-----END RSA PRIVATE KEY-----", ""),
        ("https://ana:", "s3" + drawn(10), "@host.example.org/x"),
        ("postgres://app:", "p9" + drawn(9), "@db:5432/app"),
        ("Server=db;User Id=sa;Password=", "Q1" + drawn(9), ";"),
        ("password=", "correcthorse" + drawn(4, string.ascii_lowercase), ""),
        ("the password: ", "Tr0ub4dor&" + drawn(4), ""),
        ('{"client_secret": "', "c7" + drawn(22), '"}'),
        ("DB_PASSWORD=", "x" + drawn(12), ""),
        ("card ", "4111 1111 1111 1111", ""),
        ("card ", "5555-5555-5555-4444", " ok"),
        ("card ", "378282246310005", "."),
    )
]
HARMLESS = [
    "no API key in the build",
    "apiKey: import.meta.env.KEY",
    "3f786850e387550fdab836ed7e6dc881de23001b",
    "550e8400-e29b-41d4-a716-446655440000",
    "sha256:" + drawn(64, HEX),
    "data:image/png;base64," + base64.b64encode(DRAW.randbytes(900)).decode(),
    "AKIAIOSFODNN7EXAMPLE",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "the password field is blue",
    "password: str",
    "password=None",
    "password=password",
    "password=********",
    "Password: required",
    "password = os.environ['PW1']",
    "password=${DB_PASSWORD}",
    "password reset link: https://example.org/r1",
    "passwordless login: enabled2024",
    "The secret: between 8 and 12 characters",
    "secret santa: Bob",
    "secretary: Anna2",
    "secret_key_base: <%= ENV['X1'] %>",
    "token: string",
    "token: 1024",
    "token: AbstractTokenizer",
    "token_type: bearer",
    "max_tokens: 4096",
    "tokens=128000",
    "auth_token: process.env.AUTH_TOKEN1",
    "session token expired at 10:45",
    "export TOKEN=$(cat /run/secrets/x1)",
    "api_key=YOUR_API_KEY",
    "api_key: <your key here>",
    "api key: see vault",
    "primary key: user_id2",
    "foreign key: orders.id2",
    "key=value",
    "the key: a minor",
    "credential: none",
    "pwd: /home/ana2",
    "pwd=/home/ana2",
    "Bearer authentication is required",
    "the bearer of good news 12345",
    "basic tokens are cheap",
    "https://example.org:8080/a@b",
    "http://user@example.org",
    "https://user:password@example.com/",
    "https://ana:${PW}@host",
    "git@github.com:owner/repo.git",
    "ssh://git@host:22/repo",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + drawn(43) + " ana@host",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "order number 1234567890123456",
    "4111 1111 1111 1112",
    "0.4111111111111111",
    "1699999999999",
    "ISBN 978-3-16-148410-0",
    "IBAN DE89 3704 0044 0532 0130 00",
    "call +49 30 1234567",
    "sk-learn is a library",
    "sk-something-that-is-long-and-has-words",
    "xoxb tokens are for bots",
    "npm_config_registry=https://registry.npmjs.org",
]
WISHES = [
    "Don't remember this: my PIN is 4711",
    "please do not save that",
    "DON’T REMEMBER THIS NUMBER",
    "By the way, don't store that.",
    "Please don't write this down",
    "Don't save this to memory",
    "Never store my address in your memory",
    "Do not record anything I say",
    "Don't note this, but I'm ill",
    "I told you not to remember this",
    "Please don't remember what I told you",
    "forget what I just said",
    "Please forget that I said that",
    "off the record: he quits",
    "that's off the record",
    "this must not be stored",
    "Merk dir das bitte nicht",
    "Das bitte nicht speichern",
    "n'enregistre pas cela",
    "no guardes esto",
    "não guarde isso",
    "onthoud dit niet",
    "Не запоминай это",
    "不要记住这个",
    "覚えないでください",
    "기억하지 마",
]
NO_WISHES = [
    "I don't remember this at all",
    "Don't you remember this?",
    "You don't remember that?",
    "They really don't remember that day",
    "don't remember that movie",
    "Don't store it in the fridge",
    "We don't keep this in the repo",
    "Don't keep it to yourself",
    "Do not save that file twice",
    "don't write code in it",
    "remember this: the code is 12",
    "I'll never forget what she told us",
    "Merk dir das",
    "覚えないといけない",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[StdioClient]:
    with running(tmp_path_factory.mktemp("privacy") / "data", PERDURE_LOG_LEVEL="debug") as connected:
        yield connected


def done(client: StdioClient, tool: str, **arguments: object) -> Json:
    answer = client.call(tool, **arguments)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def refused(client: StdioClient, tool: str, **arguments: object) -> str:
    answer = client.call(tool, **arguments)
    assert answer["isError"], answer
    return answer["content"][0]["text"]


def holds(folder: Path, *texts: str) -> list[str]:
    """Return which of the texts stand in a file below the folder, as they are or as JSON has them."""
    stored = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    forms = {text: {text.encode(), json.dumps(text)[1:-1].encode()} for text in texts}
    return [text for text in texts if any(form in each for form in forms[text] for each in stored)]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a <private>b</private> c", "a [private] c"),
        ("a <PRIVATE >b", "a [private]"),
        ("a<private>b<private>c</private>d</private>e", "a[private]e"),
        ("<private>b</private><private>c", "[private][private]"),
        ('<private why="x">\nb\n</ private >c', "[private]c"),
    ],
)
def test_what_stands_in_private_tags_is_cut_out(text: str, kept: str) -> None:
    assert without_private(text) == (kept, True)


@pytest.mark.parametrize("text", ["plain", "a </private> b", "<privateer> x", "<private-note>x", "a < b"])
def test_what_is_no_private_tag_is_left(text: str) -> None:
    assert without_private(text) == (text, False)


@pytest.mark.parametrize("text", WISHES)
def test_a_wish_not_to_be_remembered_is_understood(text: str) -> None:
    assert is_off_the_record(text)


@pytest.mark.parametrize("text", NO_WISHES)
def test_what_only_speaks_of_remembering_is_no_such_wish(text: str) -> None:
    assert not is_off_the_record(text)


def test_private_text_reaches_no_file_no_answer_and_no_log(start_stdio: StartStdio, data_dir: Path) -> None:
    client = start_stdio(PERDURE_LOG_LEVEL="debug")
    client.initialize()
    private = "the vault opens with zanzibar"
    tagged = f"<private>{private}</private>"
    receipt = done(client, "remember", content=f"The vault is old. {tagged}", metadata={"why": f"said {tagged}"})
    assert receipt["note"] == "Not stored: text in <private> tags was cut out."
    turns = [{"role": "user", "content": f"Hello {tagged} there"}, {"role": "user", "content": f"<Private>{private}"}]
    assert "cut out" in done(client, "append_history", thread="vault", turns=turns)["note"]
    assert "cut out" in done(client, "forget", id=receipt["id"], reason=f"{tagged} leaked")["note"]
    assert "cut out" not in json.dumps(done(client, "forget", id=receipt["id"], undo=True))
    refused(client, "remember", content=tagged)
    hit = done(client, "recall", query="how does the old vault open")["hits"][0]
    assert (hit["content"], hit["metadata"]) == ("The vault is old. [private]", {"why": "said [private]"})
    told = [each.get("content") for each in done(client, "list_history", thread="vault")["episodes"]]
    assert told == ["[private]", "Hello [private] there"]
    assert client.end_input() == 0
    assert holds(data_dir, private, "zanzibar") == []
    assert "zanzibar" not in client.stderr()


def test_a_memory_of_nothing_but_private_text_is_refused_with_what_to_do(client: StdioClient) -> None:
    for content in ("<private>x</private>", " <private>x</private>. ", "<private>", "<private>a</private>, <private>b"):
        assert "nothing to keep" in refused(client, "remember", content=content)


def test_names_and_state_with_private_text_are_refused(client: StdioClient) -> None:
    tagged = "x <private>y</private>"
    for label in ({"key": tagged}, {"tags": [tagged]}, {"thread": tagged}):
        assert "kept as they are" in refused(client, "remember", content="something", **label)
    assert "kept as they are" in refused(
        client, "append_history", thread="t", turns=[{"role": "user", "name": tagged, "content": "x"}]
    )
    assert "kept as it is given" in refused(client, "set_state", key="task.x", value={"deep": [tagged]})
    assert done(client, "get_state", key="task.x")["values"] == []


def test_the_same_request_with_private_text_is_made_once(client: StdioClient) -> None:
    asked = {"content": "The shed is locked. <private>9</private>", "idempotency_key": "shed"}
    first = done(client, "remember", **asked)
    again = done(client, "remember", **asked)
    assert (again["id"], again["note"]) == (first["id"], first["note"])
    turns = [{"role": "user", "content": "<private>9</private> is the code of the shed"}]
    first = done(client, "append_history", thread="shed", turns=turns, idempotency_key="shed-turns")
    assert done(client, "append_history", thread="shed", turns=turns, idempotency_key="shed-turns") == first


def test_b132_credentials_are_masked_before_they_are_stored_and_the_receipt_says_so(
    tmp_path: Path, start_stdio: StartStdio, data_dir: Path
) -> None:
    client = start_stdio(PERDURE_LOG_LEVEL="debug")
    client.initialize()
    for n, (text, secret) in enumerate(CREDENTIALS):
        receipt = done(client, "remember", content=f"Note {n}: {text}", metadata={"seen": text})
        assert "Masked before it was stored" in receipt["note"], text
        assert secret not in json.dumps(receipt)
    turns = [{"role": "user", "content": f"Turn {n}: {text}"} for n, (text, _) in enumerate(CREDENTIALS)]
    assert "Masked before" in done(client, "append_history", thread="keys", turns=turns)["note"]
    shown = json.dumps(client.call("list_history", limit=100, max_chars=40_000))
    shown += json.dumps(client.call("recall", query="note password key token", limit=100, max_chars=40_000))
    secrets = [secret for _, secret in CREDENTIALS]
    assert [secret for secret in secrets if json.dumps(secret)[1:-1] in shown] == []
    assert client.end_input() == 0
    cli = CommandLine(tmp_path)
    exported = cli.answer("--data-dir", str(data_dir), "export")
    assert exported.count("[masked ") >= 3 * len(CREDENTIALS)
    assert [secret for secret in secrets if json.dumps(secret)[1:-1] in exported or secret in client.stderr()] == []
    assert holds(data_dir, *secrets) == []


def test_b132_a_file_and_state_are_kept_as_they_are_and_the_receipt_warns(client: StdioClient) -> None:
    text, secret = CREDENTIALS[4]
    written = done(client, "write_file", path="notes/key.md", content=f"use {text}\n")
    assert "forge token" in written["note"]
    assert secret not in written["note"]
    assert secret in client.call("read_file", path="notes/key.md")["content"][0]["text"]
    assert "forge token" in done(client, "set_state", key="task.key", value=text)["note"]
    assert "note" not in done(client, "write_file", path="notes/plain.md", content="nothing to see\n")


def test_b133_harmless_text_is_kept_to_the_letter(client: StdioClient) -> None:
    turns = [{"role": "user", "content": form} for text in HARMLESS for form in (text, f"We use {text} here")]
    assert "note" not in done(client, "append_history", thread="harmless", turns=turns)
    page = done(client, "list_history", thread="harmless", order="oldest", limit=100, max_chars=40_000)
    kept = [each["content"] for each in page["episodes"]]
    more = done(
        client, "list_history", thread="harmless", order="oldest", limit=100, max_chars=40_000,
        cursor=page["next_cursor"],
    )  # fmt: skip
    assert kept + [each["content"] for each in more["episodes"]] == [turn["content"] for turn in turns]
    assert len(HARMLESS) >= 60


def test_masking_can_be_switched_off(start_stdio: StartStdio) -> None:
    client = start_stdio(PERDURE_PRIVACY__MASK_CREDENTIALS="false")
    client.initialize()
    text, secret = CREDENTIALS[6]
    assert "note" not in done(client, "remember", content=f"The build uses {text}")
    assert secret in done(client, "recall", query="what does the build use")["hits"][0]["content"]
