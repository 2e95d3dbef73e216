"""Tokens: made once, stored as digests, revoked at once, rotated with grace, noted when used, told nowhere."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DEADLINE_S, StartHttp, StartStdio, another_writes, environment, run, store_of
from perdure.tokens import digest, is_secret, new_secret
from tokens import call, listed, make_token, post, request, status_of


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def rows(data_dir: Path, statement: str) -> list[tuple[str, ...]]:
    with store_of(data_dir) as database:
        return database.execute(statement).fetchall()


def test_a_token_opens_its_namespace_for_its_agent_and_no_other(start_http: StartHttp, data_dir: Path) -> None:
    server = start_http()
    ana, _ = make_token(data_dir, "--namespace", "ana", "--agent", "desk")
    bo, _ = make_token(data_dir, "--namespace", "bo", "--agent", "phone")
    call(server, ana, "remember", content="the code word is heron")
    assert call(server, bo, "recall", query="heron")["structuredContent"]["empty_reason"] == "nothing_stored"
    (hit,) = call(server, ana, "recall", query="heron")["structuredContent"]["hits"]
    assert "heron" in hit["content"]
    (episode,) = call(server, ana, "list_history")["structuredContent"]["episodes"]
    assert episode["agent"] == "desk"


def test_a_loopback_server_asks_for_tokens_from_the_first_one_on(start_http: StartHttp, data_dir: Path) -> None:
    server = start_http()
    assert status_of(server, None) == 200
    token, id = make_token(data_dir)
    assert status_of(server, None) == 401 and status_of(server, token) == 200
    run("token", "revoke", id, env=environment(data_dir))
    assert status_of(server, None) == 401 and status_of(server, token) == 401
    again = start_http()
    assert status_of(again, None) == 401


def test_the_audit_tells_of_each_token_by_its_id_and_never_by_its_secret(data_dir: Path) -> None:
    secret, id = make_token(data_dir, "--namespace", "ana")
    rotated = run("token", "rotate", id, "--json", env=environment(data_dir))
    assert rotated.returncode == 0, rotated.stderr
    run("token", "revoke", id, env=environment(data_dir))
    noted = rows(data_dir, "SELECT tool, namespace, target FROM audit ORDER BY id")
    assert [(tool, namespace) for tool, namespace, _ in noted] == [
        (tool, "ana") for tool in ("create_token", "rotate_token", "revoke_token")
    ]
    assert noted[0][2] == noted[2][2] == id != noted[1][2]
    assert secret not in str(rows(data_dir, "SELECT * FROM audit"))


def test_an_address_others_can_reach_may_be_served_with_tokens_alone(start_http: StartHttp, data_dir: Path) -> None:
    token, _ = make_token(data_dir)
    server = start_http(PERDURE_HTTP__HOST="0.0.0.0")
    assert status_of(server, None) == 401 and status_of(server, token) == 200


def test_the_token_of_the_settings_is_taken_beside_them(start_http: StartHttp, data_dir: Path) -> None:
    token, _ = make_token(data_dir, "--namespace", "ana")
    server = start_http(PERDURE_HTTP__TOKEN="a-token-of-some-length")
    assert status_of(server, "a-token-of-some-length") == status_of(server, token) == 200
    assert status_of(server, "a-token-of-some-lengtH") == status_of(server, "a-token-of-some-lengt") == 401


def test_a_revoked_expired_or_foreign_token_is_refused_by_a_server_that_runs(
    start_http: StartHttp, data_dir: Path, tmp_path: Path
) -> None:
    server = start_http()
    revoked, id = make_token(data_dir)
    short, _ = make_token(data_dir, "--expires", "1s")
    foreign, _ = make_token(tmp_path / "elsewhere")
    assert status_of(server, revoked) == 200
    done = run("token", "revoke", id, env=environment(data_dir))
    assert done.returncode == 0 and done.stdout.startswith(f"{id} is refused since")
    assert status_of(server, revoked) == 401
    until(lambda: status_of(server, short) == 401)
    changed = revoked[:-1] + ("A" if revoked[-1] != "A" else "B")
    for wrong in (foreign, changed, revoked.swapcase(), revoked.upper(), revoked.removeprefix("perdure_"), id):
        assert status_of(server, wrong) == 401
    # The stored digest is no token either.
    assert status_of(server, digest(revoked)) == status_of(server, f"perdure_{digest(revoked)[:43]}") == 401
    status, headers, text = post(server, revoked, request("tools/list"))
    assert status == 401 and 'error="invalid_token"' in headers["www-authenticate"] and revoked not in text


def test_a_rotated_token_holds_for_its_grace(start_http: StartHttp, data_dir: Path) -> None:
    server = start_http()
    former, id = make_token(data_dir, "--namespace", "ana", "--scopes", "files:read", "--expires", "30d")
    done = run("token", "rotate", id, "--grace", "1s", "--json", env=environment(data_dir))
    made = json.loads(done.stdout)
    assert status_of(server, made["secret"]) == 200
    until(lambda: status_of(server, former) == 401)
    assert status_of(server, made["secret"]) == 200
    new, old = listed(data_dir)[made["token"]["id"]], listed(data_dir)[id]
    assert old["rotated_to"] == new["id"]
    assert {name: new[name] for name in ("namespace", "agent", "scopes")} == {
        name: old[name] for name in ("namespace", "agent", "scopes")
    }
    refused = run("token", "rotate", id, env=environment(data_dir))
    assert refused.returncode == 1 and "has expired" in refused.stderr
    twice, id = make_token(data_dir)
    assert run("token", "rotate", id, env=environment(data_dir)).returncode == 0
    refused = run("token", "rotate", id, env=environment(data_dir))
    assert refused.returncode == 1 and "followed by tok_" in refused.stderr and status_of(server, twice) == 200


def test_of_a_token_only_a_digest_is_stored_and_nothing_tells_it(
    start_http: StartHttp, data_dir: Path, tmp_path: Path
) -> None:
    token, id = make_token(data_dir)
    fixed = "a-token-of-some-length"
    server = start_http(PERDURE_LOG_LEVEL="debug", PERDURE_HTTP__TOKEN=fixed)
    for sent in (token, fixed, token[:-1], f"{token}x"):
        post(server, sent, request("tools/list"))
    remembered = call(server, token, "remember", content=f"the token is {token}")
    assert "API key" in str(remembered)
    server.stop()
    shown = [
        server.stderr(),
        *(run("token", "list", *more, env=environment(data_dir)).stdout for more in ((), ("--json",))),
        run("config", env=environment(data_dir, PERDURE_HTTP__TOKEN=fixed)).stdout,
        run("export", env=environment(data_dir)).stdout,
        run("status", "--json", env=environment(data_dir)).stdout,
    ]
    assert not [text for text in shown if token[8:] in text or fixed in text or digest(token) in text]
    run("backup", str(tmp_path / "b.zip"), env=environment(data_dir))
    kept = [path.read_bytes() for path in [*data_dir.rglob("*"), tmp_path / "b.zip"] if path.is_file()]
    assert not [content for content in kept if token[8:].encode() in content]
    assert rows(data_dir, f"SELECT digest FROM token WHERE id = '{id}'") == [
        (hashlib.sha256(token.encode()).hexdigest(),)
    ]


@pytest.mark.sqlite(reason="perdure backup")
def test_a_backup_carries_tokens_and_an_export_does_not(start_http: StartHttp, data_dir: Path, tmp_path: Path) -> None:
    token, _ = make_token(data_dir)
    run("remember", "tea", env=environment(data_dir))
    run("backup", str(tmp_path / "b.zip"), env=environment(data_dir))
    (tmp_path / "lines").write_text(run("export", env=environment(data_dir)).stdout, encoding="utf-8")
    restored, imported = tmp_path / "restored", tmp_path / "imported"
    assert run("restore", str(tmp_path / "b.zip"), env=environment(restored)).returncode == 0
    assert run("import", str(tmp_path / "lines"), env=environment(imported)).returncode == 0
    assert len(listed(restored)) == 1 and listed(imported) == {}
    assert status_of(start_http(PERDURE_DATA_DIR=str(restored)), token) == 200


def test_the_last_use_is_noted_beside_the_calls_and_once_a_minute(start_http: StartHttp, data_dir: Path) -> None:
    token, id = make_token(data_dir)
    assert "used_at" not in listed(data_dir)[id]
    server = start_http()
    assert status_of(server, token) == 200
    until(lambda: "used_at" in listed(data_dir)[id])
    first = listed(data_dir)[id]["used_at"]
    for _ in range(20):
        assert status_of(server, token) == 200
    assert listed(data_dir)[id]["used_at"] == first


def test_a_call_does_not_wait_for_the_use_of_its_token_to_be_written(start_http: StartHttp, data_dir: Path) -> None:
    token, id = make_token(data_dir)
    server = start_http()
    with another_writes(data_dir):
        assert status_of(server, token) == 200
    until(lambda: "used_at" in listed(data_dir)[id])


def test_wrong_orders_are_refused_with_what_is_right(data_dir: Path) -> None:
    def refused(*words: str) -> str:
        done = run("token", *words, env=environment(data_dir))
        assert done.returncode in (1, 2) and not done.stdout
        return done.stderr

    assert "memory:reed" in refused("create", "--scopes", "memory:reed") and "memory:read" in refused(
        "create", "--scopes", "x"
    )
    assert "without scopes" in refused("create", "--scopes", ",")
    assert "90d" in refused("create", "--expires", "soon") and "90d" in refused("create", "--expires", "99999w")
    assert "'../x'" in refused("create", "--namespace", "../x") and "agent" in refused("create", "--agent", "a b")
    assert "perdure token list" in refused("revoke", "tok_no") and "tok_no" in refused("rotate", "tok_no")


def test_tokens_have_256_random_bits_and_are_told_apart_by_their_form() -> None:
    made = {new_secret() for _ in range(1_000)}
    assert len(made) == 1_000 and all(re.fullmatch(r"perdure_[\w-]{43}", each) and is_secret(each) for each in made)


@pytest.mark.parametrize("tool", ["token", "create_token", "token_create"])
def test_no_tool_makes_tokens(start_stdio: StartStdio, tool: str) -> None:
    client = start_stdio()
    client.initialize()
    assert "error" in client.request("tools/call", {"name": tool, "arguments": {}})


def test_a_server_whose_tokens_are_stored_says_how_clients_send_one(start_http: StartHttp, data_dir: Path) -> None:
    env = environment(data_dir, PERDURE_TOKEN="perdure_not-a-setting")
    assert "PERDURE_TOKEN" not in start_http().stderr()
    assert run("token", "create", env=env).returncode == 0
    told = start_http(PERDURE_TOKEN="perdure_not-a-setting").stderr()
    assert "perdure token create --agent NAME" in told and "perdure_not-a-setting" not in told
    assert '--header "Authorization: Bearer $PERDURE_TOKEN"' in told
    assert "--bearer-token-env-var PERDURE_TOKEN" in told and "Bearer ${env:PERDURE_TOKEN}" in told
    assert "PERDURE_HTTP__TOKEN" in start_http(PERDURE_HTTP__TOKEN="0" * 32).stderr()
