"""Calls to the API server: JSON in, JSON out. 404 and 409 are answers, everything else above 299 is an error."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from stratos.common.errors import DependencyDown, PermissionDenied, StratosError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 5.0
ABSENT, CONFLICT = 404, 409
MERGE_PATCH = "application/merge-patch+json"
Object = dict[str, Any]


class ApiServer:
    """Belongs to the event loop.

    Args:
        url: empty takes that of the pod.
        account: folder with ``token`` and ``ca.crt``; the token is read for every call, since kubelets replace it.
    """

    def __init__(self, url: str = "", account: Path = SERVICE_ACCOUNT) -> None:
        self.url = url or _url_of_pod()
        self._token_path = account / "token"
        authority = account / "ca.crt"
        context = ssl.create_default_context(cafile=str(authority) if authority.is_file() else None)
        self._client = httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, verify=context, trust_env=False)

    async def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> tuple[int, Object]:
        """Status and answer.

        Raises:
            DependencyDown: the API server does not answer, or failed.
            PermissionDenied: the ServiceAccount lacks the right.
        """
        headers = {"Accept": "application/json", "Content-Type": content_type, **self._authorization()}
        try:
            answer = await self._client.request(method, path, json=body, params=params, headers=headers)
            content = answer.json() if answer.content else {}
        except (httpx.HTTPError, ValueError) as error:
            raise DependencyDown(f"the API server at {self.url} does not answer: {error}") from None
        if answer.is_success or answer.status_code in (ABSENT, CONFLICT):
            return answer.status_code, content
        raise _refusal(answer.status_code, f"{method} {path}: {content.get('message', answer.reason_phrase)}")

    async def read(self, path: str, *, params: Mapping[str, str] | None = None) -> Object | None:
        """An object; ``None`` where there is none. Raises like ``call``."""
        status, found = await self.call("GET", path, params=params)
        return None if status == ABSENT else found

    async def close(self) -> None:
        """End the connections."""
        await self._client.aclose()

    def _authorization(self) -> dict[str, str]:
        try:
            return {"Authorization": f"Bearer {self._token_path.read_text()}"}
        except OSError:
            return {}  # `kubectl proxy` needs none


def _url_of_pod() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise DependencyDown(
            "this is no pod: give the API server's address as STRATOS_AUTOSCALER_KUBERNETES__API_SERVER"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _refusal(status: int, message: str) -> StratosError:
    return PermissionDenied(message) if status in (401, 403) else DependencyDown(message)
