"""A page whose `EventSource` reads one answer, whatever becomes of the gateway that began it.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/event_source/proxy.py

An `EventSource` sends a GET without key and body, and says which event it had last. This proxy makes of that the POST
that goes on with the answer. Each name is an answer of its own, and every one that knows a name has it again.
"""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx

PAGE = Path(__file__).with_name("story.html")
BODY = {
    "model": "base",
    "prompt": "Once upon a time",
    "max_tokens": int(os.environ.get("TOKENS", "3000")),
    "ignore_eos": True,
    "stream": True,
}


class Proxy(BaseHTTPRequestHandler):
    """Answers `/` with the page, and `/story?name=...` with the events of that answer."""

    def do_GET(self) -> None:
        """Answer one request."""
        url = urlsplit(self.path)
        if url.path == "/":
            self._begin(200, "text/html; charset=utf-8")
            self.wfile.write(PAGE.read_bytes())
        elif url.path == "/story" and (names := parse_qs(url.query).get("name")):
            self._pass_on(names[0])
        else:
            self.send_error(404)

    def _pass_on(self, name: str) -> None:
        headers = {"authorization": f"Bearer {os.environ['API_KEY']}", "idempotency-key": name}
        if last := self.headers.get("last-event-id"):
            headers["last-event-id"] = last
        try:
            with httpx.stream(
                "POST", f"{os.environ['BASE_URL']}/completions", json=BODY, headers=headers, timeout=60
            ) as answer:
                if answer.status_code >= 500:
                    return  # a page comes back after a lost connection, and never after an answer like this one
                self._begin(answer.status_code, answer.headers.get("content-type", ""))
                for part in answer.iter_raw():
                    self.wfile.write(part)
        except (httpx.HTTPError, OSError):
            return  # the gateway is gone, or the page is: what is not closed properly is asked for again

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Proxy) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
