"""Send one long prompt through a whole platform twice, and compare its tokens with those of one engine.

    python -m scripts.bench.long_prompt --out benchmarks/results/long-prompt-xeon-amx-2core-cpu.json

Three random models of one shape: all layers see the whole context, all have a window, or two of three have one.  Each
runs on a platform with one prefill and two decode workers.  The first request is computed by the prefill worker, and
its KV is handed over; the second finds it in the decode worker's cache.  Taken are the time to the first token of both,
the path of the prompt, and the memory and the KV blocks that each worker has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil
from safetensors.torch import save_file

from scripts.bench.harness import MODEL, flag, run_bench, show
from scripts.bench.terms import apply_terms
from stratos.cli.local.running import find_platform, list_processes
from stratos.cli.status import read_status
from stratos.engine.settings import RunnerConfig
from stratos.quality.scored_model import MAX_STREAMS, ScoredModel
from stratos.reproduce.load.local_platform import Platform, running_platform
from stratos.reproduce.material.random_model import SHAPES, config_json, tensors

SHAPE = SHAPES["draft-1m"]
WINDOW = 1024
GAIN = 8.0
"""Projections times this: with small ones a random model says its last token again, whatever was before."""
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS: Mapping[str, dict[str, Any]] = {
    "full": {},
    "window": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": WINDOW},
    "mixed": {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "sliding_window": WINDOW,
        "use_sliding_window": True, "layer_types": MIXED, "no_rope_layers": [1, 1, 1],
    },
}  # fmt: skip


def write_long_model(folder: Path, kind: str, context: int) -> Path:
    """Write one of ``MODELS`` with so long a context; returns its folder."""
    folder.mkdir(parents=True)
    own = {"max_position_embeddings": context, "eos_token_id": SHAPE["vocab_size"] - 1}
    config = {**config_json(SHAPE), **own, **MODELS[kind]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {name: w * GAIN if name.endswith("_proj.weight") else w for name, w in tensors(SHAPE).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODEL / name, folder)
    return folder


def long_prompt(num_tokens: int) -> list[int]:
    """Tokens by chance, the same every time."""
    source = Random(num_tokens)
    return [source.randrange(5, SHAPE["vocab_size"]) for _ in range(num_tokens)]


def engine_tokens(folder: Path, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy tokens of one engine."""
    longest = len(prompt) + num_tokens
    size = 2 * 2 * SHAPE["num_hidden_layers"] * SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
    pool = MAX_STREAMS * (longest + 64) * size
    config = RunnerConfig(model_path=folder, dtype="bfloat16", max_model_len=longest, kv_pool_bytes=pool)
    return ScoredModel.load(config, longest).complete([prompt], num_tokens)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A stream's tokens and times, and what its receipt says of the prompt's KV."""

    tokens: list[int]
    ttft_s: float
    receipt: dict[str, Any]

    def row(self) -> dict[str, Any]:
        """Figures of the document."""
        names = ("prefill_path", "transferred_tokens", "prefix_match_tokens", "recomputed_tokens")
        return {"ttft_s": round(self.ttft_s, 3), **{name: self.receipt[name] for name in names}}


def first_allowed(client: httpx.Client, body: dict[str, Any]) -> tuple[float, httpx.Response]:
    """When it was sent, and the stream: it is refused until the gateway has heard of the tenant's plan."""
    end_s = time.monotonic() + 30.0
    while True:
        begun = time.perf_counter()
        answer = client.send(client.build_request("POST", "/completions", json=body), stream=True)
        if answer.status_code == 200:
            return begun, answer
        text = answer.read().decode()
        if answer.status_code != 400 or time.monotonic() > end_s:
            raise RuntimeError(text)
        time.sleep(0.05)


def ask(platform: Platform, model: str, prompt: list[int], num_tokens: int) -> Answer:
    """Stream greedy tokens."""
    body = {
        "model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "stream": True,
    }  # fmt: skip
    headers, tokens, times = {"authorization": f"Bearer {platform.key}"}, list[int](), list[float]()
    with httpx.Client(base_url=platform.url, headers=headers, timeout=None, trust_env=False) as client:
        begun, answer = first_allowed(client, body)
        with closing(answer):
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise RuntimeError(line)
                tokens += (found := [token for choice in event["choices"] for token in choice["token_ids"]])
                times += [time.perf_counter()] if found else []
        url = f"/requests/{answer.headers['x-request-id']}/receipt"
        while (told := client.get(url)).status_code == 404:
            time.sleep(0.1)
    (receipt,) = told.raise_for_status().json()["generations"]
    return Answer(tokens=tokens, ttft_s=times[0] - begun, receipt=receipt)


def worker_memory(data_dir: Path) -> dict[str, int]:
    """MiB that each worker with its engine has now, shared memory included, by the worker's name."""
    views = asyncio.run(list_processes(find_platform(data_dir)))
    found = {}
    for view in views:
        if view.role:
            worker = psutil.Process(view.pid)
            family = (worker, *worker.children(recursive=True))
            found[view.name] = sum(process.memory_info().rss for process in family) >> 20
    return found


def worker_blocks(data_dir: Path) -> dict[str, int]:
    """KV blocks that each worker holds, in use or cached, by the worker's name."""
    fleet = asyncio.run(read_status(find_platform(data_dir), 60.0)).fleet
    ledgers = {w.ref.worker_id: w.status.engine.blocks for w in (fleet.workers if fleet else ()) if w.status}
    return {name: ledger.total - ledger.free for name, ledger in ledgers.items()}


def measure(kind: str, prompt_tokens: int, num_tokens: int) -> dict[str, Any]:
    """One model on a platform of its own: cold, then cached."""
    with TemporaryDirectory() as parent:
        folder = write_long_model(Path(parent) / kind, kind, prompt_tokens + 2 * num_tokens)
        data_dir, prompt = Path(parent) / "data", long_prompt(prompt_tokens)
        size = ("--prefill", "1", "--decode", "2", "--max-decode", "2", "--dtype", "bfloat16", "--threads", "1")
        arguments = ("--model", str(folder), "--max-model-len", str(prompt_tokens + 2 * num_tokens), *size)
        env = {"STRATOS_GATEWAY_MODEL__MAX_INPUT_TOKENS": str(prompt_tokens)}
        with running_platform(*arguments, data_dir=str(data_dir), env=env) as platform:
            plan = {"priority_class": 2, "max_prompt_tokens": prompt_tokens}
            apply_terms(data_dir, {"plans": {"long": plan}, "tenants": {"default": {"plan": "long"}}})
            load, idle = os.getloadavg()[0], worker_memory(data_dir)
            cold, hit = (ask(platform, kind, prompt, num_tokens) for _ in range(2))
            held, blocks = worker_memory(data_dir), worker_blocks(data_dir)
        expected = engine_tokens(folder, prompt, num_tokens)
    row = {
        "model": kind, "prompt_tokens": prompt_tokens, "load_average": round(load, 1), "cold": cold.row(),
        "hit": hit.row(), "hit_to_cold_ttft": round(hit.ttft_s / cold.ttft_s, 4), "worker_mib_before": idle,
        "worker_mib_after": held, "worker_blocks_after": blocks, "num_tokens": len(expected),
        "num_unlike_tokens": len(set(expected)),
        "equals_one_engine": cold.tokens == hit.tokens == expected and len(expected) == num_tokens,
    }  # fmt: skip
    show(row)
    return row


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Each model once."""
    rows = [measure(kind, args.prompt_tokens, args.tokens) for kind in MODELS]
    return {"shape": SHAPE, "window": WINDOW, "mixed_layers": MIXED, "models": rows}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--prompt-tokens", type=int, default=32768),
        flag("--tokens", type=int, default=32, help="of each answer"),
    )
