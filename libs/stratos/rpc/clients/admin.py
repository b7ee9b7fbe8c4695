"""Client of a gateway's admin API (HTTP): one call, and the whole audit log."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from stratos.common.error_codes import error_from_code
from stratos.common.errors import DependencyDown, StratosError
from stratos.common.tls.identity import PeerRole, dns_name
from stratos.common.tls.settings import TlsConfig

_TIMEOUT_S = 30.0
_MAX_WAIT_S = 60.0
"""Wait for a rate in one call."""


class AdminClient:
    """Calls one gateway's admin API.

    Args:
        url: of its port, without a path.
        key: of the role admin, or of tenant-admin for what that may do.
        mesh: certificates of the platform, for a port that has one of mTLS; without, public authorities are trusted.
    """

    def __init__(self, url: str, key: str, mesh: TlsConfig | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {key}"}
        base_url = f"{self.url}/admin/v1"
        verify: ssl.SSLContext | bool = True
        self._extensions: dict[str, Any] = {}
        if mesh is not None and self.url.startswith("https://"):
            verify = ssl.create_default_context(cafile=mesh.ca_path)
            # The port has no name of its own there: its certificate is that of the role.
            self._extensions["sni_hostname"] = dns_name(mesh.domain, PeerRole.GATEWAY)
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=_TIMEOUT_S, trust_env=False, verify=verify
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def call(self, method: str, path: str, body: Any = None, **query: str) -> dict[str, Any]:
        """One call.

        Raises:
            StratosError: what the API answers; ``DependencyDown`` where it does not.
        """
        try:
            answer = self._answer(method, path, body, query)
            content: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise DependencyDown(f"the admin API at {self._http.base_url} does not answer: {error}") from error
        if answer.is_error:
            raise _error_of(answer)
        return content

    def _answer(self, method: str, path: str, body: Any, query: Mapping[str, str]) -> httpx.Response:
        """The answer; one that a rate refuses is asked for again when it says so."""
        waited_s = 0.0
        while True:
            answer = self._http.request(method, path, json=body, params=query, extensions=self._extensions)
            after_ms = answer.headers.get("retry-after-ms", "")
            if answer.status_code != 429 or not after_ms.isdecimal() or waited_s > _MAX_WAIT_S:
                return answer
            pause_s = int(after_ms) / 1000
            time.sleep(pause_s)
            waited_s += pause_s

    def lines(self, path: str) -> Iterator[bytes]:
        """The lines of an answer, as they come: only bytes of one line are kept.

        Raises:
            StratosError: like ``call``.
        """
        rest = bytearray()
        try:
            with self._http.stream("GET", path, extensions=self._extensions) as answer:
                if answer.is_error:
                    answer.read()
                    raise _error_of(answer)
                for piece in answer.iter_bytes():
                    rest += piece
                    *whole, last = rest.split(b"\n")
                    yield from map(bytes, whole)
                    rest = last
        except (httpx.HTTPError, ValueError) as error:
            raise DependencyDown(f"the admin API at {self._http.base_url} does not answer: {error}") from error
        yield bytes(rest)

    def audit(self) -> Iterator[dict[str, Any]]:
        """The whole audit log, oldest first, page by page."""
        after: str | None = "0"
        while after is not None:
            page = self.call("GET", "/audit", after=after)
            yield from page["data"]
            after = page["next_after"]


def _error_of(answer: httpx.Response) -> StratosError:
    found = answer.json().get("error", {})
    return error_from_code(str(found.get("code", "")), str(found.get("message", "")), http_status=answer.status_code)
