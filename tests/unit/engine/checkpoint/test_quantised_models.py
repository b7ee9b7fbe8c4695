"""What a quantised model does besides decoding: adapters on top, embeddings, log probabilities of the prompt."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.records import RequestKey
from stratos.engine.checkpoint.quantisation_config import parse_quantisation
from tests.support.pairwise import thinned
from tests.support.reference.gguf_models import SHAPE, save_gguf
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.quantised_models import CONFIGS, CUTS_ACTIVATIONS, save_floats, save_quantised, shape_of
from tests.support.reference.tiny_models import save_adapter, save_tiny
from tests.support.worlds.core_driver import make_core, make_request
from tests.support.worlds.plan_driver import FULL, Driver, load_runner
from tests.support.worlds.terms import make_terms

pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")
PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
GGUF = {"Q8_0": {"": "Q8_0"}, "Q4_K": {"": "Q4_K", "attn_v": "Q6_K"}}
ORDINARY = ("compressed-mixed", "compressed-nvfp4", "gptq-order", "awq", "fp8-block", "Q4_K")
"""Those whose codes are not what a float model has at load, where adapters are tested as well."""


@pytest.mark.parametrize("name", thinned(((name,) for name in (*CONFIGS, *GGUF)), ((name,) for name in ORDINARY)))
def test_an_adapter_applies_on_top(tmp_path: Path, name: str) -> None:
    model = save_tiny(tmp_path / "tiny", **(SHAPE if name in GGUF else shape_of(name)))
    save_adapter(tmp_path / "adapter", model, rank=3, targets=["q_proj", "down_proj"], seed=1)
    codes, floats = save_both(tmp_path, name)
    (plain, adapted), (plain_codes, adapted_codes) = (scores(path, tmp_path / "adapter") for path in (floats, codes))
    assert float((adapted - plain).abs().max()) > 0.1
    limit = 0.6 if name in CUTS_ACTIVATIONS else 1e-3
    assert float((plain_codes - plain).abs().max()) < limit
    assert float((adapted_codes - adapted).abs().max()) < limit


def save_both(path: Path, name: str) -> tuple[Path, Path]:
    """Folders of a model in codes and of the floats that these stand for."""
    if name in GGUF:
        save_gguf(path, GGUF[name]).save_pretrained(path / "widened")
        return path / "folder", path / "widened"
    save_floats(path / "floats", save_quantised(path / "codes", name), name)
    return path / "codes", path / "floats"


def scores(folder: Path, adapter: Path) -> list[Tensor]:
    """Log probabilities behind the prompt, without the adapter and with it."""
    runner, files = load_runner(folder, dtype="float32"), read_adapter_files(adapter)
    runner.load_adapter(files)
    driver = Driver(runner)
    streams = [driver.stream(PROMPT, adapter=digest, params=FULL) for digest in ("", files.digest)]
    driver.generate(streams, 1)
    tops = [{token.token_id: token.logprob for token in stream.sampled[0].logprobs.top} for stream in streams]
    return [torch.tensor([top[token] for token in range(97)]) for top in tops]


def test_groups_of_128_inputs_are_served_as_their_floats(tmp_path: Path) -> None:
    codes, floats = save_both(tmp_path, "compressed-int4-g128")
    model = save_tiny(tmp_path / "tiny", **shape_of("compressed-int4-g128"))
    save_adapter(tmp_path / "adapter", model, rank=3, targets=["q_proj", "down_proj"], seed=1)
    pairs = zip(scores(codes, tmp_path / "adapter"), scores(floats, tmp_path / "adapter"), strict=True)
    assert all(float((ours - expected).abs().max()) < 1e-3 for ours, expected in pairs)


@pytest.mark.parametrize("name", ["compressed-w8a8", "compressed-int4"])
def test_embeddings_and_scores_of_a_prompt_are_those_of_the_floats(tmp_path: Path, name: str) -> None:
    codes, floats = (embedded_and_scored(path) for path in save_both(tmp_path, name))
    vector_limit, score_limit = (0.1, 0.6) if name in CUTS_ACTIVATIONS else (1e-4, 1e-3)
    for ours, expected in zip(codes[:2], floats[:2], strict=True):
        assert float((ours - expected).norm()) < vector_limit
    assert len(codes[2]) == len(PROMPT) - 1
    assert float((codes[2] - floats[2]).abs().max()) < score_limit


def embedded_and_scored(folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors by both kinds of pooling, and the log probability of each token of the prompt."""
    core = make_core(folder, max_num_batched_tokens=16)
    for pooling in (PoolingKind.LAST, PoolingKind.MEAN):
        key = RequestKey(pooling.name, 0)
        core.add_embedding(EmbedRequest(key=key, token_ids=tuple(PROMPT), pooling=pooling, terms=make_terms()))
    core.add(make_request(PROMPT, "r", num_prompt_logprobs=1, max_tokens=1))
    vectors: dict[str, Tensor] = {}
    entries: list[Any] = []
    while core.has_work:
        result = core.step()
        assert not result.errors
        vectors |= {e.key.request_id: torch.tensor(array("f", e.values)) for e in result.embeddings}
        entries += [entry for found in result.prompt_logprobs.values() for entry in found]
    return vectors["LAST"], vectors["MEAN"], torch.tensor([entry.sampled.logprob for entry in entries])


def test_a_pattern_wins_over_all_linear_layers_and_a_name_over_patterns() -> None:
    groups = dict(CONFIGS["compressed-mixed"]["config_groups"])
    groups["group_2"] = {**groups["group_0"], "targets": ["model.layers.1.self_attn.v_proj"]}
    config = parse_quantisation({"quantization_config": {**CONFIGS["compressed-mixed"], "config_groups": groups}})
    assert config is not None
    parts = (
        "layers.1.mlp.up_proj",
        "layers.0.self_attn.v_proj",
        "layers.1.self_attn.v_proj",
        "layers.1.self_attn.o_proj",
    )
    stored = [config.scheme_of(f"model.{part}") for part in parts]
    assert [s and s.scheme.label for s in stored] == ["int4", "int8-rows", "int4", None]
    assert config.label == "int4+int8-rows"
