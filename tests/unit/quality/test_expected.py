"""A model that says how good it is, is held to it before it serves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.settings import RunnerConfig
from stratos.quality.expected import EXPECTED_NAME, ExpectedQuality, check_expected, read_expected
from stratos.quality.scored_model import ScoredModel
from stratos.text.tokenizer import Tokenizer
from stratos.worker.engine_client.factory import make_engine
from stratos.worker.settings import WorkerSettings
from tests.support.paths import ROOT
from tests.support.worlds.plan_driver import load_runner

DRAFT = ROOT / "models/draft"
TEXT = (ROOT / "tests/fixtures/held_out/unit_tests.txt").read_text()[:6000]


@pytest.fixture(scope="module")
def perplexity() -> float:
    import numpy as np

    model = ScoredModel.load(RunnerConfig(model_path=DRAFT, dtype="float32", num_threads=1), 128)
    return float(np.exp(-model.score(ExpectedQuality.windows_of(TEXT, Tokenizer.load(DRAFT))).logprobs.mean()))


@pytest.fixture
def model(tmp_path: Path, perplexity: float) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(DRAFT, folder)
    write(folder, **ExpectedQuality.measured(TEXT, perplexity).as_json())
    return folder


def write(folder: Path, **content: Any) -> None:
    (folder / EXPECTED_NAME).write_text(json.dumps(content))


def damage(folder: Path) -> None:
    """Rows of a projection in the order of another layout: finite, well shaped, and wrong."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("up_proj.weight")]:
        tensors[name] = tensors[name].roll(1, 0).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def settings(folder: Path) -> WorkerSettings:
    runner = RunnerConfig(model_path=folder, num_threads=1, kv_pool_bytes=16 << 20)
    return WorkerSettings(runner=runner, device="cpu")


def test_a_sound_model_starts_and_its_runner_is_as_new(model: Path) -> None:
    make_engine(settings(model))
    runner = load_runner(model)
    check_expected(runner, model)
    assert len(runner.block_tables) == 0


def test_a_worker_refuses_a_model_that_is_worse_than_it_says(model: Path) -> None:
    damage(model)
    with pytest.raises(InvalidCheckpoint, match=r"is not as good as it says: perplexity .* at most .* is served"):
        make_engine(settings(model))
    (model / EXPECTED_NAME).unlink()
    make_engine(settings(model))


def test_a_context_that_is_too_short_is_not_checked(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(model)
    check_expected(load_runner(model, max_model_len=64), model)
    assert "is not checked, a context of 128 tokens is needed" in caplog.text


def test_streams_that_forget_are_not_checked(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(model)
    check_expected(load_runner(model, attention_window=16, attention_sinks=4), model)
    assert "is not checked, streams forget" in caplog.text


def test_a_model_that_is_not_even_finite_is_refused_by_name(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    for name in [name for name in tensors if name.endswith("up_proj.weight")]:
        tensors[name].fill_(3e38)  # finite, and sums of it are not
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidCheckpoint, match=rf"is not as good as it says \({EXPECTED_NAME}\): .*cannot be scored"):
        make_engine(settings(model))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": 7}, "text must be a text"),
        ({"text": "x" * (2 << 20)}, "text must be a text of at most"),
        ({"perplexity": None}, "must be numbers from 1 on"),
        ({"perplexity": 0.5}, "must be numbers from 1 on"),
        ({"perplexity": True}, "must be numbers from 1 on"),
        ({"max_perplexity": 1.5}, "must be numbers from 1 on"),
        ({"max_perplexity": "9"}, "must be numbers from 1 on"),
    ],
)
def test_a_senseless_record_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write(tmp_path, **{"text": "t", "perplexity": 2.0, "max_perplexity": 2.2, **changes})
    with pytest.raises(InvalidCheckpoint, match=message):
        read_expected(tmp_path)


def test_a_text_with_too_few_tokens_is_refused(model: Path) -> None:
    write(model, text="short", perplexity=2.0, max_perplexity=3.0)
    with pytest.raises(InvalidCheckpoint, match="1024 are needed"):
        check_expected(load_runner(model), model)
