"""Embedding models against ``transformers``: tiny random decoders, pooled as sentence-transformers would."""

from __future__ import annotations

import copy
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.settings import SchedulerConfig
from tests.support.reference.tiny_models import save_adapter, save_tiny
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.plan_driver import load_runner
from tests.support.worlds.terms import make_terms

LAST, MEAN = PoolingKind.LAST, PoolingKind.MEAN
INPUTS = [[(i * 37 + 11 * n) % 97 for i in range(n)] for n in (1, 2, 5, 17, 33, 64)]
TOLERANCE = 1e-5
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"num_attention_heads": 9, "num_key_value_heads": 3}),
    "qwen3-untied": ("Qwen3", {"tie_word_embeddings": False}),
    "qwen2-groups-of-7": ("Qwen2", {"num_attention_heads": 14, "num_key_value_heads": 2}),
    "llama": ("Llama", {}),
    "mistral-window": ("Mistral", {"sliding_window": 9}),
}


def save_body(folder: Path, prefix: str, changes: dict[str, Any]) -> Any:
    """An embedding model as published: no output layer, no ``model.`` before the names; returns the reference."""
    model = save_tiny(folder, prefix, **changes)
    tensors = load_file(folder / "model.safetensors")
    body = {name.removeprefix("model."): t for name, t in tensors.items() if name != "lm_head.weight"}
    save_file(body, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [f"{prefix}Model"]}))
    return model.model


@torch.no_grad()
def reference(body: Any, tokens: list[int], pooling: PoolingKind) -> torch.Tensor:
    states = body(torch.tensor([tokens])).last_hidden_state[0].float()
    return torch.nn.functional.normalize(states[-1] if pooling is LAST else states.mean(0), dim=0)


def embed(engine: EngineCore, inputs: list[list[int]], pooling: PoolingKind, adapter: str = "") -> list[torch.Tensor]:
    for index, tokens in enumerate(inputs):
        key = RequestKey(str(index), 0)
        terms = make_terms(adapter_digest=adapter)
        engine.add_embedding(EmbedRequest(key=key, token_ids=tuple(tokens), pooling=pooling, terms=terms))
    vectors: dict[str, torch.Tensor] = {}
    while engine.has_work:
        result = engine.step()
        assert not result.errors
        vectors |= {e.key.request_id: torch.tensor(array("f", e.values)) for e in result.embeddings}
    engine.verify()
    return [vectors[str(index)] for index in range(len(inputs))]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_vectors_equal_transformers_in_one_batch_of_mixed_lengths(tmp_path: Path, family: str) -> None:
    body = save_body(tmp_path, *FAMILIES[family])
    runner = load_runner(tmp_path)
    assert not runner.info.can_generate
    for pooling in (LAST, MEAN):
        seen = []
        for budget in (7, 1024):
            config = scheduler_config(max_num_batched_tokens=budget, prefix_cache=False)
            vectors = embed(EngineCore(runner, config), INPUTS, pooling)
            for vector, tokens in zip(vectors, INPUTS, strict=True):
                assert (vector - reference(body, tokens, pooling)).abs().max() < TOLERANCE
            seen.append([vector.numpy().tobytes() for vector in vectors])
        assert seen[0] == seen[1], "no bit tells how an input was cut into chunks"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_in_bfloat16_vectors_point_the_same_way(tmp_path: Path, family: str) -> None:
    body = save_body(tmp_path, *FAMILIES[family])
    rounded = copy.deepcopy(body).to(torch.bfloat16)
    for pooling in (LAST, MEAN):
        vectors = embed(EngineCore(load_runner(tmp_path, dtype="bfloat16"), SchedulerConfig()), INPUTS, pooling)
        for vector, tokens in zip(vectors, INPUTS, strict=True):
            exact, theirs = reference(body, tokens, pooling), reference(rounded, tokens, pooling)
            assert vector @ exact > 1 - 2 * (1 - theirs @ exact) - 1e-3, "as near to float32 as transformers is"


def test_a_cached_prefix_does_not_change_the_vector(tmp_path: Path) -> None:
    body = save_body(tmp_path, *FAMILIES["qwen3"])
    engine = EngineCore(load_runner(tmp_path), SchedulerConfig())
    embed(engine, [INPUTS[-1][:40]], LAST)
    (vector,) = embed(engine, [INPUTS[-1]], LAST)
    assert (vector - reference(body, INPUTS[-1], LAST)).abs().max() < TOLERANCE


def test_a_generating_model_embeds_too_and_adapters_apply(tmp_path: Path) -> None:
    from peft import PeftModel

    model = save_tiny(tmp_path / "base", "Llama")
    save_adapter(tmp_path / "a", model, rank=4, targets=["q_proj", "down_proj"], seed=1)
    runner = load_runner(tmp_path / "base")
    files = read_adapter_files(tmp_path / "a")
    runner.load_adapter(files)
    engine = EngineCore(runner, SchedulerConfig())
    (plain,) = embed(engine, [INPUTS[3]], LAST)
    assert (plain - reference(model.model, INPUTS[3], LAST)).abs().max() < TOLERANCE
    (adapted,) = embed(engine, [INPUTS[3]], LAST, files.digest)
    with_adapter = PeftModel.from_pretrained(model, tmp_path / "a").eval().base_model.model.model
    assert (adapted - reference(with_adapter, INPUTS[3], LAST)).abs().max() < TOLERANCE
    assert (adapted - plain).abs().max() > 0.01


def test_an_embedding_model_refuses_to_generate(tmp_path: Path) -> None:
    save_body(tmp_path, *FAMILIES["qwen3"])
    engine = EngineCore(load_runner(tmp_path), SchedulerConfig())
    with pytest.raises(BadRequest, match="only embeds"):
        engine.add(
            EngineRequest(
                key=RequestKey("r", 0),
                prompt_ids=(1,),
                choices=(ChoiceState(index=0),),
                sampling=SamplingParams(),
                seed=0,
            )
        )


def test_a_sentence_transformers_folder_needs_no_output_layer(tmp_path: Path) -> None:
    """Qwen3-Embedding-8B: untied, ``Qwen3ForCausalLM`` in config.json, and no ``lm_head``."""
    body = save_body(tmp_path, *FAMILIES["qwen3-untied"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForCausalLM"]}))
    with pytest.raises(InvalidCheckpoint, match="lacks tensor lm_head"):
        load_runner(tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    engine = EngineCore(load_runner(tmp_path), SchedulerConfig())
    (vector,) = embed(engine, [INPUTS[3]], LAST)
    assert (vector - reference(body, INPUTS[3], LAST)).abs().max() < TOLERANCE
