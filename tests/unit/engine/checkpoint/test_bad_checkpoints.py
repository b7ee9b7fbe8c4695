"""Damaged and hostile model and adapter folders: one clear error that names the culprit, no crash, no big allocation.

Folders are made once; every example writes one changed file, tries to load, and puts the file back.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from stratos.common.errors import InvalidAdapter, InvalidCheckpoint
from stratos.core.files.adapter_files import read_adapter_files
from stratos.engine.checkpoint.model_config import MAX_LAYERS
from tests.support.address_space import bounded_memory
from tests.support.examples import examples
from tests.support.reference.tiny_models import FAMILIES, LLAMA3_ROPE, YARN_ROPE, save_adapter, save_tiny
from tests.support.worlds.plan_driver import Driver, Stream, load_runner, teacher_forced

INDEX = "model.safetensors.index.json"
HUGE = 10**30
ABSURD: list[Any] = [
    *(0, -1, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**62, HUGE, 0.0, 1e-320, 1e-31, 1e-29, 1e29, 1e308, math.inf, math.nan),
    *(None, True, False, "", "48", "x" * 10_000, [], [1], [None], [[]], {}, {"a": {}}, [0] * 1000),
]


def fuzz(num_examples: int) -> settings:
    health = list(HealthCheck)
    return settings(max_examples=examples(num_examples), deadline=None, derandomize=True, suppress_health_check=health)


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(original)


def refusal_of(load: Callable[[], Any]) -> tuple[Any, str]:
    """What was loaded, or why it was refused."""
    try:
        with bounded_memory():
            return load(), ""
    except (InvalidCheckpoint, InvalidAdapter) as error:
        return None, error.message


def load(folder: Path) -> str:
    """Load, and run a step if that succeeds; returns the refusal."""
    runner, refusal = refusal_of(lambda: load_runner(folder, exact=False, kv_pool_bytes=64 << 10))
    assert len(refusal) < 2000, "a message does not repeat the file"
    if runner is not None:
        stream = Stream(0, [1, 2, 3], [0])
        with bounded_memory():
            tokens = Driver(runner).step([(stream, stream.row(3))])
        assert len(tokens.tokens) + len(tokens.errors) == 1
    return refusal


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {}
    for name in ("llama", "qwen2-mixed-windows", "qwen3-moe-mixed"):
        prefix, changes = FAMILIES[name]
        save_tiny(root / name, prefix, **changes)
        made[name] = root / name
    prefix, changes = FAMILIES["mixtral"]
    save_tiny(root / "shards", prefix, max_shard_size="30KB", **changes)
    return {**made, "shards": root / "shards"}


def damaged(draw: Any, content: bytes) -> bytes:
    """Cut off, with bits flipped (half of them where a header is), or with a piece repeated."""
    kind = draw(st.sampled_from(["cut", "flip", "repeat", "grow"]))
    place = draw(st.one_of(st.integers(0, min(4096, len(content) - 1)), st.integers(0, len(content) - 1)))
    if kind == "cut":
        return content[:place]
    if kind == "grow":
        return content + bytes(place + 1)
    if kind == "repeat":
        return content[:place] + content[place // 2 : place] + content[place:]
    flipped = bytearray(content)
    for offset in draw(st.lists(st.integers(0, 200), min_size=1, max_size=4)):
        flipped[(place + offset) % len(content)] ^= 1 << draw(st.integers(0, 7))
    return bytes(flipped)


@fuzz(150)
@given(data=st.data())
def test_damaged_bytes_end_in_one_error_that_names_the_file(folders: dict[str, Path], data: Any) -> None:
    folder = folders[data.draw(st.sampled_from(["llama", "shards"]))]
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    with changed(path, damaged(data.draw, path.read_bytes())):
        message = load(folder)
    names = [path.name, "tensor", "eos_token_id", *(["lacks"] if path.name == INDEX else [])]
    assert not message or any(name in message for name in names), message


COUNTS = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim"
FIELDS = {
    "llama": f"{COUNTS} max_position_embeddings rms_norm_eps rope_parameters rope_theta rope_scaling attention_bias "
    "mlp_bias tie_word_embeddings architectures model_type hidden_act eos_token_id quantization_config",
    "qwen2-mixed-windows": f"{COUNTS} sliding_window use_sliding_window max_window_layers layer_types",
    "qwen3-moe-mixed": f"{COUNTS} num_experts num_local_experts num_experts_per_tok moe_intermediate_size "
    "mlp_only_layers decoder_sparse_step norm_topk_prob",
}


@fuzz(200)
@given(data=st.data())
def test_absurd_fields_end_in_one_error(folders: dict[str, Path], data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(FIELDS)))
    folder, fields = folders[name], FIELDS[name].split()
    config = json.loads((folder / "config.json").read_text())
    for field in data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=2, unique=True)):
        config[field] = data.draw(st.sampled_from(ABSURD))
    (folder / "generation_config.json").unlink(missing_ok=True)
    with changed(folder / "config.json", json.dumps(config).encode()):
        load(folder)


@fuzz(150)
@example(kind="llama3", field="factor", value=1e-320)
@example(kind="linear", field="factor", value=0)
@given(
    kind=st.sampled_from(["llama3", "yarn", "linear", "default"]),
    field=st.sampled_from([*LLAMA3_ROPE, "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"]),
    value=st.sampled_from(ABSURD),
)
def test_absurd_rotary_settings_end_in_one_error(folders: dict[str, Path], kind: str, field: str, value: Any) -> None:
    path = folders["llama"] / "config.json"
    rope = {**LLAMA3_ROPE, **YARN_ROPE, "rope_type": kind, field: value}
    with changed(path, json.dumps({**json.loads(path.read_text()), "rope_parameters": rope}).encode()):
        message = load(folders["llama"])
    assert not message or "config.json" in message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_attention_heads", 0, "num_attention_heads must be a positive integer, not 0"),
        ("head_dim", 7, "even head_dim, not 7"),
        ("vocab_size", 98, r"model.safetensors: tensor model.embed_tokens.weight has shape \[97, 48\], .* \[98, 48\]"),
        ("vocab_size", HUGE, "vocab_size must be a positive integer"),
        ("num_hidden_layers", 10**9, f"num_hidden_layers must be at most {MAX_LAYERS}"),
        ("num_hidden_layers", MAX_LAYERS, "lacks tensor model.layers.2.input_layernorm.weight"),
        ("max_position_embeddings", 2**31 - 1, "max_position_embeddings must be at most"),
        ("rope_parameters", {"rope_type": "linear", "factor": 0}, "factor must be a positive number"),
        (
            "rope_parameters",
            {"rope_theta": 1e-30, "rope_type": "linear", "factor": 1e-30},
            "angles that are not finite",
        ),
        ("rope_parameters", {**LLAMA3_ROPE, "high_freq_factor": 1.0}, "high_freq_factor must be above"),
        ("eos_token_id", [0, 97], "eos_token_id must be token ids below 97"),
    ],
)
def test_the_field_or_tensor_is_named(folders: dict[str, Path], field: str, value: Any, message: str) -> None:
    path = folders["llama"] / "config.json"
    (folders["llama"] / "generation_config.json").unlink(missing_ok=True)
    with (
        changed(path, json.dumps({**json.loads(path.read_text()), field: value}).encode()),
        pytest.raises(InvalidCheckpoint, match=message),
        bounded_memory(),
    ):
        load_runner(folders["llama"])


def test_a_claim_of_two_billion_experts_costs_nothing(folders: dict[str, Path]) -> None:
    path = folders["qwen3-moe-mixed"] / "config.json"
    config = {**json.loads(path.read_text()), "num_experts": 2**31 - 1, "num_local_experts": 2**31 - 1}
    with changed(path, json.dumps(config).encode()):
        assert "tensor model.layers.1.mlp.gate.weight has shape [5, 48]" in load(path.parent)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("llama", "model.layers.0.self_attn.k_proj.bias"),
        ("llama", "model.norm.weight"),
        ("qwen3-moe-mixed", "model.layers.1.mlp.experts.3.down_proj.weight"),
    ],
)
def test_a_weight_that_is_not_finite_is_named(folders: dict[str, Path], model: str, name: str, value: float) -> None:
    path = folders[model] / "model.safetensors"
    tensors, original = {n: t.clone() for n, t in load_file(path).items()}, path.read_bytes()
    tensors[name].view(-1)[tensors[name].numel() // 3] = value
    with changed(path, original):
        save_file(tensors, path)
        assert load(folders[model]) == f"model.safetensors: tensor {name} holds NaN or infinity"


def test_what_is_loaded_does_not_change_with_its_files(tmp_path: Path) -> None:
    """Readers map files into memory: overwritten in place they would change a running model, cut off kill it."""
    model = save_tiny(tmp_path / "base", "Qwen2", tie_word_embeddings=False)
    save_adapter(tmp_path / "adapter", model, rank=3, targets=["q_proj", "o_proj"], seed=0)
    runner = load_runner(tmp_path / "base", prepacked_gemm=False)
    files = read_adapter_files(tmp_path / "adapter")
    runner.load_adapter(files)
    before = [teacher_forced(runner, [1, 2, 3, 4], 4, adapter) for adapter in ("", files.digest)]
    for path in tmp_path.rglob("*.safetensors"):
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.truncate(0)
    runner.load_adapter(files)
    after = [teacher_forced(runner, [1, 2, 3, 4], 4, adapter) for adapter in ("", files.digest)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_look_for_numbers_that_are_not_finite_misses_no_place(dtype: torch.dtype) -> None:
    """The reader relies on NaN going through ``aminmax`` from every lane of its vectorised loop."""
    for place in range(0, 4099, 17):
        tensor = torch.zeros(4099, dtype=dtype)
        tensor[place] = math.nan
        assert torch.stack(torch.aminmax(tensor)).isnan().any()


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({}, "has no weight_map"),
        ([], "has no weight_map"),
        ({"a": 5}, "5, for tensor 'a', is not the name of a file"),
        ({"a": ["x"]}, "is not the name of a file"),
        ({"a": "../llama/model.safetensors"}, "lacks '../llama/model.safetensors'"),
        ({"a": "/etc/passwd"}, "lacks '/etc/passwd'"),
        ({"a": INDEX}, f"lacks '{INDEX}'"),
        ({"a": "."}, "lacks '.'"),
        ({"a": "x" * 10_000}, "lacks 'xxx"),
    ],
)
def test_an_index_leads_nowhere_else(folders: dict[str, Path], weight_map: Any, message: str) -> None:
    folder = folders["shards"]
    with changed(folder / INDEX, json.dumps({"weight_map": weight_map}).encode()):
        assert message in load(folder)


def test_a_tensor_in_two_shards_and_a_shard_that_is_no_file_are_named(folders: dict[str, Path]) -> None:
    folder = folders["shards"]
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    tensors, original = load_file(second), second.read_bytes()
    name = next(iter(load_file(first)))
    with changed(second, original):
        save_file({**tensors, name: torch.zeros(3)}, second)
        assert load(folder).startswith(f"tensor '{name}' is in both {first.name} and {second.name}")
    pipe = folder / "pipe.safetensors"
    os.mkfifo(pipe)
    try:
        assert load(folder) == f"{pipe} is not a file"
    finally:
        pipe.unlink()


# -- adapters ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A runner and an adapter for it."""
    root = tmp_path_factory.mktemp("adapted")
    model = save_tiny(root / "base")
    save_adapter(root / "adapter", model, rank=3, targets=["q_proj", "down_proj"], seed=0)
    return load_runner(root / "base", exact=False, host_adapter_bytes=0), root / "adapter"


def load_adapter(runner: Any, folder: Path) -> str:
    files, refusal = refusal_of(lambda: read_adapter_files(folder))
    if files is not None:
        _, refusal = refusal_of(lambda: runner.load_adapter(files))
    assert len(refusal) < 2000
    return refusal


@fuzz(150)
@given(data=st.data())
def test_damaged_adapters_end_in_one_error_that_names_the_file(adapted: tuple[Any, Path], data: Any) -> None:
    runner, folder = adapted
    path = folder / data.draw(st.sampled_from(["adapter_model.safetensors", "adapter_config.json"]))
    with changed(path, damaged(data.draw, path.read_bytes())):
        message = load_adapter(runner, folder)
    assert not message or "adapter" in message


@fuzz(150)
@given(data=st.data())
def test_absurd_fields_of_an_adapter_end_in_one_error(adapted: tuple[Any, Path], data: Any) -> None:
    runner, folder = adapted
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    fields = [
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "bias",
        "modules_to_save",
        "peft_type",
        "init_lora_weights",
    ]
    for field in data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=2, unique=True)):
        value = data.draw(st.sampled_from(ABSURD))
        config[field] = {"q_proj": value} if "pattern" in field and data.draw(st.booleans()) else value
    with changed(path, json.dumps(config).encode()):
        load_adapter(runner, folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t, n: t.pop(n), "only one of A and B"),
        (lambda t, n: t.update({n: t[n].to(torch.int32)}), "malformed or unsupported entry"),
        (lambda t, n: t.update({n: torch.zeros(3, 49)}), "has shape [3, 49], the model needs [3, 48]"),
        (lambda t, n: t.update({n: torch.zeros(4, 48)}), "does not have rank 3"),
        (lambda t, n: t.update({n: t[n] * math.nan}), "holds NaN or infinity"),
        (lambda t, n: t.update({n.replace("layers.0", "layers.7"): t.pop(n)}), "only one of A and B"),
        (lambda t, n: t.update({n.replace("layers.0", "layers.../../0"): t.pop(n)}), "unsupported tensor"),
    ],
)
def test_a_wrong_tensor_of_an_adapter_is_named(adapted: tuple[Any, Path], edit: Any, message: str) -> None:
    runner, folder = adapted
    path = folder / "adapter_model.safetensors"
    tensors, original = load_file(path), path.read_bytes()
    edit(tensors, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
    with changed(path, original):
        save_file(tensors, path)
        refusal = load_adapter(runner, folder)
    assert message in refusal
    assert "q_proj" in refusal
