"""A proxy in front of a platform that does what an operator might do wrong: it mixes up keys, or changes the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

HOP_HEADERS = frozenset({"connection", "content-length", "host", "transfer-encoding"})


@contextmanager
def meddling_proxy(
    target: str,
    *,
    key_for: Callable[[str], str] = lambda key: key,
    after: Callable[[str, str], None] = lambda method, path: None,
) -> Iterator[str]:
    """Yields the URL of a proxy.

    Args:
        target: URL without a path, where every request goes.
        key_for: which bearer a request gets instead of its own.
        after: called with method and path when the target has answered, before its answer is passed on.
    """
    with httpx.Client(base_url=target, timeout=None, trust_env=False) as http:

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
                own = self.headers.get("authorization", "").removeprefix("Bearer ")
                headers["authorization"] = f"Bearer {key_for(own)}"
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                answer = http.request(self.command, self.path, content=body, headers=headers)
                after(self.command, self.path)
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in HOP_HEADERS:
                        self.send_header(name, value)
                self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()
