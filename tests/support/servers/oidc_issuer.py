"""Keys and tokens of an OpenID Connect issuer, and the issuer itself on a socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "stratos"


class SigningKey:
    """A private key of an issuer."""

    def __init__(self, key_id: str, algorithm: str = "ES256") -> None:
        self.key_id = key_id
        self.algorithm = algorithm
        self.private: Any = (
            ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else rsa.generate_private_key(65537, 2048)
        )

    @cached_property
    def public(self) -> dict[str, Any]:
        """As a key set has it."""
        kind = ECAlgorithm if self.algorithm == "ES256" else RSAAlgorithm
        return {**kind.to_jwk(self.private.public_key(), as_dict=True), "kid": self.key_id, "use": "sig"}

    def sign(self, claims: dict[str, Any] | bytes, **headers: Any) -> str:
        """A token, also of claims that cannot be."""
        content = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
        return jwt.PyJWS().encode(content, self.private, self.algorithm, {"kid": self.key_id, **headers})


def claims_of(issuer: str, *, lives_s: float = 86400, **changes: Any) -> dict[str, Any]:
    """Claims of a token of acme that nothing is wrong with; ``None`` leaves one out."""
    now = time.time()
    times = {"iat": int(now), "exp": int(now + lives_s)}
    claims = {"iss": issuer, "aud": AUDIENCE, "sub": "ann", "tenant": "acme", **times, **changes}
    return {name: value for name, value in claims.items() if value is not None}


class Issuer:
    """An issuer on loopback; its keys and its failures are fields."""

    def __init__(self) -> None:
        self.keys = [SigningKey("first")]
        self.is_down = False
        self.paths: list[str] = []
        """What was asked for."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.paths.append(self.path)
                body = json.dumps(issuer.document(self.path)).encode()
                self.send_response(503 if issuer.is_down else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/realm"

    def document(self, path: str) -> dict[str, Any]:
        if path.endswith("/.well-known/openid-configuration"):
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [key.public for key in self.keys]}

    def token(self, **changes: Any) -> str:
        """Signed with the newest key."""
        return self.keys[-1].sign(claims_of(self.url, **changes))


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """An issuer that answers."""
    issuer = Issuer()
    thread = threading.Thread(target=issuer.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        issuer.server.shutdown()
        issuer.server.server_close()
        thread.join()
