"""Two models beside each other over the same windows and prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stratos.common.errors import BadRequest
from stratos.engine.settings import RunnerConfig
from stratos.quality.completions import function_heads, parses
from stratos.quality.held_out import HeldOutText, TokenWindow, cut_windows, read_texts
from stratos.quality.paired import MAX_NATS, as_relative, paired_mean
from stratos.quality.scored_model import ScoredModel, TokenScores
from stratos.quality.strata import Mask, all_strata
from stratos.quality.verdict import Loss, LossBounds, verdict_of, worst_first
from stratos.text.tokenizer import Tokenizer

CALIBRATION_NAME = "calibration.json"
"""File of a quantised model's folder that says which texts calibrated it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationAsk:
    """Models to compare, and how much text they get."""

    reference: RunnerConfig
    candidate: RunnerConfig
    text_paths: tuple[Path, ...]
    window: int = 256
    """Tokens that are scored together."""
    max_tokens: int = 65536
    """Tokens scored at most."""
    num_prompts: int = 64
    completion_tokens: int = 48
    seed: int = 0
    """Seed of the resamples."""
    bounds: LossBounds = field(default_factory=LossBounds)


@dataclass(frozen=True, slots=True)
class ScoredSide:
    """One model of a comparison."""

    scores: TokenScores
    parsed: np.ndarray
    """float64 [prompts]: 1 where the completion parses, else 0."""
    description: dict[str, Any]


def evaluate(ask: EvaluationAsk, say: Callable[[str], None]) -> dict[str, Any]:
    """Score both models; the report as JSON values.

    Raises:
        InvalidCheckpoint: a model cannot be loaded.
        BadRequest: unlike tokenizers, too little text, or text that calibrated the candidate.
    """
    texts = read_texts(ask.text_paths)
    tokenizer = _shared_tokenizer(ask.reference.model_folder(), ask.candidate.model_folder())
    _refuse_calibration_text(ask.candidate.model_folder(), texts)
    windows = cut_windows(texts, tokenizer, ask.window, ask.max_tokens)
    prompts = function_heads(texts, ask.num_prompts)
    sides = []
    for name, config in (("reference", ask.reference), ("candidate", ask.candidate)):
        say(f"{name}: {config.model_path}, {len(windows)} windows of {ask.window} tokens, {len(prompts)} completions")
        sides.append(score_side(config, windows, prompts, tokenizer, ask))
    losses = losses_between(sides[0], sides[1], windows, tokenizer, ask)
    return {
        "verdict": verdict_of(losses),
        "losses": [_as_json(loss) for loss in worst_first(losses)],
        "bounds": asdict(ask.bounds),
        "reference": sides[0].description,
        "candidate": sides[1].description,
        "texts": [{"name": text.name, "sha256": text.digest} for text in texts],
        "window": ask.window,
        "num_windows": len(windows),
        "num_prompts": len(prompts),
        "seed": ask.seed,
    }


def score_side(
    config: RunnerConfig,
    windows: Sequence[TokenWindow],
    prompts: Sequence[str],
    tokenizer: Tokenizer,
    ask: EvaluationAsk,
) -> ScoredSide:
    """Load a model, score the windows and complete the prompts; raises as ``ScoredModel.load``."""
    model = ScoredModel.load(config, max(ask.window, ask.completion_tokens + _longest(prompts, tokenizer)))
    scores = model.score(windows)
    return ScoredSide(scores, _parsed_shares(model, prompts, tokenizer, ask.completion_tokens), dict(model.description))


def losses_between(
    reference: ScoredSide,
    candidate: ScoredSide,
    windows: Sequence[TokenWindow],
    tokenizer: Tokenizer,
    ask: EvaluationAsk,
) -> list[Loss]:
    """Losses of the candidate, by stratum and measure."""
    strata = all_strata(windows, tokenizer, reference.scores.certainty)
    losses = list(_token_losses(strata, reference.scores, candidate.scores, ask))
    if len(reference.parsed):
        losses.append(_completion_loss(reference.parsed, candidate.parsed, ask))
    return losses


def _shared_tokenizer(reference: Path, candidate: Path) -> Tokenizer:
    files = [(folder / "tokenizer.json").read_bytes() for folder in (reference, candidate) if folder.is_dir()]
    if len(files) == 2 and json.loads(files[0]) != json.loads(files[1]):
        raise BadRequest("the two models have unlike tokenizers: their tokens cannot be compared in pairs", param="B")
    return Tokenizer.load(reference)


def _refuse_calibration_text(candidate: Path, texts: Sequence[HeldOutText]) -> None:
    path = candidate / CALIBRATION_NAME
    if not path.exists():
        return
    seen = {text["sha256"] for text in json.loads(path.read_text(encoding="utf-8")).get("texts", ())}
    for text in texts:
        if text.digest in seen:
            raise BadRequest(f"text {text.name} calibrated {candidate}: it is not held out", param="--text")


def _longest(prompts: Sequence[str], tokenizer: Tokenizer) -> int:
    return max((len(tokenizer.encode_plain(prompt)) for prompt in prompts), default=0)


def _parsed_shares(model: ScoredModel, prompts: Sequence[str], tokenizer: Tokenizer, num_tokens: int) -> np.ndarray:
    """float64 [prompts]: 1 where the completion parses, else 0."""
    outputs = model.complete([tokenizer.encode_plain(prompt) for prompt in prompts], num_tokens)
    pairs = zip(prompts, outputs, strict=True)
    return np.array([float(parses(prompt, tokenizer.decode(output))) for prompt, output in pairs])


def _token_losses(
    strata: Iterator[tuple[str, Mask]], reference: TokenScores, candidate: TokenScores, ask: EvaluationAsk
) -> Iterator[Loss]:
    """Perplexity and likeliest tokens, of each stratum."""
    for name, mask in strata:
        counts, total = mask.sum(1), int(mask.sum())
        nats = ((reference.logprobs - candidate.logprobs) * mask).sum(1)
        yield Loss(
            stratum=name,
            measure="perplexity",
            num_samples=total,
            reference=_perplexity(reference, mask),
            candidate=_perplexity(candidate, mask),
            loss=as_relative(paired_mean(nats, counts, ask.seed)),
            bound=ask.bounds.mean if name == "all" else ask.bounds.stratum,
        )
        hits = ((reference.hits.astype(np.int64) - candidate.hits) * mask).sum(1)
        yield Loss(
            stratum=name,
            measure="likeliest token",
            num_samples=total,
            reference=float(reference.hits[mask].mean()),
            candidate=float(candidate.hits[mask].mean()),
            loss=paired_mean(hits, counts, ask.seed),
            bound=ask.bounds.score,
        )


def _completion_loss(reference: np.ndarray, candidate: np.ndarray, ask: EvaluationAsk) -> Loss:
    return Loss(
        stratum="completions that parse",
        measure="completions",
        num_samples=len(reference),
        reference=float(reference.mean()),
        candidate=float(candidate.mean()),
        loss=paired_mean(reference - candidate, np.ones(len(reference), dtype=np.int64), ask.seed),
        bound=ask.bounds.score,
    )


def _perplexity(scores: TokenScores, mask: Mask) -> float:
    return math.exp(min(MAX_NATS, -float(scores.logprobs[mask].mean())))


def _as_json(loss: Loss) -> dict[str, Any]:
    """The loss with its verdict; an end of an interval that is not finite is null."""
    found = asdict(loss)
    found["loss"] = {name: value if math.isfinite(value) else None for name, value in found["loss"].items()}
    return {**found, "verdict": loss.verdict}
