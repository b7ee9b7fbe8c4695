"""Real models beside each other: itself loses nothing, a damaged copy loses where it was damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from stratos.common.errors import BadRequest
from stratos.engine.settings import RunnerConfig
from stratos.quality.evaluation import EvaluationAsk, ScoredSide, evaluate, losses_between
from stratos.quality.held_out import cut_windows, read_texts
from stratos.quality.scored_model import TokenScores
from stratos.quality.verdict import Verdict, verdict_of
from stratos.text.tokenizer import Tokenizer
from tests.support.paths import ROOT

DRAFT = ROOT / "models" / "draft"
TEXT = ROOT / "tests/fixtures/held_out/unit_tests.txt"


def ask(candidate: Path, **changes: Any) -> EvaluationAsk:
    runner = {"dtype": "float32", "num_threads": 1, "kv_pool_bytes": 16 << 20}
    values: dict[str, Any] = {
        "reference": RunnerConfig(model_path=DRAFT, **runner),
        "candidate": RunnerConfig(model_path=candidate, **runner),
        "text_paths": (TEXT,), "window": 48, "max_tokens": 768, "num_prompts": 18, "completion_tokens": 8,
    }  # fmt: skip
    return EvaluationAsk(**{**values, **changes})


def quiet(_: str) -> None: ...


def by_stratum(report: dict[str, Any], measure: str = "perplexity") -> dict[str, Any]:
    return {loss["stratum"]: loss for loss in report["losses"] if loss["measure"] == measure}


@pytest.fixture(scope="module")
def beside_itself() -> dict[str, Any]:
    return evaluate(ask(DRAFT), quiet)


def test_a_model_loses_nothing_beside_itself(beside_itself: dict[str, Any]) -> None:
    assert beside_itself["verdict"] == "acceptable"
    assert {loss["loss"]["value"] for loss in beside_itself["losses"]} == {0.0}
    assert "beyond" not in {loss["verdict"] for loss in beside_itself["losses"]}
    completions = by_stratum(beside_itself, "completions")["completions that parse"]
    assert completions["num_samples"] == 18


def test_perplexity_is_that_of_the_reference_implementation(beside_itself: dict[str, Any]) -> None:
    windows = cut_windows(read_texts([TEXT]), Tokenizer.load(DRAFT), 48, 768)
    ids = torch.tensor([window.token_ids for window in windows])
    model = LlamaForCausalLM.from_pretrained(DRAFT, dtype=torch.float32)
    with torch.inference_mode():
        expected = torch.exp(model(input_ids=ids, labels=ids).loss).item()
    assert by_stratum(beside_itself)["all"]["reference"] == pytest.approx(expected, rel=1e-4)


def test_a_damaged_copy_is_not_acceptable(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(DRAFT, damaged)
    tensors = load_file(damaged / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = torch.zeros_like(tensors[name])
    save_file(tensors, damaged / "model.safetensors")
    report = evaluate(ask(damaged), quiet)
    assert report["verdict"] == "not acceptable"
    assert report["losses"][0]["verdict"] == "beyond"
    assert by_stratum(report)["all"]["loss"]["low"] > 0


def test_text_that_calibrated_and_unlike_tokenizers_are_refused(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    shutil.copytree(DRAFT, seen)
    (seen / "calibration.json").write_text(json.dumps({"texts": [{"sha256": read_texts([TEXT])[0].digest}]}))
    with pytest.raises(BadRequest, match="not held out"):
        evaluate(ask(seen), quiet)
    definition = json.loads((seen / "tokenizer.json").read_text())
    definition["added_tokens"][0]["content"] = "<other>"
    (seen / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(BadRequest, match="unlike tokenizers"):
        evaluate(ask(seen), quiet)


def test_a_window_beyond_the_context_is_refused() -> None:
    with pytest.raises(BadRequest, match="windows"):
        evaluate(ask(DRAFT, window=100_000), quiet)


def test_a_model_whose_perplexity_no_float_holds_is_not_acceptable() -> None:
    tokenizer = Tokenizer.load(DRAFT)
    windows = cut_windows(read_texts([TEXT]), tokenizer, 16, 160)
    shape = (len(windows), 15)

    def scored(logprob: float) -> ScoredSide:
        scores = TokenScores(np.full(shape, logprob), np.zeros(shape, dtype=np.bool_), np.full(shape, -1.0))
        return ScoredSide(scores, np.zeros(0), {})

    losses = losses_between(scored(-3.0), scored(-900.0), windows, tokenizer, ask(DRAFT))
    assert verdict_of(losses) is Verdict.NOT_ACCEPTABLE
