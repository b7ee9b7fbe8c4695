"""The metrics API as part of the process: listens, and keeps what it trusts and what trusts it up to date."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

import uvicorn
from prometheus_client import Counter

from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.common.tls.reloading import reason
from stratos.rpc.binding import StartError, explain_bind_failure, join_address, split_address
from stratos.rpc.serving.embedded_http import EmbeddedServer
from stratos_autoscaler.board import LoadBoard
from stratos_autoscaler.kubernetes.api import ApiServer
from stratos_autoscaler.metrics_api.access import MetricsAccess
from stratos_autoscaler.metrics_api.app import MetricsApp
from stratos_autoscaler.metrics_api.front_proxy import FrontProxy, read_front_proxy
from stratos_autoscaler.metrics_api.registration import keep_ca_bundle
from stratos_autoscaler.metrics_api.settings import MetricsApiConfig
from stratos_autoscaler.metrics_api.tls import PeerProtocol, ServingContext

_log = logging.getLogger(__name__)
LISTEN_SETTING = "STRATOS_AUTOSCALER_METRICS_API__LISTEN"
FIRST_TRY_S = 1.0


class MetricsApi:
    """Belongs to the event loop.

    Args:
        config: with a certificate.
        api: of the cluster.
        namespace: of the release.
        board: has the numbers.
        asked: counts questions for them.
        clock: monotonic.

    Raises:
        StartError: the certificate cannot be used, or the address is taken.
    """

    def __init__(
        self,
        config: MetricsApiConfig,
        api: ApiServer,
        namespace: str,
        board: LoadBoard,
        asked: Counter,
        clock: Clock,
    ) -> None:
        self._config = config
        self._api = api
        self._namespace = namespace
        self._proxy: FrontProxy | None = None
        if config.certificate_path is None or config.key_path is None:
            raise StartError("the metrics API needs a certificate: set METRICS_API__CERTIFICATE_PATH and __KEY_PATH")
        try:
            self._context = ServingContext(config.certificate_path, config.key_path)
        except OSError as error:
            raise StartError(f"the certificate of the metrics API cannot be used: {reason(error)}") from None
        self._socket = _listen(config.listen)
        self.address = join_address(*self._socket.getsockname()[:2])
        access = MetricsAccess(api, config.access_ttl_s, clock)
        app = MetricsApp(board, namespace, access, lambda: self._proxy, asked)
        self._server = EmbeddedServer(
            uvicorn.Config(
                app,
                http=PeerProtocol,
                loop="none",
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
                ssl_context_factory=lambda *_: self._context.listening,
            )
        )

    async def run(self) -> None:
        """Root task: serve until cancelled."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        following = asyncio.create_task(self._follow())
        _log.info("external.metrics.k8s.io at https://%s", self.address)
        try:
            await asyncio.shield(serving)
        finally:
            following.cancel()
            self._server.end()
            await asyncio.gather(serving, following, return_exceptions=True)

    def close(self) -> None:
        """Close the socket, also when ``run`` was never called."""
        self._socket.close()

    async def _follow(self) -> None:
        """Read the cluster's ConfigMap of front proxies, and keep the APIService's caBundle."""
        pause_s, logged = FIRST_TRY_S, ""
        while True:
            try:
                proxy = await read_front_proxy(self._api)
                self._context.trust(proxy)
                self._proxy = proxy
                await keep_ca_bundle(self._api, self._config, self._namespace)
                pause_s, problem = self._config.refresh_s, ""
            except (StratosError, ssl.SSLError, OSError, ValueError) as error:
                pause_s, problem = min(2 * pause_s, self._config.refresh_s), f"{error}"
            if problem and problem != logged:
                _log.warning("the metrics API is not kept up to date: %s", problem)
            logged = problem
            await asyncio.sleep(pause_s)


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen()
    except OSError as error:
        raise explain_bind_failure(address, LISTEN_SETTING, error) from None
    listener.setblocking(False)
    return listener
