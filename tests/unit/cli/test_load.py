"""The load generator against a server that answers like a completions API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from stratos.cli.load import LoadSpec, check_spec, load_table, run_load
from stratos.common.errors import BadRequest, DependencyDown


class Server(BaseHTTPRequestHandler):
    bodies: ClassVar[list[dict]] = []
    open_now: ClassVar[int] = 0
    most_open: ClassVar[int] = 0
    gate: ClassVar[threading.Barrier | None] = None
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Server.lock:
            Server.bodies.append(body)
            Server.open_now += 1
            Server.most_open = max(Server.most_open, Server.open_now)
        if Server.gate is not None:
            Server.gate.wait(30)
        self.send_response(200 if body["model"] != "refused" else 503)
        self.end_headers()
        if body["model"] == "refused":
            self.wfile.write(b'{"error": {"message": "full"}}')
        elif body["model"] == "breaks":
            self.wfile.write(b'data: {"choices": [{}]}\n\ndata: {"error": {"message": "lost"}}\n\n')
        elif body["model"] != "silent":
            self.wfile.write(b'data: {"choices": [{}]}\n\n' * body["max_tokens"] + b"data: [DONE]\n\n")
        with Server.lock:
            Server.open_now -= 1

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def base_url() -> Iterator[str]:
    Server.bodies, Server.open_now, Server.most_open, Server.gate = [], 0, 0, None
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


async def test_every_request_is_sent_once_and_counted(base_url: str) -> None:
    Server.gate = threading.Barrier(3)
    spec = LoadSpec(
        base_url=base_url, model="m", concurrency=3, num_requests=6, num_prompt_tokens=5, num_output_tokens=4
    )
    report = await run_load(spec)
    assert Server.most_open == 3
    prompts = {tuple(body["prompt"]) for body in Server.bodies}
    assert len(Server.bodies) == len(prompts) == 6
    assert all(len(prompt) == 5 and min(prompt) >= 10 for prompt in prompts)
    assert report.output_tokens_per_s == pytest.approx(24 / report.wall_s)
    assert 0 < report.ttft_p50_ms <= report.ttft_max_ms <= report.wall_s * 1e3
    assert f"{report.output_tokens_per_s:.1f}" in load_table([report])


async def test_another_seed_sends_other_prompts(base_url: str) -> None:
    for seed in (1, 2, 1):
        await run_load(LoadSpec(base_url=base_url, model="m", num_requests=1, seed=seed))
    first, second, again = (body["prompt"] for body in Server.bodies)
    assert first == again != second


@pytest.mark.parametrize(("model", "message"), [("refused", "503.*full"), ("breaks", "lost"), ("silent", "no token")])
async def test_a_failure_is_told_and_not_averaged(base_url: str, model: str, message: str) -> None:
    with pytest.raises(DependencyDown, match=message):
        await run_load(LoadSpec(base_url=base_url, model=model, num_requests=1))


async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(DependencyDown, match=r"127\.0\.0\.1:1/v1"):
        await run_load(LoadSpec(base_url="http://127.0.0.1:1/v1", model="m"))


@pytest.mark.parametrize("field", ["concurrency", "num_requests", "num_prompt_tokens", "num_output_tokens"])
def test_senseless_specs_are_refused(field: str) -> None:
    with pytest.raises(BadRequest, match=field.replace("_", "-")):
        check_spec(LoadSpec(base_url="x", model="m", **{field: 0}))
