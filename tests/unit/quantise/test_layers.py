"""A layer in float32 is the layer that is served: of every family that can be quantised, against ``transformers``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratos.core.files.model_files import read_model_files
from stratos.engine.checkpoint.loader import CheckpointReader
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.quantise.layer import CPU, FloatLayer, mean_loss, read_layer, rows_in_bytes
from tests.support.reference.tiny_models import FAMILIES, reference_logprobs, save_tiny

IDS = [(i * 37 + 11) % 97 for i in range(41)]
SERVED = ["llama", "llama-3.1", "mistral-window", "qwen2-mixed-windows", "qwen3", "smollm3", "granite", "gemma2",
          "gemma3", "phi3", "olmo2", "olmo3"]  # fmt: skip


@pytest.mark.parametrize("family", SERVED)
@torch.inference_mode()
def test_layers_one_after_another_are_the_model(tmp_path: Path, family: str) -> None:
    prefix, changes = FAMILIES[family]
    model = save_tiny(tmp_path, prefix, **changes)
    files = read_model_files(tmp_path)
    config = parse_decoder_config(files.config)
    reader, ids = CheckpointReader(files, config, torch.float32, CPU), torch.tensor(IDS)
    hidden = reader.embedding()[ids] * config.options.embedding_scale
    for index in range(config.num_layers):
        hidden = FloatLayer(config, index, read_layer(reader, index), 64).run(hidden)
    output = reader.lm_head()
    head = reader.final_norm(), reader.embedding() if output is None else output
    expected = -reference_logprobs(model, IDS)[:-1].gather(1, ids[1:, None]).mean()
    assert mean_loss(config, head, [hidden], [ids]) == pytest.approx(float(expected), abs=2e-4)


@torch.inference_mode()
def test_rotations_are_those_of_the_context_that_is_served(tmp_path: Path) -> None:
    prefix, changes = FAMILIES["phi4-mini"]
    factors = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [4.0, 5.0, 9.0]}
    save_tiny(tmp_path, prefix, **{**changes, "rope_parameters": {**changes["rope_parameters"], **factors}})
    files = read_model_files(tmp_path)
    config = parse_decoder_config(files.config)
    weights = read_layer(CheckpointReader(files, config, torch.float32, CPU), 0)
    hidden = torch.randn(24, config.hidden_size, generator=torch.Generator().manual_seed(1))
    short, long = (FloatLayer(config, 0, weights, length).run(hidden) for length in (24, 64))
    assert torch.equal(short, long)


def test_rows_cut_to_bytes_are_off_by_half_a_step() -> None:
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    x[2] = 0
    cut = rows_in_bytes(x)
    steps = x.abs().amax(1, keepdim=True) / 127
    assert bool(((cut - x).abs() <= 0.501 * steps).all())
    assert not torch.equal(cut, x)
