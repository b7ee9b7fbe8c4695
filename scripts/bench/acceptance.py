"""Measure how often drafts are accepted, by task, adapter and method, beside what the two models allow.

    python -m scripts.bench.acceptance --out benchmarks/results/acceptance-2core-cpu.json

Tasks are the held-out parts of the demo models' corpus, at temperature 1, with all of 4 drafted tokens run.  For the
draft model both figures of its distributions are printed: (1 - TV) / (1 + TV), the least that drafts with the same
noise reach, and 1 - TV, which rejection sampling would.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.harness import MODEL, flag, run_bench, show, table
from scripts.demo.demo_corpus import build_corpus
from stratos.core.adapter import AdapterRef
from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.requests.records import ChoiceState, EngineRequest, PositionLogprobs, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.results import DraftCount
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig, SpeculationConfig
from stratos.engine.speculation.acceptance import measure_acceptance_rate, total_variation
from stratos.engine.speculation.making import make_proposer
from stratos.text.tokenizer import Tokenizer

PROMPT, OUTPUT, COUNT = 200, 48, 4
TASKS = {"base": "", "headers": "c-headers", "prose": "reference-prose", "tests": "unit-tests"}
METHODS = ("ngram", "draft")


def load(folder: Path) -> TorchRunner:
    """A runner of one thread."""
    return TorchRunner.load(RunnerConfig(model_path=folder, num_threads=1, kv_pool_bytes=128 << 20))


def requests(task: str, count: int, digest: str) -> list[EngineRequest]:
    """Streams that go on from held-out texts of a task."""
    rng, tokenizer = random.Random(task), Tokenizer.load(MODEL)
    texts = sorted(build_corpus()[task].held_out, key=len, reverse=True)[:40]
    sampling, made = SamplingParams(temperature=1.0, max_tokens=OUTPUT, ignore_eos=True), []
    for i, text in enumerate(rng.choices(texts, k=count)):
        ids = tokenizer.encode_plain(text[:20_000])
        begin = rng.randrange(max(1, len(ids) - PROMPT))
        made.append(
            EngineRequest(
                key=RequestKey(f"{task}{digest[:4]}{i}", 0), prompt_ids=tuple(ids[begin : begin + PROMPT]),
                choices=(ChoiceState(index=0),), sampling=sampling, seed=i,
                terms=RequestTerms(adapter=AdapterRef(digest=digest)),
            )
        )  # fmt: skip
    return made


def run(engine: EngineCore, wanted: list[EngineRequest]) -> tuple[list[DraftCount], dict[str, list[int]]]:
    """Counts of drafted rows, and the streams."""
    counts, streams = list[DraftCount](), dict[str, list[int]]()
    for request in wanted:
        engine.add(request)
    while engine.has_work:
        result = engine.step()
        counts += result.drafts
        for output in result.outputs:
            streams.setdefault(output.key.request_id, []).extend(output.token_ids)
    return counts, streams


def distributions(runner: TorchRunner, request: EngineRequest, stream: list[int]) -> list[np.ndarray]:
    """Probabilities [vocabulary] at each place of the stream."""
    vocab_size = runner.info.vocab_size
    sampling = dataclasses.replace(request.sampling, max_tokens=1, num_prompt_logprobs=vocab_size)
    whole = dataclasses.replace(request, prompt_ids=(*request.prompt_ids, *stream), sampling=sampling)
    engine, found = EngineCore(runner, SchedulerConfig(step_time_budget_ms=0)), tuple[PositionLogprobs, ...]()
    engine.add(whole)
    while engine.has_work:
        found = found or next(iter(engine.step().prompt_logprobs.values()), ())
    places = []
    for position in found[len(request.prompt_ids) - 1 :]:
        place = np.zeros(vocab_size)
        for entry in position.top:
            place[entry.token_id] = np.exp(entry.logprob)
        places.append(place / place.sum())
    return places


def measure(
    target: TorchRunner, draft: TorchRunner, task: str, adapter: str, method: str, count: int
) -> dict[str, Any]:
    """One row: a task with an adapter or none, and a method."""
    digest = ""
    if adapter:
        files = read_adapter_files(MODEL.parent / "adapters" / adapter)
        target.load_adapter(files)
        digest = files.digest
    speculation = SpeculationConfig(method=method, num_speculative_tokens=COUNT, is_adaptive=False)  # type: ignore[arg-type]
    config = SchedulerConfig(speculation=speculation, step_time_budget_ms=0)
    engine = EngineCore(target, config, proposer=make_proposer(config, target, draft))
    wanted = requests(task, count, digest)
    counts, streams = run(engine, wanted)
    variations = []
    if method == "draft":
        for request in wanted[: count // 2]:
            stream = streams[request.key.request_id]
            plain = dataclasses.replace(request, terms=RequestTerms())
            both = (distributions(target, request, stream), distributions(draft, plain, stream))
            variations += [total_variation(p, q) for p, q in zip(*both, strict=True)]
    found = measure_acceptance_rate(counts, variations)
    row = {
        "task": task, "adapter": adapter or "none", "method": method, "drafted": sum(found.drafted),
        "rate": round(found.rate, 3), "verdict": found.verdict,
        "by_place": [round(rate, 3) for rate in found.by_place],
        "same_noise": found.same_noise and round(found.same_noise, 3),
        "rejection": found.rejection and round(found.rejection, 3),
    }  # fmt: skip
    show(row)
    return row


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every task without adapter and with its own, by each method."""
    target, draft = load(args.target), load(args.draft)
    rows = [
        measure(target, draft, task, adapter, method, args.streams)
        for task, own in TASKS.items()
        for adapter in dict.fromkeys(("", own))
        for method in METHODS
    ]
    titles = ("task", "adapter", "method", "rate", "verdict", "by place", "(1-TV)/(1+TV)", "1-TV")
    names = ("task", "adapter", "method", "rate", "verdict", "by_place", "same_noise", "rejection")
    text = table(titles, [[str(row[name]) for name in names] for row in rows], is_markdown=True)
    return {"target": args.target.name, "draft": args.draft.name, "prompt": PROMPT, "output": OUTPUT,
            "drafted_at_most": COUNT, "streams": args.streams, "rows": rows, "table": text}  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--target", type=Path, default=MODEL, help="folder of the target"),
        flag("--draft", type=Path, default=MODEL.parent / "draft", help="folder of the draft model"),
        flag("--streams", type=int, default=12, help="streams of each row"),
    )
