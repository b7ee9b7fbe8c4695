"""What every scheme costs the shipped model, and saves: bytes, perplexity, strata, speed; ``make quality``.

    python -m scripts.bench.quality --out benchmarks/results/quality-2core-cpu.json --plot docs/pictures/quality.svg

Calibration is text that the model was trained on (the standard library), scores are of files that it never saw, with
CPython's unit tests and language reference beside them.  Checkpoints are made by ``stratos.quantise``, and those of
other formats by ``scripts.bench.stored_models``.  Speed is CPU time of one thread, every model in each round: the
machine may be shared, so look at ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from scripts.bench.harness import MODEL, by_turns, flag, run_bench
from scripts.bench.quantised import decode_ms
from scripts.bench.stored_models import BLOCKS, GGUF, NVFP4, save_gguf, save_nvfp4
from scripts.demo.demo_corpus import build_corpus
from stratos.cli.load.plots.chart import Chart, Series, chart_svg
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.quality.completions import function_heads
from stratos.quality.evaluation import EvaluationAsk, ScoredSide, losses_between, score_side
from stratos.quality.held_out import TokenWindow, cut_windows, read_texts
from stratos.quality.verdict import Loss, worst_first
from stratos.quantise.asking import QuantiseAsk
from stratos.quantise.run import quantise
from stratos.quantise.schemes import SCHEMES
from stratos.text.tokenizer import Tokenizer

CALIBRATION_CHARS, SCORED_TOKENS, SWEPT_TOKENS = 800_000, 24_576, 16_384
GROUPS = (32, 64)
BOUNDS = {
    "fp8-rtn": 0.005, "int8-rtn": 0.015, "int8-smoothquant": 0.015, "int4-gptq": 0.15, "int4-awq": 0.10,
    "KV int8": 0.005, "KV fp8": 0.005,
}  # fmt: skip
"""Largest relative growth of perplexity over all text."""
STREAMS = (1, 8)
AT_LOAD = tuple(f"{kind} at load" for kind in ("int8", "int4", "fp8", "mxfp4", "nf4", "llm-int8"))
PLOTTED_AT_LOAD = ("mxfp4 at load", "nf4 at load")
"""The others are where a scheme of the nearest numbers is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A model of the table."""

    name: str
    config: RunnerConfig
    scheme: str
    group: int = 0

    @property
    def bound(self) -> float | None:
        """Largest loss, where one is set."""
        return BOUNDS.get(self.scheme)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Held-out text, and the floats' scores of it."""

    ask: EvaluationAsk
    tokenizer: Tokenizer
    windows: list[TokenWindow]
    prompts: list[str]
    floats: ScoredSide

    @classmethod
    def prepared(cls, paths: list[Path], max_tokens: int, num_prompts: int) -> Scored:
        """Read text and score the floats."""
        floats = RunnerConfig(model_path=MODEL, num_threads=1)
        ask = EvaluationAsk(reference=floats, candidate=floats, text_paths=tuple(paths), num_prompts=num_prompts)
        texts, tokenizer = read_texts(paths), Tokenizer.load(MODEL)
        windows = cut_windows(texts, tokenizer, ask.window, max_tokens)
        prompts = function_heads(texts, num_prompts)
        side = score_side(floats, windows, prompts, tokenizer, ask)
        return cls(ask=ask, tokenizer=tokenizer, windows=windows, prompts=prompts, floats=side)

    def of(self, config: RunnerConfig) -> tuple[ScoredSide, list[Loss]]:
        """Scores of a model and what it loses."""
        side = score_side(config, self.windows, self.prompts, self.tokenizer, self.ask)
        return side, losses_between(self.floats, side, self.windows, self.tokenizer, self.ask)


def write_texts(folder: Path) -> dict[str, Path]:
    """Calibration by part of the corpus, and the held-out text of each, as files."""
    paths = {}
    for name, part in build_corpus().items():
        rng = random.Random(0)
        for side, documents in (("calibration", part.train), ("held-out", part.held_out)):
            chosen = documents[:]
            rng.shuffle(chosen)
            paths[f"{side} {name}"] = folder / f"{name}-{side}.txt"
            paths[f"{side} {name}"].write_text("\n".join(chosen)[:CALIBRATION_CHARS], encoding="utf-8")
    return paths


def made(folder: Path, scheme: str, group: int, text: Path, sequences: int = 128) -> RunnerConfig:
    """A checkpoint of the shipped model."""
    out = folder / f"{scheme}-{group}-{text.stem}-{sequences}"
    ask = QuantiseAsk(
        model_path=MODEL, scheme=scheme, text_paths=(text,), out=out, group_size=group, sequences=sequences,
        sequence_tokens=256,
    )  # fmt: skip
    quantise(ask, lambda _: None, lambda done, total, seconds: None)
    return RunnerConfig(model_path=out, num_threads=1)


def arms(folder: Path, texts: dict[str, Path]) -> Iterator[Arm]:
    """Models of the table, their checkpoints made."""
    floats = RunnerConfig(model_path=MODEL, num_threads=1)
    yield Arm(name="floats", config=floats, scheme="floats")
    for kind in ("int8", "fp8"):
        yield Arm(name=f"KV {kind}", config=replace(floats, kv_dtype=kind), scheme=f"KV {kind}")
    for name in AT_LOAD:
        yield Arm(
            name=name, config=replace(floats, quantization=cast("Any", name.removesuffix(" at load"))), scheme=name
        )
    for name, scheme in SCHEMES.items():
        for group in GROUPS if scheme.has_groups else (0,):
            config = made(folder, name, group, texts["calibration base"])
            yield Arm(name=f"{name}, g{group}" if group else name, config=config, scheme=name, group=group)
    yield Arm(name=NVFP4, config=replace(floats, model_path=save_nvfp4(folder)), scheme=NVFP4, group=16)
    for blocks in BLOCKS:
        yield Arm(name=f"GGUF {blocks}", config=replace(floats, model_path=save_gguf(folder, blocks)), scheme=GGUF)


def speeds(found: Sequence[Arm], rounds: int) -> dict[str, dict[str, Any]]:
    """CPU time of a decode step by streams, and how much faster it is than that of the floats in the same round."""
    rng, engines = random.Random(0), {}
    for arm in found:
        runner = TorchRunner.load(replace(arm.config, kv_pool_bytes=32 << 20))
        engines[arm.name] = EngineCore(runner, SchedulerConfig(step_time_budget_ms=0))
    turns = by_turns(rounds, engines, lambda name, _: {n: decode_ms(engines[name], rng, n) for n in STREAMS})
    floats = turns[found[0].name]
    return {
        name: {
            str(n): {
                "step_ms": round(statistics.median(one[n] for one in own), 3),
                "times_as_fast": round(statistics.median(f[n] / o[n] for f, o in zip(floats, own, strict=True)), 2),
            }
            for n in STREAMS
        }
        for name, own in turns.items()
    }


def row(arm: Arm, scored: Scored) -> dict[str, Any]:
    """What a model weighs and loses."""
    side, losses = scored.of(arm.config)
    whole = next(loss for loss in losses if (loss.stratum, loss.measure) == ("all", "perplexity"))
    worst = worst_first([loss for loss in losses if loss.stratum != "all" and loss.measure == "perplexity"])
    parsed = next((loss for loss in losses if loss.measure == "completions"), None)
    bound = arm.bound
    return {
        "name": arm.name, "scheme": arm.scheme, "group": arm.group,
        "step_weight_bytes": side.description["step_weight_bytes"],
        "kv_token_bytes": side.description["kv_token_bytes"],
        "perplexity": round(whole.candidate, 4), "loss": round(whole.loss.value, 5),
        "interval": [round(whole.loss.low, 5), round(whole.loss.high, 5)],
        "worst_stratum": worst[0].stratum, "worst_loss": round(worst[0].loss.value, 5),
        "parsed_loss": None if parsed is None else round(parsed.loss.value, 4),
        "bound": bound, "is_within": None if bound is None else whole.loss.value <= bound,
    }  # fmt: skip


def sweep(folder: Path, texts: dict[str, Path]) -> list[dict[str, Any]]:
    """GPTQ calibrated by other texts and by fewer, each scored on every held-out text."""
    names = ("base", "headers", "prose")
    scored = {name: Scored.prepared([texts[f"held-out {name}"]], SWEPT_TOKENS, 0) for name in names}
    rows = []
    for text, sequences in (*((name, 128) for name in names), ("base", 8), ("base", 32)):
        config = made(folder / "sweep", "int4-gptq", 32, texts[f"calibration {text}"], sequences)
        losses = {name: one.of(config)[1][0].loss for name, one in scored.items()}
        rows.append({
            "calibration": text, "sequences": sequences,
            "loss": {name: round(loss.value, 5) for name, loss in losses.items()},
            "interval": {name: [round(loss.low, 5), round(loss.high, 5)] for name, loss in losses.items()},
        })  # fmt: skip
    return rows


def plot(rows: list[dict[str, Any]]) -> str:
    """Loss over bytes, a line for each way of making the weights."""
    points: dict[str, list[tuple[float, float]]] = {}
    for one in rows:
        if not one["scheme"].startswith("KV") and one["scheme"] not in {*AT_LOAD} - {*PLOTTED_AT_LOAD}:
            place = (one["step_weight_bytes"] / 1e6, 100 * max(one["loss"], 0.0))
            points.setdefault(one["scheme"], []).append(place)
    series = [Series(name=name, points=sorted(found), is_line=len(found) > 1) for name, found in points.items()]
    return chart_svg(Chart(title="Perplexity lost", x_label="MB of weights read in a step", y_label="%", series=series))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = "| scheme | MB a step | perplexity | loss | worst stratum | 1 stream | 8 streams |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for one in rows:
        speed = " | ".join(f"{found['times_as_fast']:.2f}x" for found in one["decode"].values())
        lines.append(
            f"| {one['name']} | {one['step_weight_bytes'] / 1e6:.2f} | {one['perplexity']:.2f} | "
            f"{100 * one['loss']:+.2f} % | {one['worst_stratum']} {100 * one['worst_loss']:+.1f} % | {speed} |"
        )
    return "\n".join(lines)


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All models of the table, then the sweep."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = write_texts(folder)
        paths = [texts[f"held-out {part}"] for part in ("base", "prose", "tests")]
        scored = Scored.prepared(paths, SCORED_TOKENS, 24)
        found = list(arms(folder, texts))
        fast = speeds(found, args.rounds)
        rows = [{**row(arm, scored), "decode": fast[arm.name]} for arm in found]
        swept = [] if args.no_sweep else sweep(folder, texts)
    if args.plot is not None:
        args.plot.write_text(plot(rows) + "\n", encoding="utf-8")
    text = {"held_out": [path.stem for path in paths], "tokens": len(scored.windows) * scored.ask.window}
    return {"model": "models/base", "text": text, "rows": rows, "calibration_sweep": swept, "table": table(rows)}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--plot", type=Path, help="SVG of loss over bytes"),
        flag("--rounds", type=int, default=5, help="of the measurement of speed"),
        flag("--no-sweep", action="store_true", help="leave the sweep of calibration texts out"),
    )
