"""Servers of other projects, started as their documentation says for a machine of two cores."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stratos.cli.local.ports import any_free_port

START_S = 600.0
STREAMS, CONTEXT = 32, 1280
"""Streams at once and tokens of each, which is what ``scripts.bench.compare`` sends."""
VLLM_ENV = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PeerServer:
    """A server that answers."""

    url: str
    """With ``/v1``."""
    model: str
    pid: int
    start_s: float


@contextmanager
def running_peer(
    kind: str, program: Path, model: Path, log: Path, *, threads: int = 2, more: Sequence[str] = ()
) -> Iterator[PeerServer]:
    """Serve a model until the block ends.

    Args:
        kind: "llama.cpp" or "vllm".
        program: ``llama-server`` or ``vllm``.
        model: a GGUF file, or a folder of a checkpoint.
        log: gets what it prints.
        threads: of the peer.
        more: arguments behind ours.
    """
    port = any_free_port()
    arguments = _llama_cpp(model, port, threads) if kind == "llama.cpp" else _vllm(model, port)
    command = [str(program), *arguments, *more]
    begin = time.perf_counter()
    binding = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    env = {**VLLM_ENV, **binding} if kind == "vllm" else {}
    with running_server(command, env, f"http://127.0.0.1:{port}/health", log) as pid:
        yield PeerServer(f"http://127.0.0.1:{port}/v1", str(model), pid, time.perf_counter() - begin)


@contextmanager
def running_server(command: Sequence[str], env: Mapping[str, str], health_url: str, log: Path) -> Iterator[int]:
    """A process that serves until the block ends; its pid, once it answers.

    Raises:
        RuntimeError: it ended before it served.
        TimeoutError: it did not serve in time.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **env})
        try:
            _wait(health_url, process, log)
            yield process.pid
        finally:
            process.terminate()
            process.wait(timeout=60)


def _llama_cpp(model: Path, port: int, threads: int) -> list[str]:
    """Each stream has KV of its own, and no prompt is kept for later, which saves time where none comes twice."""
    context = ["--parallel", str(STREAMS), "--ctx-size", str(STREAMS * CONTEXT), "--no-kv-unified", "--cache-ram", "0"]
    computing = ["--threads", str(threads), "--threads-batch", str(threads)]
    return ["--model", str(model), "--host", "127.0.0.1", "--port", str(port), *context, *computing]


def _vllm(model: Path, port: int) -> list[str]:
    context = ["--max-model-len", "4096", "--max-num-seqs", "64"]
    return ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), *context]


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended before it served, see {log}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise TimeoutError(f"the server did not serve within {START_S:.0f} s, see {log}")
