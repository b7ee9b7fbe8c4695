"""Calls to an API server, as a kubeconfig says who and where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratos.common.errors import BadRequest, DependencyDown, NotFound, Overloaded, PermissionDenied, StratosError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

TIMEOUT_S = 30.0
MERGE_PATCH = "application/merge-patch+json"
Object = dict[str, Any]
Params = Sequence[tuple[str, str]]


class KubeApi:
    """Belongs to the event loop.

    Args:
        configuration: of the official client.
    """

    def __init__(self, configuration: Configuration) -> None:
        import aiohttp
        from kubernetes.aio.client import ApiClient
        from kubernetes.aio.stream import WsApiClient

        configuration.connection_pool_maxsize = 0  # every stream of a run has a connection of its own
        self.url: str = configuration.host
        self._client, self._sockets, self._timeout = (
            ApiClient(configuration),
            WsApiClient(configuration),
            aiohttp.ClientTimeout,
        )
        self._broken = (aiohttp.ClientError, OSError, TimeoutError, ValueError)

    async def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Params = (),
        content_type: str = "application/json",
    ) -> Object:
        """The answer.

        Raises:
            NotFound: there is no such object.
            Overloaded: not now, as a budget says of a pod.
            StratosError: it is refused, or the API server does not answer.
        """
        try:
            answer = await self._send(method, path, body, params, content_type, TIMEOUT_S)
            content = json.loads(await answer.read() or b"{}")
        except self._broken as error:
            raise self._down(error) from None
        if answer.status >= 300:
            raise _refusal(answer.status, f"{method} {path}: {content.get('message', answer.reason)}")
        return dict(content)

    async def items(self, path: str, selector: str) -> list[Object]:
        """Objects of a collection. Raises like ``call``."""
        return list((await self.call("GET", path, params=[("labelSelector", selector)]))["items"])

    async def text(self, path: str, params: Params) -> str:
        """An answer that is no JSON, such as a log. Raises like ``call``."""
        try:
            answer = await self._send("GET", path, None, params, "application/json", TIMEOUT_S)
            content = str(await answer.read(), errors="replace")
        except self._broken as error:
            raise self._down(error) from None
        if answer.status >= 300:
            raise _refusal(answer.status, f"GET {path}: {content[:200]}")
        return content

    async def watch(self, path: str, params: Params, for_s: float) -> AsyncIterator[tuple[str, Object]]:
        """Changes of a collection: their types and objects. Raises like ``call``."""
        query = [*params, ("watch", "true"), ("timeoutSeconds", str(int(for_s)))]
        try:
            answer = (await self._send("GET", path, None, query, "application/json", for_s + TIMEOUT_S)).response
            async with answer:
                if answer.status >= 300:
                    raise _refusal(answer.status, f"watching {path}: {answer.reason}")
                async for line in answer.content:
                    event = json.loads(line)
                    yield event["type"], event["object"]
        except self._broken as error:
            raise self._down(error) from None

    @asynccontextmanager
    async def socket(self, path: str, params: Params) -> AsyncIterator[Any]:
        """A WebSocket to a pod, whose messages begin with the number of a channel. Raises like ``call``."""
        request = await self._sockets.param_serialize(
            "GET", path, query_params=list(params), header_params={}, auth_settings=["BearerToken"]
        )
        opening = await self._sockets.call_api(*request, _preload_content=False)
        try:
            opened = await opening.response
        except self._broken as error:
            status = getattr(error, "status", 0)
            raise (_refusal(status, f"{path}: {error}") if status else self._down(error)) from None
        try:
            yield opened
        finally:
            await opened.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()
        await self._sockets.close()

    async def _send(
        self, method: str, path: str, body: Object | None, params: Params, content_type: str, timeout_s: float
    ) -> Any:
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list(params),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        return await self._client.call_api(*request, _request_timeout=self._timeout(total=timeout_s))

    def _down(self, error: Exception) -> DependencyDown:
        return DependencyDown(f"the API server at {self.url} does not answer: {str(error) or type(error).__name__}")


@asynccontextmanager
async def opened_api(kubeconfig: Path | None, context: str) -> AsyncIterator[KubeApi]:
    """The API server of a kubeconfig's context; short-lived credentials are renewed while it is open.

    Raises:
        BadRequest: there is no such file or context, or the client is not installed.
    """
    try:
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import ConfigException, load_kube_config, refresh_token
    except ImportError as error:
        raise BadRequest(f"--kube needs the package kubernetes: pip install 'stratosserve[kube]' ({error})") from None
    configuration = Configuration()
    try:
        loader = await load_kube_config(
            config_file=str(kubeconfig) if kubeconfig else None,
            context=context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    except (ConfigException, OSError) as error:
        raise BadRequest(f"no cluster is known: {error}", param="--kubeconfig") from None
    configuration.client_session_kwargs = {"trust_env": False}
    api, renewal = KubeApi(configuration), asyncio.create_task(refresh_token(loader, configuration))
    try:
        yield api
    finally:
        renewal.cancel()
        await api.close()


def _refusal(status: int, message: str) -> StratosError:
    kinds: dict[int, type[StratosError]] = {400: BadRequest, 401: PermissionDenied, 403: PermissionDenied}
    kinds |= {404: NotFound, 422: BadRequest, 429: Overloaded}
    return kinds.get(status, DependencyDown)(message)
