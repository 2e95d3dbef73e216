"""An authorization server on a port of this machine: it signs what it is told to, and publishes its keys, or fails."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

AUDIENCE = "https://memory.example.org/mcp"
METADATA = "https://memory.example.org/.well-known/oauth-protected-resource/mcp"
ISSUER = "https://login.example.org"
ALL = "memory:read memory:write history:read files:read files:write"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | Ed25519PrivateKey
Claims = dict[str, Any]  # Any: JSON, right or wrong


class IdentityProvider:
    """Publishes the keys in `keys`, by id, or answers with the `trouble` it is set to."""

    def __init__(self) -> None:
        self.keys: dict[str, PrivateKey] = {"one": rsa.generate_private_key(65537, 2048)}
        self.trouble: str | None = None
        self.asked = 0
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                provider.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/keys"

    def settings(self, **more: str) -> dict[str, str]:
        """Return the environment of a server that takes the tokens of this one."""
        ours = {"ISSUER": ISSUER, "AUDIENCE": AUDIENCE, "JWKS_URL": self.url}
        return {f"PERDURE_HTTP__OAUTH__{name}": value for name, value in ours.items()} | more

    def claims(self, **changed: Any) -> Claims:  # Any: JSON
        """Return the claims of a good token, with these changed; None leaves one out."""
        now = int(time.time())
        claims: Claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "ana",
            "client_id": "desk",
            "iat": now,
            "exp": now + 600,
            "scope": ALL,
        }
        return {name: value for name, value in (claims | changed).items() if value is not None}

    def token(self, *, kid: str = "one", header: Claims | None = None, **changed: Any) -> str:  # Any: JSON
        """Return a signed token; `header` is laid over the usual one."""
        key = self.keys[kid]
        algorithm = (header or {}).get("alg") or _algorithm(key)
        return jwt.encode(self.claims(**changed), key, algorithm, {"kid": kid, "typ": "at+jwt"} | (header or {}))

    def public_pem(self, kid: str = "one") -> bytes:
        return self.keys[kid].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = json.dumps({"keys": [_jwk(kid, key) for kid, key in self.keys.items()]}).encode()
        status = 200
        match self.trouble:
            case "500":
                status = 500
            case "no JSON":
                body = b"<html>"
            case "no keys":
                body = b'{"keys": []}'
            case "no list":
                body = b'{"keys": {"kid": "one"}}'
            case "huge":
                body += b" " * 300_000
            case "moved":
                request.send_response(302)
                request.send_header("Location", self.url)
                request.end_headers()
                return
            case _:
                pass
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _algorithm(key: PrivateKey) -> str:
    if isinstance(key, rsa.RSAPrivateKey):
        return "RS256"
    return "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "EdDSA"


def _jwk(kid: str, key: PrivateKey) -> Claims:
    algorithm = jwt.get_algorithm_by_name(_algorithm(key))
    public: Claims = algorithm.to_jwk(key.public_key(), as_dict=True)
    return public | {"kid": kid, "use": "sig"}
