"""`stratos batch` against an HTTP server that answers like the gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from stratos.cli.batches.commands import batch_app

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "base", "prompt": "go"}}
ANSWERS = b'{"custom_id": "a"}\n' * 1000


class Gateway(BaseHTTPRequestHandler):
    seen: ClassVar[list[tuple[str, str, bytes]]] = []
    batch: ClassVar[dict[str, Any]] = {}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        Gateway.seen.append((self.path, self.headers["Authorization"], body))
        if self.path == "/v1/files":
            return self._send(200, {"id": "file-1"})
        if self.path.endswith("/cancel"):
            Gateway.batch["status"] = "cancelling"
        self._send(200, Gateway.batch)

    def do_GET(self) -> None:
        if self.path == "/v1/files/file-2/content":
            return self._send(200, ANSWERS)
        if self.path != "/v1/batches/batch_1":
            return self._send(404, {"error": {"code": "not_found", "message": "there is no batch of this id"}})
        self._send(200, Gateway.batch)

    def _send(self, status: int, content: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content if isinstance(content, bytes) else json.dumps(content).encode())

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def base_url() -> Iterator[str]:
    counts = {"total": 4, "completed": 1, "failed": 1}
    Gateway.seen = []
    Gateway.batch = {"id": "batch_1", "status": "in_progress", "request_counts": counts, "output_file_id": None}
    Gateway.batch["error_file_id"] = None
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def run(base_url: str, *args: str) -> tuple[int, str]:
    found = CliRunner().invoke(batch_app, [*args, "--url", base_url, "--key", "sk-test"])
    return found.exit_code, found.output


def test_a_file_is_uploaded_and_its_batch_begun(base_url: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    assert run(base_url, "submit", str(path), "--metadata", "job=nightly") == (0, "batch_1\n")
    (upload, key, content), (begin, _, body) = Gateway.seen
    assert (upload, begin, key) == ("/v1/files", "/v1/batches", "Bearer sk-test")
    assert path.read_bytes() in content
    assert json.loads(body) == {
        "input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h",
        "metadata": {"job": "nightly"},
    }  # fmt: skip


def test_progress_results_and_the_end(base_url: str, tmp_path: Path) -> None:
    assert run(base_url, "status", "batch_1") == (0, f"[{'#' * 15}{'.' * 15}] 2/4 lines, 1 failed, in_progress\n")
    assert json.loads(run(base_url, "status", "batch_1", "--json")[1]) == Gateway.batch
    out = tmp_path / "out.jsonl"
    assert run(base_url, "fetch", "batch_1", "--out", str(out)) == (
        1,
        "error: the batch has no results: it is in_progress\n",
    )
    Gateway.batch |= {"status": "completed", "output_file_id": "file-2"}
    (tmp_path / "out.jsonl.errors").write_bytes(b"of another batch")
    assert run(base_url, "fetch", "batch_1", "--out", str(out))[0] == 0
    assert out.read_bytes() == ANSWERS
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert run(base_url, "status", "batch_1", "--wait")[1].endswith("completed\n")
    assert run(base_url, "cancel", "batch_1") == (0, "cancelling\n")


def test_what_does_not_work_is_one_line(base_url: str, tmp_path: Path) -> None:
    assert run(base_url, "status", "batch_2") == (1, "error: there is no batch of this id\n")
    (tmp_path / "in.jsonl").write_text("no json")
    code, text = run(base_url, "submit", str(tmp_path / "in.jsonl"))
    assert (code, text.count("\n")) == (1, 1)
    assert "first line" in text
    assert run("http://127.0.0.1:9/v1", "status", "batch_1")[0] == 1
