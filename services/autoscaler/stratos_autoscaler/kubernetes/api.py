"""Calls to the API server by the official client: JSON in, JSON out, and watches of collections.

Of the package ``kubernetes`` it takes the asynchronous client without its classes for each kind: those of the core
group alone are 150 MB of a process.  404 and 409 are answers, everything else above 299 is an error.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratos.common.errors import BadRequest, DependencyDown, PermissionDenied, StratosError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 5.0
WATCH_S = 60
"""The API server ends a watch after so long, and it is taken up where it ended: what bounds how long a connection that
died without a word goes unnoticed."""
ABSENT, CONFLICT, GONE = 404, 409, 410
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML."""
Object = dict[str, Any]


class VersionGoneError(Exception):
    """Changes since the version that was named are not known to the API server any more: list again."""


class ApiServer:
    """Belongs to the event loop.

    Args:
        url: empty takes that of the pod, with its ServiceAccount; another one is called without credentials, as
            ``kubectl proxy`` wants it.
        account: folder with ``token`` and ``ca.crt``; the client reads the token again, since kubelets replace it.
    """

    def __init__(self, url: str = "", account: Path = SERVICE_ACCOUNT) -> None:
        # Here, since the package takes a second and 44 MB, and an autoscaler of one machine has no cluster.
        import aiohttp
        from kubernetes.aio.client import ApiClient, ApiException
        from kubernetes.aio.watch import Watch

        configuration = _configuration(url, account)
        configuration.client_session_kwargs = {"trust_env": False}
        self.url: str = configuration.host
        self._client = ApiClient(configuration)
        self._client.user_agent = "stratos-autoscaler"
        self._watch = _watch_through(self._client, Watch)
        self._refused, self._timeout = ApiException, aiohttp.ClientTimeout
        self._broken: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError, TimeoutError, ValueError)

    async def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[int, Object]:
        """Status and answer.

        Raises:
            DependencyDown: the API server does not answer, or failed.
            PermissionDenied: the ServiceAccount lacks the right.
            BadRequest: the object cannot be.
        """
        try:
            answer = await self._send(method, path, body, params or {}, content_type, self._timeout(total=timeout_s))
            content = json.loads(await answer.read() or b"{}")
        except self._broken as error:
            raise self._down(error) from None
        if answer.status < 300 or answer.status in (ABSENT, CONFLICT):
            return answer.status, content
        raise _refusal(answer.status, f"{method} {path}: {content.get('message', answer.reason)}")

    async def read(
        self, path: str, *, params: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> Object | None:
        """An object; ``None`` where there is none. Raises like ``call``."""
        status, found = await self.call("GET", path, params=params, timeout_s=timeout_s)
        return None if status == ABSENT else found

    async def watch(
        self, path: str, params: Mapping[str, str], version: str, opened: Callable[[], None]
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes of a collection since a version: their types (ADDED, MODIFIED, DELETED, BOOKMARK) and objects.

        It ends when the API server ends it.

        Args:
            path: of the collection.
            params: such as its selector.
            version: that changes follow.
            opened: called once the API server has taken it.

        Raises:
            VersionGoneError: the version is too old, or what followed it cannot be read.
            StratosError: as ``call``.
        """
        query = {**params, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}

        async def begin(*, resource_version: str, **_: Any) -> Any:
            response = await self._begin_watch(path, {**query, "resourceVersion": resource_version})
            opened()
            return response

        try:
            async with self._watch() as watch:
                # With a time the client hands on that the stream has ended, and does not take it up again by itself.
                async for event in watch.stream(begin, resource_version=version, timeout_seconds=WATCH_S):
                    yield event["type"], event["raw_object"]
        except self._refused as error:
            if error.status == GONE:
                raise VersionGoneError from None
            raise _refusal(error.status, f"watching {path}: {error.reason}") from None
        except self._broken as error:
            raise self._down(error) from None
        except Exception as error:  # a line that is no event: the package raises what it happens to meet
            raise VersionGoneError from error

    async def close(self) -> None:
        """End the connections."""
        await self._client.close()

    async def _begin_watch(self, path: str, query: Mapping[str, str]) -> Any:
        """The response whose body is the stream."""
        limits = self._timeout(total=None, connect=TIMEOUT_S, sock_read=WATCH_S + 15)
        answer = await self._send("GET", path, None, query, "application/json", limits)
        if answer.status >= 300:
            content = json.loads(await answer.read() or b"{}")
            raise self._refused(status=answer.status, reason=content.get("message", answer.reason))
        return answer.response

    async def _send(
        self, method: str, path: str, body: Object | None, params: Mapping[str, str], content_type: str, timeout: Any
    ) -> Any:
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list(params.items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        return await self._client.call_api(*request, _request_timeout=timeout)

    def _down(self, error: Exception) -> DependencyDown:
        return DependencyDown(f"the API server at {self.url} does not answer: {str(error) or type(error).__name__}")


def _watch_through(client: Any, kind: type[Any]) -> type[Any]:
    """A class of watches through a client that is there.

    Each of the package's makes a client of its own, which reads the certificates of the system: 60 ms in which the
    loop does nothing else, for every watch that is taken up again.
    """

    def begin(self: Any) -> None:
        vars(self).update(_raw_return_type=None, _stop=False, _api_client=client, resource_version=None, resp=None)

    async def close(self: Any) -> None:
        if self.resp is not None:
            self.resp.release()
            self.resp = None

    return type("SharedWatch", (kind,), {"__init__": begin, "close": close})


def _configuration(url: str, account: Path) -> Configuration:
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException
    from kubernetes.aio.config.incluster_config import InClusterConfigLoader

    found = Configuration(host=url)
    if url:
        return found
    try:
        InClusterConfigLoader(str(account / "token"), str(account / "ca.crt")).load_and_set(found)
    except ConfigException as error:
        raise DependencyDown(
            f"this is no pod with a ServiceAccount ({error}): give the API server's address as "
            "STRATOS_AUTOSCALER_KUBERNETES__API_SERVER"
        ) from None
    return found


def _refusal(status: int, message: str) -> StratosError:
    if status in (400, 422):
        return BadRequest(message)
    return PermissionDenied(message) if status in (401, 403) else DependencyDown(message)
