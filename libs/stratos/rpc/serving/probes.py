"""/livez, /startedz, /readyz, /ready and /metrics, answered from an OS thread of their own.

The thread answers while the event loop is stalled; that is the point: /livez says that the process exists, /startedz
that it has been at SERVING once (before that it may load a model for minutes), /readyz says 503 as soon as the loop has
not turned for ``stall_timeout_s``, the service gives a reason not to be ready, or the lifecycle is not at SERVING.
/ready says the same as JSON.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from stratos.common.clock import Clock
from stratos.rpc.binding import split_address
from stratos.rpc.serving.metric_views import ViewCollector, ViewName


class Readiness:
    """Whether work should come here; written by the event loop, read by the probe thread."""

    def __init__(self, clock: Clock, stall_timeout_s: float, service_reason: Callable[[], str]) -> None:
        self._clock = clock
        self._stall_timeout_s = stall_timeout_s
        self._service_reason = service_reason
        self._beat_s = clock.now()
        self.phase = "starting"
        """What the lifecycle does; "" while it is SERVING."""
        self.has_started = False
        """It has been at SERVING."""

    def beat(self) -> None:
        """The event loop turned."""
        self._beat_s = self._clock.now()

    def reason(self) -> str:
        """Why the process is not ready; "" when it is."""
        if self.phase:
            return self.phase
        stalled_s = self._clock.now() - self._beat_s
        if stalled_s > self._stall_timeout_s:
            return f"the event loop has not turned for {stalled_s:.1f} s"
        try:
            return self._service_reason()
        except Exception as error:  # a probe is a boundary: a broken check means not ready, not a broken probe
            return f"the readiness check failed: {type(error).__name__}: {error}"


def ready_document(reason: str) -> tuple[int, dict[str, str]]:
    """HTTP status and JSON of /ready, from why a process is not ready; "" when it is."""
    return (503, {"status": "not_ready", "reason": reason}) if reason else (200, {"status": "ready"})


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0
    """Seconds a peer may be silent in the middle of a request; without it each such peer holds a thread."""

    def do_GET(self) -> None:
        """Answer one of the paths."""
        path = self.path.partition("?")[0]
        if path == "/livez":
            self._answer(200, b"ok\n")
        elif path == "/startedz":
            has_started = self.server.readiness.has_started
            self._answer(200 if has_started else 503, b"ok\n" if has_started else b"starting\n")
        elif path == "/readyz":
            reason = self.server.readiness.reason()
            self._answer(503 if reason else 200, f"{reason or 'ok'}\n".encode())
        elif path == "/ready":
            status, document = ready_document(self.server.readiness.reason())
            self._answer(status, json.dumps(document).encode(), "application/json")
        elif path == "/metrics":
            body = generate_latest(self.server.registry) + generate_latest(self.server.views)
            self._answer(200, body, CONTENT_TYPE_LATEST)
        else:
            self._answer(404, b"known paths: /livez /startedz /readyz /ready /metrics\n")

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; they are not logged."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], readiness: Readiness, registry: CollectorRegistry, views: CollectorRegistry
    ) -> None:
        self.readiness = readiness
        self.registry = registry
        self.views = views
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that gave up waiting is no error of ours; anything else is told with its traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class ProbeServer:
    """The HTTP server and its thread; ``views`` are names under which the metrics are shown once more.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(
        self, listen: str, readiness: Readiness, registry: CollectorRegistry, views: Iterable[ViewName] = ()
    ) -> None:
        renamed = CollectorRegistry()
        renamed.register(ViewCollector(registry, views))
        self._server = _Server(split_address(listen), readiness, registry, renamed)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        with contextlib.suppress(OSError):  # not on every system; without it the thread looks up after its pause
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which else is waited for
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
