"""Access tokens of an authorization server over HTTP: which are taken, whom they prove, and what a refusal says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from conftest import DEADLINE_S, HttpServer, Json, StartHttp, environment, run
from identity_provider import AUDIENCE, METADATA, IdentityProvider
from perdure.identity import namespace_of_claims
from perdure.settings import is_name

CALL: Json = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_history", "arguments": {}}}
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CLOSED = ("/mcp", "/mcp/", "/MCP", "/mcp/x", "//mcp", "/mcp%2f", "/", "/docs", "/openapi.json", "/metrics", "/debug")
Headers = Sequence[tuple[str, str]]
Answer = tuple[int, dict[str, str], str]


@pytest.fixture(scope="module")
def provider() -> Generator[IdentityProvider]:
    found = IdentityProvider()
    yield found
    found.stop()


@pytest.fixture
def provided() -> Generator[IdentityProvider]:
    """An authorization server that a test may change."""
    found = IdentityProvider()
    yield found
    found.stop()


def ask(
    server: HttpServer, headers: Headers = (), *, verb: str = "POST", path: str = "/mcp", call: Json | None = None
) -> Answer:
    """Return status, headers (lower case) and body; `headers` are sent as they are, also twice."""
    body = json.dumps(call or CALL).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.putrequest(verb, path)
        usual = (("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"))
        for name, value in (*usual, ("Content-Length", str(len(body))), *headers):
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode()
    finally:
        connection.close()


def bearer(token: str) -> Headers:
    return [("Authorization", f"Bearer {token}")]


def call_as(server: HttpServer, token: str, tool: str, **arguments: Any) -> Json:  # Any: JSON
    """Return the result of a tool call with a token."""
    call = CALL | {"params": {"name": tool, "arguments": arguments}}
    status, _, text = ask(server, bearer(token), call=call)
    assert status == 200, (status, text)
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return json.loads(data[-1] if data else text)["result"]


def part(value: Any) -> str:  # Any: JSON
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned(provider: IdentityProvider, **header: Any) -> str:
    return f"{part({'typ': 'at+jwt', 'kid': 'one'} | header)}.{part(provider.claims())}"


def signed_with_public_key(provider: IdentityProvider, algorithm: str) -> str:
    text = unsigned(provider, alg=algorithm)
    digest = {"HS256": hashlib.sha256, "HS512": hashlib.sha512}[algorithm]
    made = hmac.new(provider.public_pem(), text.encode(), digest).digest()
    return f"{text}.{base64.urlsafe_b64encode(made).rstrip(b'=').decode()}"


def bad_tokens(provider: IdentityProvider) -> dict[str, Headers]:
    """Return headers that prove nothing, by what is wrong with them."""
    good, now, aud = provider.token(), int(time.time()), AUDIENCE
    header, claims, signature = good.split(".")
    stranger = IdentityProvider()
    stranger.stop()
    hidden = f"{header}.{part(provider.claims(sub='bo'))}.{signature}"
    in_jwk = {"jwk": json.loads(json.dumps({"kty": "oct", "k": "c2VjcmV0"})), "alg": "HS256"}
    changed: dict[str, Json] = {
        "expired long ago": {"exp": now - 3600},
        "expired by 1 s": {"exp": now - 1},
        "not yet valid": {"nbf": now + 300},
        "issued in the future": {"iat": now + 300},
        "other audience": {"aud": "https://other.example.org/mcp"},
        "no audience": {"aud": None},
        "audience with a slash": {"aud": f"{aud}/"},
        "audience in other case": {"aud": aud.upper()},
        "audience as a part": {"aud": aud[:-1]},
        "list of other audiences": {"aud": ["https://a.example.org", "https://b.example.org"]},
        "empty list of audiences": {"aud": []},
        "other issuer": {"iss": "https://evil.example.org"},
        "issuer with a slash": {"iss": "https://login.example.org/"},
        "no issuer": {"iss": None},
        "no end": {"exp": None},
        "end that is no number": {"exp": "tomorrow"},
        "no subject": {"sub": None},
        "empty subject": {"sub": ""},
        "subject that is a number": {"sub": 7},
        "subject that is half a character": {"sub": "\ud800"},
        "no client": {"client_id": None},
    }
    tokens = {
        **{what: provider.token(**claims) for what, claims in changed.items()},
        "key of another": stranger.token(),
        "unknown kid": provider.token(header={"kid": "two"}),
        "no kid": provider.token(header={"kid": ""}),
        "kid that is a path": provider.token(header={"kid": "../../dev/null"}),
        "key in the header": f"{part(in_jwk)}.{claims}.{signature}",
        "address of keys in the header": stranger.token(header={"kid": "evil", "jku": provider.url}),
        "alg none": unsigned(provider, alg="none") + ".",
        "alg None": unsigned(provider, alg="None") + ".",
        "alg none, signed": unsigned(provider, alg="none") + f".{signature}",
        "no alg": f"{unsigned(provider)}.{signature}",
        "HS256 with the public key": signed_with_public_key(provider, "HS256"),
        "HS512 with the public key": signed_with_public_key(provider, "HS512"),
        "algorithm that is not listed": provider.token(header={"alg": "RS512"}),
        "typ of a logout": provider.token(header={"typ": "logout+jwt"}),
        "critical extension": provider.token(header={"crit": ["x"], "x": 1}),
        "claims of another": hidden,
        "no signature": f"{header}.{claims}.",
        "truncated": good[:-5],
        "one part": header,
        "two parts": f"{header}.{claims}",
        "four parts": f"{good}.{signature}",
        "five parts": f"{good}.{signature}.{signature}",
        "other case": good.swapcase(),
        "doubled": f"{good}{good}",
        "space within": f"{good[:20]} {good[20:]}",
        "huge": provider.token(pad="x" * 9_000),
        "not ASCII": f"{good}é",
        "quoted": f'"{good}"',
        "no base64": "a.b.c",
        "a word": "hunter2",
        "form of ours": f"perdure_{'A' * 43}",
        "form of ours, longer": f"perdure_{'A' * 44}",
        "null": "null",
        "header nested deeply": f"{base64.b64encode(b'[' * 5_000).decode()}.{claims}.{signature}",
        "header that is a list": f"{part([{'alg': 'RS256'}])}.{claims}.{signature}",
        "alg that is a list": f"{part({'alg': ['RS256'], 'kid': 'one'})}.{claims}.{signature}",
        "kid that is a number": f"{part({'alg': 'RS256', 'kid': 1})}.{claims}.{signature}",
        "claims that are a list": jwt.api_jws.encode(b"[]", provider.keys["one"], "RS256", {"kid": "one"}),
        "end beyond all numbers": jwt.api_jws.encode(
            json.dumps(provider.claims(exp=float("inf"))).encode(), provider.keys["one"], "RS256", {"kid": "one"}
        ),
    }
    raw: dict[str, Headers] = {
        "missing": [],
        "empty": [("Authorization", "")],
        "scheme alone": [("Authorization", "Bearer")],
        "scheme and spaces": [("Authorization", "Bearer   ")],
        "no scheme": [("Authorization", good)],
        "Basic": [("Authorization", f"Basic {base64.b64encode(f'ana:{good}'.encode()).decode()}")],
        "Basic with a token": [("Authorization", f"Basic {good}")],
        "DPoP": [("Authorization", f"DPoP {good}")],
        "comma after the scheme": [("Authorization", f"Bearer, {good}")],
        "two in one": [("Authorization", f"Bearer {good}, Bearer {good}")],
        "twice": [("Authorization", f"Bearer {good}"), ("Authorization", f"Bearer {good}")],
        "bad one first": [("Authorization", "Bearer x"), ("Authorization", f"Bearer {good}")],
        "other header": [("X-Authorization", f"Bearer {good}"), ("Proxy-Authorization", f"Bearer {good}")],
        "cookie": [("Cookie", f"access_token={good}; Authorization=Bearer {good}")],
    }
    return raw | {what: bearer(token) for what, token in tokens.items()}


def test_no_bad_token_passes_on_any_route_with_any_verb(start_http: StartHttp, provider: IdentityProvider) -> None:
    server = start_http(**provider.settings())
    assert ask(server, bearer(provider.token()))[0] == 200
    bad = bad_tokens(provider)
    assert len(bad) > 60
    for what, headers in bad.items():
        for path in CLOSED if what in ("missing", "alg none") else ("/mcp",):
            for verb in VERBS:
                status, sent, text = ask(server, headers, verb=verb, path=path)
                challenge = sent.get("www-authenticate", "")
                assert status == 401, (what, verb, path, status)
                assert challenge.startswith("Bearer ") and f'resource_metadata="{METADATA}"' in challenge, (what, verb)
                assert ('error="invalid_token"' in challenge) is bool(headers and headers[0][0] == "Authorization")
                assert all(len(value) < 12 or value not in challenge + text for _, value in headers), what
    assert ask(server, bearer(provider.token()))[0] == 200
    signature = provider.token().split(".")[2]
    assert "eyJ" not in server.stderr() and signature not in server.stderr() and "Traceback" not in server.stderr()


def test_b119_a_token_counts_for_its_audience_alone(start_http: StartHttp, provider: IdentityProvider) -> None:
    server = start_http(PERDURE_LOG_LEVEL="debug", **provider.settings())
    other = "https://other.example.org"
    assert ask(server, bearer(provider.token()))[0] == 200
    assert ask(server, bearer(provider.token(aud=[other, AUDIENCE])))[0] == 200
    assert ask(server, [("authorization", f"bearer {provider.token(header={'typ': 'JWT'})}")])[0] == 200
    status, sent, _ = ask(server, bearer(provider.token(aud=other)))
    assert status == 401 and "another audience" in sent["www-authenticate"]
    status, sent, text = ask(server, path=f"/mcp?access_token={provider.token()}")
    assert status == 401 and "URL" in text
    # Also beside a good one: it is in somebody's log by now.
    assert ask(server, bearer(provider.token()), path=f"/mcp?access_token={provider.token()}")[0] == 401
    assert "eyJ" not in server.stderr()


def test_b122_only_liveness_and_metadata_are_open(start_http: StartHttp, provider: IdentityProvider) -> None:
    server = start_http(**provider.settings())
    well_known = "/.well-known/oauth-protected-resource"
    document = {
        "resource": AUDIENCE,
        "authorization_servers": ["https://login.example.org"],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["files:read", "files:write", "history:read", "memory:read", "memory:write"],
        "resource_name": "Perdure",
    }
    open_to_all: dict[str, Json] = {
        "/healthz": {"status": "ok"},
        "/readyz": {"status": "ready"},
        well_known: document,
        f"{well_known}/mcp": document,
    }
    for path, body in open_to_all.items():
        for verb in VERBS:
            status, sent, text = ask(server, [("Origin", "https://evil.example")], verb=verb, path=path)
            assert status == (200 if verb in ("GET", "HEAD") else 405), (verb, path)
            assert verb != "GET" or json.loads(text) == body
            assert not [name for name in sent if name.startswith("access-control")]
    assert ask(server, verb="GET", path="/.well-known/oauth-authorization-server")[0] == 404
    assert METADATA.endswith(f"{well_known}/mcp")


def test_b123_no_web_page_is_let_in_by_cors(start_http: StartHttp, provider: IdentityProvider) -> None:
    server = start_http(**provider.settings())
    asked = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")]
    for verb in ("OPTIONS", "POST"):
        status, sent, _ = ask(server, [*asked, *bearer(provider.token())], verb=verb)
        assert status == 403 and not [name for name in sent if name.startswith("access-control")]


def test_every_kind_of_signature_that_is_listed_is_taken(start_http: StartHttp, provided: IdentityProvider) -> None:
    provided.keys |= {"two": ec.generate_private_key(ec.SECP256R1()), "three": Ed25519PrivateKey.generate()}
    provided.keys["weak"] = rsa.generate_private_key(65537, 1024)
    server = start_http(**provided.settings())
    for kid in ("one", "two", "three"):
        assert ask(server, bearer(provided.token(kid=kid)))[0] == 200, kid
    assert ask(server, bearer(provided.token(header={"alg": "PS256"})))[0] == 200
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        weak = provided.token(kid="weak")
    assert ask(server, bearer(weak))[0] == 401
    # The name of a key of another kind.
    assert ask(server, bearer(provided.token(kid="two", header={"kid": "one"})))[0] == 401


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_new_key_of_the_issuer_is_fetched_and_made_up_ones_cost_it_little(
    start_http: StartHttp, provided: IdentityProvider
) -> None:
    server = start_http(**provided.settings())
    former = provided.token()
    assert ask(server, bearer(former))[0] == 200 and provided.asked == 1
    began = time.monotonic()
    for n in range(50):
        assert ask(server, bearer(provided.token(header={"kid": f"made up {n}"})))[0] == 401
    assert provided.asked <= 2 + (time.monotonic() - began) / 5
    provided.keys = {"new": rsa.generate_private_key(65537, 2048)}
    wait_for(lambda: ask(server, bearer(provided.token(kid="new")))[0] == 200)
    assert ask(server, bearer(former))[0] == 401  # its key is published no more


@pytest.mark.torture
@pytest.mark.parametrize("trouble", ["500", "no JSON", "no keys", "no list", "huge", "moved", "gone"])
def test_while_the_issuer_fails_nobody_is_let_in_who_was_not_known(
    start_http: StartHttp, provided: IdentityProvider, trouble: str, request: pytest.FixtureRequest
) -> None:
    provided.trouble = trouble
    if trouble == "gone":
        provided.stop()
    server = start_http(**provided.settings())
    status, sent, text = ask(server, bearer(provided.token()))
    assert status == 503 and int(sent["retry-after"]) > 0 and "authorization server" in text
    assert ask(server, bearer(unsigned(provided, alg="none") + "."))[0] == 401
    # Keys are asked for again after five seconds, which is waited for once on each commit.
    if trouble == "500" or (trouble != "gone" and request.config.getoption("--torture")):
        provided.trouble = None
        wait_for(lambda: ask(server, bearer(provided.token()))[0] == 200)
        provided.trouble = trouble
        assert ask(server, bearer(provided.token(header={"kid": "other"})))[0] in (401, 503)
        assert ask(server, bearer(provided.token()))[0] == 200  # what is known goes on


def test_claims_decide_the_namespace_and_two_never_share_one(
    start_http: StartHttp, provider: IdentityProvider, data_dir: Path
) -> None:
    server = start_http(PERDURE_HTTP__OAUTH__TENANT_CLAIM="org", **provider.settings())
    subjects = [("acme", "ana"), ("acme", "Ana"), ("acme_", "ana"), ("acme", "_ana"), ("acme__ana", "x"), ("a", "ana ")]
    subjects += [
        ("acme", "default"),
        ("default", "default"),
        ("../..", "../../etc"),
        ("acme", "ana\n"),
        ("é", "e\u0301"),
    ]
    subjects += [("acme", "x" * 300), ("acme", "x" * 301), ("acme", "auth0|7c5"), ("acme", "\u0000")]
    for n, (org, sub) in enumerate(subjects):
        made = call_as(server, provider.token(org=org, sub=sub), "remember", content=f"mine is number {n}")
        assert not made["isError"]
    for n, (org, sub) in enumerate(subjects):
        found = call_as(server, provider.token(org=org, sub=sub), "recall", query="mine is number")
        assert [hit["content"] for hit in found["structuredContent"]["hits"]] == [f"mine is number {n}"]
    ours = run("--namespace", "t_acme__ana", "recall", "number", "--json", env=environment(data_dir))
    assert [hit["content"] for hit in json.loads(ours.stdout)["hits"]] == ["mine is number 0"]
    local = run("recall", "number", "--json", env=environment(data_dir))
    assert json.loads(local.stdout)["hits"] == []


TEXTS = st.text(st.one_of(st.sampled_from("ab_-AB|%\u00e9"), st.characters(exclude_categories=["Cs"])), max_size=60)


@given(TEXTS, TEXTS, st.none() | TEXTS, st.none() | TEXTS)
def test_two_claims_never_make_one_namespace(a: str, b: str, tenant_a: str | None, tenant_b: str | None) -> None:
    one, other = namespace_of_claims(a, tenant_a), namespace_of_claims(b, tenant_b)
    assert is_name(one) and one == one.lower() and one != "default"
    assert (one == other) is ((a, tenant_a) == (b, tenant_b))


def test_the_agent_and_the_scopes_are_those_of_the_claims(start_http: StartHttp, provider: IdentityProvider) -> None:
    server = start_http(
        PERDURE_HTTP__OAUTH__AGENT_CLAIM="azp", PERDURE_HTTP__OAUTH__SCOPE_CLAIM="scp", **provider.settings()
    )
    token = provider.token(azp="a client of 7", scp=["memory:write", "history:read", "openid", 7])
    assert not call_as(server, token, "remember", content="tea")["isError"]
    (episode,) = call_as(server, token, "list_history")["structuredContent"]["episodes"]
    assert episode["agent"] == "a_a_20client_20of_207"
    # A scope that the claim lacks is asked for by 403, as the protocol has it, so that the client can get it.
    call = CALL | {"params": {"name": "recall", "arguments": {"query": "tea"}}}
    status, sent, text = ask(server, bearer(token), call=call)
    assert status == 403 and "memory:read" in json.loads(text)["error"]["message"]
    assert 'error="insufficient_scope"' in sent["www-authenticate"]
    assert 'scope="memory:read"' in sent["www-authenticate"] and METADATA in sent["www-authenticate"]
    for method, params in (
        ("prompts/get", {"name": "load"}),
        ("resources/read", {"uri": "perdure://context"}),
        ("resources/read", {"uri": "perdure://memories/mem_a"}),
    ):
        assert ask(server, bearer(token), call=CALL | {"method": method, "params": params})[0] == 403
    nobody = provider.token(azp="x", scp="admin openid")
    assert ask(server, bearer(nobody), call=call)[0] == 403


def test_settings_that_would_let_anybody_in_are_refused(data_dir: Path) -> None:
    def refused(**given: str) -> str:
        settings = {f"PERDURE_HTTP__OAUTH__{name}": value for name, value in given.items()}
        done = run("config", env=environment(data_dir) | settings)
        assert done.returncode == 2
        return done.stderr

    whole = {"ISSUER": "https://i.example", "AUDIENCE": AUDIENCE, "JWKS_URL": "https://i.example/keys"}
    assert "audience and jwks_url" in refused(ISSUER="https://i.example")
    assert "jwks_url must be an https address" in refused(**whole | {"JWKS_URL": "http://i.example/keys"})
    assert "issuer must be an https address" in refused(**whole | {"ISSUER": "i.example"})
    assert "resource" in refused(**whole | {"AUDIENCE": "perdure"})
    for algorithm in ("none", "HS256"):
        assert "algorithms" in refused(**whole | {"ALGORITHMS": json.dumps([algorithm])})
