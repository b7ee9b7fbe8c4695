#!/usr/bin/env python3
"""Measure what further models cost a gateway: memory and time of each, and a request beside 50 of them.

    python -m scripts.bench.many_models --out benchmarks/results/many-models-2core-cpu.json

A request is a chat, from its parsed body to what a router and a worker are asked: names, checks, template, tokens.  The
rest of a request knows one model, whichever it is.  CPU time of the process; a gateway with one model and one with 50
take turns.  Requests of the latter are all for one of its models, or for all in turn: then no tokenizer, template or
checks are in the processor's caches.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.harness import ROOT, by_turns, flag, run_bench, table
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig
from stratos_gateway.preparation.dialects import DIALECTS
from stratos_gateway.preparation.generation import GenerationPreparer, PreparationTools

TENANT = Tenant(name="bench")
_TEXTS = ("*.json", "*.jinja", "*.txt")


def folders(where: Path, count: int) -> list[Path]:
    """Folders of models that differ: what a gateway reads of each, without weights."""
    made = []
    for number in range(count):
        folder = where / f"model-{number}"
        folder.mkdir()
        for pattern in _TEXTS:
            for path in (ROOT / "models" / "base").glob(pattern):
                shutil.copy(path, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, "bench_number": number}), encoding="utf-8")
        made.append(folder)
    return made


def loaded(paths: list[Path]) -> list[ServedModel]:
    """The models of some folders, by digests of their own."""
    digests = (hashlib.sha256(path.name.encode()).hexdigest() for path in paths)
    configs = [ModelConfig(path=p, name=p.name, digest=d) for p, d in zip(paths, digests, strict=True)]
    return [ServedModel.load_texts(config, 0) for config in configs]


async def requests_us(models: ModelSet, names: list[str], count: int) -> float:
    """Microseconds of CPU of one request."""
    [dialect] = [one for one in DIALECTS if one.path == "/v1/chat/completions"]
    preparer = GenerationPreparer(PreparationTools(catalogue=ModelCatalogue(models)), dialect)
    begin = time.process_time()
    for number in range(count):
        messages = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog"}]
        body = {"model": names[number % len(names)], "messages": messages, "max_tokens": 16}
        await preparer.prepare(body, TENANT, NO_TRACE)
    return (time.process_time() - begin) / count * 1e6


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, and the median of the ratios within each."""
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as where:
        paths = folders(Path(where), args.models)
        first = loaded(paths[:1])
        before, begin = process.memory_info().rss, time.process_time()
        others = loaded(paths[1:])
        each_s, grown = time.process_time() - begin, process.memory_info().rss - before
        few, many = ModelSet(first), ModelSet([*first, *others])
        every = [model.base.name for model in many]
        arms = {"alone": (few, every[:1]), "beside all": (many, every[:1]), "all in turn": (many, every)}
        runs = by_turns(args.rounds, arms, lambda arm, turn: asyncio.run(requests_us(*arms[arm], args.requests)))
    ratios = {
        arm: round(statistics.median(us / alone for us, alone in zip(runs[arm], runs["alone"], strict=True)), 3)
        for arm in arms
    }
    medians = {arm: round(statistics.median(found), 1) for arm, found in runs.items()}
    each_mib, each_ms = grown / len(others) / 2**20, each_s / len(others) * 1e3
    cells = [(arm, str(args.models), str(medians[arm]), f"{ratios[arm]:.3f}x") for arm in arms]
    return {
        "models": args.models,
        "mib_of_each": round(each_mib, 2),
        "cpu_ms_of_each": round(each_ms, 1),
        "request_us": medians,
        "ratios": ratios,
        "rounds_us": runs,
        "table": table(("requests", "models", "us", "to alone"), cells),
    }


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--models", type=int, default=50),
        flag("--rounds", type=int, default=7),
        flag("--requests", type=int, default=1_000),
    )
