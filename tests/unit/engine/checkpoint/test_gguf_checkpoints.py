"""GGUF models: blocks widened as their own library does, families equal to ``transformers``, broken tensors named."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.block_types import BLOCK_TYPES, FLOAT_BLOCKS
from stratos.core.files.gguf.parts import read_gguf
from stratos.core.files.model_files import read_model_files
from stratos.engine.checkpoint.gguf.blocks import as_codes, as_floats
from stratos.engine.checkpoint.gguf.kept_codes import KEPT, kept_schemes
from stratos.engine.checkpoint.gguf.tensors import GgufTensor, gguf_tensors
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.runner.native_forward import NativeForward
from stratos.engine.sizing.need import read_need
from stratos.text.gguf.folder import write_model_folder
from tests.support.address_space import bounded_memory
from tests.support.examples import IS_THOROUGH
from tests.support.paths import FIXTURES
from tests.support.reference.exact_traces import alone
from tests.support.reference.gguf_files import LLAMA, Stored, byte_pair_vocabulary, gguf_bytes, llama_tensors, write
from tests.support.reference.gguf_models import random_blocks, save_gguf
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.tiny_models import LLAMA3_ROPE, UNTIED, YARN_ROPE, reference_logprobs
from tests.support.worlds.plan_driver import load_runner, teacher_forced

GOLDEN = load_file(FIXTURES / "quantised/gguf.safetensors")
PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
QUANTISED = sorted({block.name for block in BLOCK_TYPES.values()} - set(FLOAT_BLOCKS))
needs_kernels = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


def test_the_golden_blocks_are_of_every_type() -> None:
    assert sorted({name.partition(".")[0] for name in GOLDEN}) == QUANTISED


@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_are_widened_bit_by_bit_as_by_the_package_gguf(name: str) -> None:
    blocks, expected = GOLDEN[f"{name}.blocks"], GOLDEN[f"{name}.floats"]
    assert torch.equal(as_floats(name, blocks), expected)
    assert torch.equal(as_floats(name, blocks[1:2]), expected[1:2]), "one block lies elsewhere in memory"
    if name in KEPT:
        codes = as_codes(name, blocks.view(2, 3, -1))
        assert torch.equal(codes.floats(), expected.view(2, -1))


def test_products_whose_blocks_have_a_kernel_stay_codes() -> None:
    types = {f"blk.0.{part}.weight": "Q4_K" for part in ("attn_q", "attn_k", "ffn_gate", "ffn_down")}
    types |= {"blk.0.attn_v.weight": "Q6_K", "blk.0.ffn_up.weight": "Q5_1", "token_embd.weight": "Q8_0"}
    layer = types.keys() - {"blk.0.ffn_up.weight", "token_embd.weight"}
    assert kept_schemes(types).keys() == layer | {"token_embd.weight"}, "the embedding is the output layer, too"
    types["output.weight"] = "Q6_K"
    assert kept_schemes(types).keys() == layer | {"output.weight"}


MODELS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "llama-q8_0": ("Llama", {"": "Q8_0"}, UNTIED),
    "llama-q4_0": ("Llama", {"": "Q4_0", "output": "Q6_K"}, UNTIED),
    "llama-q4_k_m": (
        "Llama",
        {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q4_K"},
        {"rope_parameters": LLAMA3_ROPE},
    ),
    "llama-mixed": (
        "Llama",
        {"": "Q5_K", "attn_q": "Q4_0", "attn_v": "Q8_0", "ffn_gate": "Q5_0", "ffn_up": "Q5_1", "ffn_down": "Q4_1"},
        {"attention_bias": True, "num_key_value_heads": 4},
    ),
    "llama-f16": ("Llama", {"": "F16", "attn_output": "BF16", "ffn_down": "F32"}, {"mlp_bias": True}),
    "qwen2-q8_0": ("Qwen2", {"": "Q8_0"}, {"rope_parameters": YARN_ROPE}),
    "qwen3-q5_k": ("Qwen3", {"": "Q5_K", "attn_v": "Q6_K"}, UNTIED),
}


@needs_kernels
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_served_as_the_floats_that_its_blocks_stand_for(tmp_path: Path, name: str) -> None:
    prefix, kinds, changes = MODELS[name]
    model = save_gguf(tmp_path, kinds, prefix, **changes)
    runner = load_runner(tmp_path / "folder", dtype="float32")
    assert isinstance(runner.forward, NativeForward)
    expected = reference_logprobs(model, PROMPT)[[*range(6, len(PROMPT), 7), len(PROMPT) - 1]]
    assert float((teacher_forced(runner, PROMPT, 7) - expected).abs().max()) < 1e-3
    assert runner.info.quantization == ("" if name == "llama-f16" else f"gguf-{label(kinds)}")
    assert runner.info.quantization in runner.info.identity.numerics_id


def label(kinds: dict[str, str]) -> str:
    return "+".join(sorted({kind.lower() for kind in kinds.values()}))


@needs_kernels
@pytest.mark.parametrize("name", ["llama-q8_0", "llama-q4_0", "llama-q4_k_m", "llama-mixed"])
def test_blocks_that_fit_a_product_stay_codes(tmp_path: Path, name: str) -> None:
    prefix, kinds, changes = MODELS[name]
    save_gguf(tmp_path, kinds, prefix, **changes)
    codes, floats = (read_need(tmp_path / "folder", keeps_codes=keeps) for keeps in (True, False))
    assert codes.code_bytes > 0
    assert codes.stored_dtype == "bfloat16"
    assert codes.weight_bytes("bfloat16") < 0.8 * floats.weight_bytes("bfloat16")
    assert not floats.code_bytes
    runner = load_runner(tmp_path / "folder", dtype="bfloat16")
    assert runner.info.step_weight_bytes == codes.read_bytes("bfloat16")
    expected = alone(runner, PROMPT)
    assert all(alone(runner, PROMPT, chunk) == expected for chunk in (1, 16))
    assert "r2" in runner.info.identity.numerics_id
    for switches in ({"whole_step": False}, {"kept_codes": False}):
        other = load_runner(tmp_path / "folder", dtype="bfloat16", **switches)
        is_kept = "kept_codes" not in switches
        assert (other.info.identity == runner.info.identity) is is_kept
        assert alone(other, PROMPT, 16) == expected or not is_kept


def test_without_the_kernels_all_blocks_are_widened(tmp_path: Path) -> None:
    model = save_gguf(tmp_path, {"": "Q8_0"})
    runner = load_runner(tmp_path / "folder", dtype="float32", native_kernels=False)
    expected = reference_logprobs(model, PROMPT)[[*range(6, len(PROMPT), 7), len(PROMPT) - 1]]
    assert float((teacher_forced(runner, PROMPT, 7) - expected).abs().max()) < 1e-3
    assert "native-quantised" not in runner.info.identity.numerics_id


def test_a_quantised_file_is_not_quantised_again(tmp_path: Path) -> None:
    save_gguf(tmp_path, {"": "Q4_K"})
    with pytest.raises(InvalidCheckpoint, match="the checkpoint stores gguf-q4_k: set it to auto"):
        load_runner(tmp_path / "folder", quantization="int8")


def test_large_tensors_are_widened_in_pieces_and_in_the_right_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratos.engine.checkpoint.gguf.tensors.CHUNK_ELEMENTS", 700)
    model = save_gguf(tmp_path, {"": "Q4_K"})
    files = read_model_files(tmp_path / "folder")
    tensors = gguf_tensors(files, parse_decoder_config(files.config))
    for name, parameter in model.named_parameters():
        assert torch.equal(tensors[name].whole(), parameter), name


def folder_of(tmp_path: Path, tensors: dict[str, Stored], **keys: Any) -> Path:
    metadata = {**LLAMA, **byte_pair_vocabulary(), **{name.replace("__", "."): item for name, item in keys.items()}}
    return write_model_folder(write(tmp_path / "x.gguf", gguf_bytes(metadata, tensors)), tmp_path / "folder")


def halves(value: float) -> Callable[[Stored], Stored]:
    """Puts a float16 at the beginning of the second block."""

    def change(tensor: Stored) -> Stored:
        content = bytearray(tensor.content)
        content[34:36] = torch.tensor([value]).half().view(torch.uint8).numpy().tobytes()
        return replace(tensor, content=bytes(content))

    return change


@needs_kernels
@pytest.mark.parametrize(
    ("kind", "at", "value"), [("Q4_K", 0, float("nan")), ("Q4_K", 0, -0.5), ("Q5_K", 2, -0.5), ("Q6_K", 208, torch.inf)]
)
def test_a_super_block_whose_scale_cannot_be_is_refused(tmp_path: Path, kind: str, at: int, value: float) -> None:
    save_gguf(tmp_path, {"": kind})
    content = bytearray((tmp_path / "model.gguf").read_bytes())
    model = read_gguf(tmp_path / "model.gguf")
    begin = model.tensors["blk.1.ffn_down.weight"].begin + at
    content[begin : begin + 2] = torch.tensor([value]).half().view(torch.uint8).numpy().tobytes()
    write(tmp_path / "model.gguf", bytes(content))
    with pytest.raises(InvalidCheckpoint, match=r"tensor blk\.1\.ffn_down\.weight holds a scale that cannot be"):
        load_runner(tmp_path / "folder", dtype="bfloat16")


NAME = "blk.0.attn_q.weight"
BROKEN: list[tuple[str, Callable[[Stored], Stored | None], str]] = [
    (NAME, halves(float("nan")), r"tensor blk\.0\.attn_q\.weight holds a scale that cannot be"),
    (NAME, halves(float("-inf")), "holds a scale that cannot be"),
    (NAME, halves(-0.5), "holds a scale that cannot be"),
    (NAME, lambda tensor: replace(tensor, shape=(32, 128)), r"q_proj\.weight has shape \[32, 128\]"),
    (NAME, lambda tensor: None, r"lacks tensor model\.layers\.0\.self_attn\.q_proj\.weight"),
    ("token_embd.weight", lambda tensor: replace(tensor, content=b"\x00\x7c" * (264 * 64)), "holds NaN or infinity"),
]


@needs_kernels
@pytest.mark.parametrize(("name", "change", "message"), BROKEN)
def test_a_broken_tensor_is_refused_by_its_name(
    tmp_path: Path, name: str, change: Callable[[Stored], Stored | None], message: str
) -> None:
    tensors = llama_tensors(264)
    changed = change(tensors.pop(name))
    folder = folder_of(tmp_path, tensors if changed is None else {**tensors, name: changed})
    with pytest.raises(InvalidCheckpoint, match=message):
        load_runner(folder, dtype="float32")


def test_keys_that_contradict_the_tensors_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, llama_tensors(264), llama__block_count=2)
    with pytest.raises(InvalidCheckpoint, match=r"lacks tensor model\.layers\.1"):
        load_runner(folder)


def test_a_tensor_that_means_nothing_here_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {**llama_tensors(264), "blk.0.ssm_a": llama_tensors(264)["output_norm.weight"]})
    with pytest.raises(InvalidCheckpoint, match=r"holds tensor 'blk\.0\.ssm_a'"):
        load_runner(folder)


def test_two_names_of_one_tensor_are_refused(tmp_path: Path) -> None:
    tensors = llama_tensors(264)
    folder = folder_of(tmp_path, {**tensors, "model.layers.0.self_attn.q_proj.weight": tensors[NAME]})
    with pytest.raises(InvalidCheckpoint, match=r"tensors blk\.0\.attn_q\.weight and model\.layers\.0.* are one"):
        load_runner(folder)


def test_a_file_that_was_exchanged_for_one_of_other_types_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, llama_tensors(264))
    other = gguf_bytes({**LLAMA, **byte_pair_vocabulary()}, llama_tensors(264, "Q4_0"))
    write(tmp_path / "x.gguf", other)
    with pytest.raises(InvalidCheckpoint, match="has type Q4_0; supported: F32, F16, BF16"):
        load_runner(folder)


def test_a_folder_with_two_models_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, llama_tensors(264))
    (folder / "other.gguf").symlink_to(tmp_path / "x.gguf")
    with pytest.raises(InvalidCheckpoint, match=r"holds other\.gguf beside the model of model\.gguf"):
        load_runner(folder)


@pytest.mark.parametrize("kind", QUANTISED)
def test_random_bytes_of_blocks_are_floats_or_refused(tmp_path: Path, kind: str) -> None:
    source = random.Random(kind)
    blocks = random_blocks(kind, 64, 256, torch.Generator().manual_seed(0))
    content = bytearray(blocks.numpy().tobytes())
    path, kept = tmp_path / "x.gguf", 0
    for _ in range(1000 if IS_THOROUGH else 30):
        for _ in range(8):
            content[source.randrange(len(content))] = source.randrange(256)
        write(path, gguf_bytes({"general.architecture": "llama"}, {NAME: Stored((64, 256), kind, bytes(content))}))
        model = read_gguf(path)
        info = model.tensors[NAME]
        tensor = GgufTensor(
            handle=torch.from_file(str(path), shared=False, size=model.files[0].size, dtype=torch.uint8),
            file_name=path.name,
            name=NAME,
            shape=info.shape,
            dtype=kind,
            info=info,
        )
        try:
            with bounded_memory():
                assert bool(torch.isfinite(tensor.floats(torch.bfloat16)).all())
            kept += 1
        except InvalidCheckpoint as error:
            assert NAME in str(error)  # noqa: PT017 - both ends are right
            content = bytearray(blocks.numpy().tobytes())
    assert kept > 0
