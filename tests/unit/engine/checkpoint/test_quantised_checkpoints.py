"""Quantised checkpoints: unpacked as their own library does, served as the floats they stand for, broken ones named."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.files.safetensors_header import ALL_BYTES, read_safetensors_header
from stratos.engine.checkpoint.quantisation_config import parse_quantisation
from stratos.engine.checkpoint.quantised_tensors import layer_tensors
from stratos.engine.checkpoint.rounding import rounded
from stratos.engine.checkpoint.stored_tensors import StoredTensor
from stratos.engine.checkpoint.weight_schemes import rounds_head
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.quantised_linear import QuantisedLinear
from stratos.engine.runner.native_forward import NativeForward
from tests.support.pairwise import thinned
from tests.support.paths import FIXTURES
from tests.support.reference.exact_traces import alone, generated
from tests.support.reference.native_kernels import NATIVE_SETS, native_library
from tests.support.reference.quantised_models import (
    CONFIGS,
    CUTS_ACTIVATIONS,
    MIXTURE,
    save_floats,
    save_quantised,
    shape_of,
)
from tests.support.reference.tiny_models import save_adapter, save_tiny
from tests.support.worlds.plan_driver import FULL, Driver, load_runner, teacher_forced

GOLDEN = FIXTURES / "quantised/compressed.safetensors"
PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
EXPERTS = ("compressed-w8a8", "compressed-nvfp4", "gptq-order", "awq", "fp8-block", "nf4", "llm-int8")
"""Formats whose experts are tested in every run, those of others in the thorough one."""
needs_kernels = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


def golden_cases() -> dict[str, Any]:
    with safe_open(GOLDEN, framework="pt") as file:
        cases: dict[str, Any] = json.loads(file.metadata()["schemes"])
    return cases


@pytest.mark.parametrize("case", golden_cases())
def test_a_layer_is_unpacked_bit_by_bit_as_compressed_tensors_does(case: str) -> None:
    stated = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {**golden_cases()[case], "targets": ["Linear"]}},
    }
    config = parse_quantisation({"quantization_config": stated})
    assert config is not None
    stored = config.scheme_of(case)
    assert stored is not None
    tensors = stored_in(GOLDEN)
    floats = tensors[f"{case}.floats"].whole()
    assert torch.equal(layer_tensors(case, tuple(floats.shape), stored, tensors).read().floats(), floats)


def stored_in(path: Path) -> dict[str, StoredTensor]:
    handle = safe_open(path, framework="pt")
    return {
        name: StoredTensor(
            handle=handle, file_name=path.name, name=name, shape=tuple(entry["shape"]), dtype=entry["dtype"]
        )
        for name, entry in read_safetensors_header(path, InvalidCheckpoint, ALL_BYTES).items()
    }


@pytest.mark.parametrize("case", ["nf4", "nf4-double", "llm-int8"])
def test_a_layer_is_unpacked_and_rounded_bit_by_bit_as_bitsandbytes_does(case: str) -> None:
    config = parse_quantisation({"quantization_config": CONFIGS[case]})
    assert config is not None
    stored, tensors = config.scheme_of(case), stored_in(GOLDEN.with_name("bitsandbytes.safetensors"))
    assert stored is not None
    floats = tensors[f"{case}.floats"].whole()
    weight = layer_tensors(case, tuple(floats.shape), stored, tensors).read()
    assert torch.equal(weight.floats(), floats)
    made = rounded(tensors["source"].whole(), case.removesuffix("-double"))
    assert torch.equal(made.codes, weight.codes)
    if case != "nf4-double":  # at load scales stay floats
        assert torch.equal(made.floats(), floats)


@needs_kernels
@pytest.mark.parametrize(
    ("file_name", "case", "tolerance"),
    [
        ("bitsandbytes", "nf4", 0),
        ("bitsandbytes", "nf4-double", 0),
        ("bitsandbytes", "llm-int8", 3e-7),
        ("compressed", "nvfp4", 3e-7),
    ],
)
def test_products_of_unit_rows_are_the_librarys_floats(file_name: str, case: str, tolerance: float) -> None:
    stated = {**CONFIGS, "nvfp4": CONFIGS["compressed-nvfp4"]}[case]
    config = parse_quantisation({"quantization_config": stated})
    assert config is not None
    stored, tensors = config.scheme_of(case), stored_in(GOLDEN.with_name(f"{file_name}.safetensors"))
    assert stored is not None
    floats = tensors[f"{case}.floats"].whole()
    weight = layer_tensors(case, tuple(floats.shape), stored, tensors).read()
    library = native_library(NATIVE_SETS[0])
    factory = LinearFactory(torch.device("cpu"), torch.float32, enable_prepacked_gemm=False, library=library)
    got = factory.to_float32(weight)(8 * torch.eye(floats.shape[1])).T / 8  # 8 is an outlier of LLM.int8
    assert torch.allclose(got, floats, rtol=tolerance, atol=0)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "family"),
    thinned(
        itertools.product(CONFIGS, ("Llama", "Qwen3Moe")),
        [*((name, "Llama") for name in CONFIGS), *((name, "Qwen3Moe") for name in EXPERTS)],
    ),
)
def test_a_format_is_served_as_the_floats_it_stands_for(tmp_path: Path, name: str, family: str) -> None:
    changes = MIXTURE if family == "Qwen3Moe" else {}
    floats = save_quantised(tmp_path / "codes", name, family, **changes)
    save_floats(tmp_path / "floats", floats, name, family, **changes)
    assert family == "Llama" or any("experts" in layer for layer in floats)
    runner = load_runner(tmp_path / "codes", dtype="float32")
    assert isinstance(runner.forward, NativeForward) is not name.endswith("-order")
    expected = teacher_forced(load_runner(tmp_path / "floats", dtype="float32"), PROMPT, 7)
    error = float((teacher_forced(runner, PROMPT, 7) - expected).abs().max())
    assert error < (0.6 if name in CUTS_ACTIVATIONS else 1e-4)  # W8A8 cuts activations, too
    assert runner.info.quantization
    assert runner.info.quantization in runner.info.identity.numerics_id


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        "compressed-w8a8",
        "compressed-int4",
        "compressed-mxfp4",
        "awq",
        "fp8-block",
        "gptq-order",
        "nf4-double",
        "llm-int8",
        "compressed-nvfp4",
    ],
)
def test_its_bits_depend_on_nothing_around_them(tmp_path: Path, name: str, dtype: str) -> None:
    save_quantised(tmp_path, name)
    runner = load_runner(tmp_path, dtype=dtype)
    expected = alone(runner, PROMPT)
    assert all(alone(runner, PROMPT, chunk) == expected for chunk in (1, 16))
    driver = Driver(runner)
    streams = [driver.stream(PROMPT[3 : 4 + 5 * index]) for index in range(4)]
    assert generated(driver, [*streams, driver.stream(PROMPT, params=FULL)], 5)[-1] == expected
    layered = load_runner(tmp_path, dtype=dtype, whole_step=False, kept_codes=False)
    assert alone(layered, PROMPT) == expected
    assert layered.info.identity == runner.info.identity, "the switch widens blocks and experts alone"


@needs_kernels
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "nf4", "llm-int8", "int8+head", "int4+head"])
def test_float_weights_are_quantised_at_load_and_adapters_apply_on_top(tmp_path: Path, kind: str) -> None:
    model = save_tiny(tmp_path / "model", **shape_of(kind))
    save_adapter(tmp_path / "adapter", model, rank=3, targets=["q_proj", "down_proj"], seed=1)
    files = read_adapter_files(tmp_path / "adapter")
    save_rounded(tmp_path / "rounded", kind)
    floats = load_runner(tmp_path / "rounded", dtype="float32")
    codes = load_runner(tmp_path / "model", quantization=kind, dtype="float32")
    assert floats.info.identity.numerics_id != codes.info.identity.numerics_id
    assert isinstance(codes.decoder.lm_head, QuantisedLinear) is rounds_head(kind)
    assert codes.info.step_weight_bytes < 0.5 * floats.info.step_weight_bytes
    switched = load_runner(tmp_path / "model", quantization=kind, dtype="float32", kept_codes=False)
    assert switched.info.identity == codes.info.identity, "the switch widens no such codes"
    results = []
    for runner in (floats, codes):
        runner.load_adapter(files)
        driver = Driver(runner)
        streams = [driver.stream(PROMPT, adapter=digest, params=FULL) for digest in ("", files.digest)]
        driver.generate(streams, 1)
        results.append([_logprobs(stream) for stream in streams])
    (base, adapted), (base_codes, adapted_codes) = results
    assert float((adapted - base).abs().max()) > 0.1
    limit = 0.6 if "int8" in kind or rounds_head(kind) else 1e-3  # int8 cuts activations, too
    assert float((adapted_codes - adapted).abs().max()) < limit
    assert float((base_codes - base).abs().max()) < limit


def save_rounded(path: Path, kind: str) -> None:
    """Write the float model that ``kind`` makes of the tiny one at load."""
    save_tiny(path, **shape_of(kind))
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        tensors[name] = rounded(tensors[name], kind).floats()
    save_file(tensors, path / "model.safetensors")


def _logprobs(stream: Any) -> Tensor:
    values = {token.token_id: token.logprob for token in stream.sampled[0].logprobs.top}
    return torch.tensor([values[token] for token in range(97)])


def changed(layer: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    """Replaces one tensor of the last layer's down projection."""

    def apply(tensors: dict[str, Tensor]) -> None:
        name = f"model.layers.1.mlp.down_proj.{layer}"
        tensors[name] = change(tensors[name]).contiguous()

    return apply


def without(part: str) -> Callable[[dict[str, Tensor]], None]:
    def apply(tensors: dict[str, Tensor]) -> None:
        del tensors[f"model.layers.1.mlp.down_proj.{part}"]

    return apply


def filled(value: float) -> Callable[[Tensor], Tensor]:
    def fill(tensor: Tensor) -> Tensor:
        tensor.view(-1)[min(3, tensor.numel() - 1)] = value
        return tensor

    return fill


BROKEN: list[tuple[str, Callable[[dict[str, Tensor]], None], str]] = [
    ("compressed-w8a8", changed("weight_scale", filled(float("nan"))), "no positive number"),
    ("compressed-w8a8", changed("weight_scale", filled(0.0)), "no positive number"),
    ("compressed-w8a8", changed("weight", lambda t: t.float()), "type F32"),
    ("compressed-w8a8", changed("weight_scale", lambda t: t[:3]), "has shape"),
    ("compressed-int4", changed("weight_packed", lambda t: t[:, :-1]), "has shape"),
    ("compressed-int4", changed("weight_packed", lambda t: t.repeat(1, 2)), "has shape"),
    ("compressed-fp8", changed("weight_scale", filled(-1.0)), "no positive number"),
    ("fp8-block", changed("weight", lambda t: _with_nan(t)), "NaN"),
    ("compressed-mxfp4", changed("weight_scale", filled(255)), "no positive number"),
    ("compressed-mxfp4", changed("weight_packed", lambda t: t[:, 1:]), "has shape"),
    ("gptq", changed("g_idx", filled(99)), "must name one of 3 groups"),
    ("gptq", changed("g_idx", filled(2)), "has groups of other than 32 inputs"),
    ("compressed-order", changed("weight_g_idx", filled(-1)), "must name one of 3 groups"),
    ("gptq-order", without("g_idx"), "lacks tensor"),
    ("compressed-order", without("weight_g_idx"), "lacks tensor"),
    ("gptq", changed("qzeros", filled(0x12345678)), "which zeros are meant"),
    ("gptq", changed("scales", filled(float("inf"))), "no positive number"),
    ("awq", changed("qweight", lambda t: t.T), "has shape"),
    ("nf4", changed("weight", lambda t: t[1:]), "has shape"),
    ("nf4", changed("weight.absmax", filled(float("nan"))), "no number from 0 on"),
    ("nf4", changed("weight.absmax", filled(-1.0)), "no number from 0 on"),
    ("nf4", changed("weight.absmax", lambda t: t.to(torch.uint8)), "type U8"),
    ("nf4", changed("weight.quant_map", filled(0.3)), "other numbers than those of NF4"),
    ("nf4", changed("weight.quant_state.bitsandbytes__nf4", lambda t: t[:-1]), "holds no JSON"),
    ("nf4", changed("weight.quant_state.bitsandbytes__nf4", lambda t: _stating(t, b"64", b"99")), "blocksize 99"),
    ("nf4", changed("weight.quant_state.bitsandbytes__nf4", lambda t: _stating(t, b'"nf', b'"fp')), "quant_type 'fp4'"),
    ("nf4", changed("weight.quant_state.bitsandbytes__nf4", lambda _: _bytes(b"[" * 4000)), "holds no JSON"),
    (
        "nf4-double",
        changed("weight.quant_state.bitsandbytes__nf4", lambda t: _offset(t, b"1" + b"0" * 400)),
        "offset 1000",
    ),
    ("nf4-double", changed("weight.quant_state.bitsandbytes__nf4", lambda t: _offset(t, b"1e999")), "offset inf"),
    ("nf4-double", changed("weight.quant_state.bitsandbytes__nf4", lambda t: _offset(t, b"true")), "offset True"),
    ("nf4-double", changed("weight.quant_state.bitsandbytes__nf4", lambda t: _offset(t, b"-9.5")), "no number from 0"),
    ("nf4-double", changed("weight.nested_absmax", filled(float("inf"))), "no number from 0 on"),
    ("nf4-double", changed("weight.nested_absmax", filled(-3e38)), "nested_absmax holds a scale that is no number"),
    ("nf4-double", changed("weight.nested_quant_map", filled(-3.0)), "numbers other than those from -1 to 1"),
    ("nf4-double", changed("weight.nested_quant_map", filled(float("nan"))), "numbers other than those from -1 to 1"),
    ("nf4-double", changed("weight.nested_quant_map", lambda t: t[:255]), "has shape"),
    ("nf4-double", changed("weight.quant_state.bitsandbytes__nf4", lambda t: _without_offset(t)), "type U8"),
    ("llm-int8", changed("SCB", filled(0.0)), "no positive number"),
    ("llm-int8", changed("weight_format", lambda t: t + 1), "an order of codes other than by rows"),
    ("compressed-nvfp4", changed("weight_packed", lambda t: t[:, 1:]), "has shape"),
    ("compressed-nvfp4", changed("weight_scale", lambda t: _with_nan(t)), "no number from 0 on"),
    ("compressed-nvfp4", changed("weight_scale", lambda t: -t.float()), "type F32"),
    ("compressed-nvfp4", changed("weight_global_scale", lambda t: t * 0), "no positive number"),
    ("modelopt-nvfp4", changed("weight_scale", lambda t: (-t.float()).to(t.dtype)), "no number from 0 on"),
    ("modelopt-nvfp4", changed("weight_scale_2", lambda t: t * float("nan")), "no positive number"),
]


def _bytes(state: bytes) -> Tensor:
    return torch.tensor(list(state), dtype=torch.uint8)


def _stating(state: Tensor, old: bytes, new: bytes) -> Tensor:
    return _bytes(bytes(state.tolist()).replace(old, new))


def _offset(state: Tensor, value: bytes) -> Tensor:
    return _bytes(re.sub(rb'(?<="nested_offset": )[^,}]+', value, bytes(state.tolist())))


def _without_offset(state: Tensor) -> Tensor:
    stated = json.loads(bytes(state.tolist()))
    del stated["nested_offset"]
    return _bytes(json.dumps(stated).encode())


def _with_nan(tensor: Tensor) -> Tensor:
    codes = tensor.view(torch.uint8).clone()
    codes[0, 0] = 0x7F
    return codes.view(torch.float8_e4m3fn)


@needs_kernels
@pytest.mark.parametrize(("name", "change", "message"), BROKEN)
def test_a_broken_layer_is_refused_by_the_name_of_its_tensor(
    tmp_path: Path, name: str, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    save_quantised(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=message) as refused:
        load_runner(tmp_path, dtype="float32")
    assert "layers.1.mlp.down_proj" in refused.value.message


@needs_kernels
def test_an_output_of_zeros_is_read_as_bitsandbytes_writes_it(tmp_path: Path) -> None:
    floats = save_quantised(tmp_path / "codes", "llm-int8")
    tensors = load_file(tmp_path / "codes/model.safetensors")
    layer = "model.layers.1.mlp.down_proj"
    tensors[f"{layer}.weight"][3], tensors[f"{layer}.SCB"][3], floats[f"{layer}.weight"][3] = 0, 0, 0
    save_file(tensors, tmp_path / "codes/model.safetensors")
    save_floats(tmp_path / "floats", floats, "llm-int8")
    codes, expected = (
        teacher_forced(load_runner(tmp_path / name, dtype="float32"), PROMPT, 7) for name in ("codes", "floats")
    )
    assert float((codes - expected).abs().max()) < 0.6


@needs_kernels
def test_a_truncated_file_and_a_missing_part_are_refused(tmp_path: Path) -> None:
    save_quantised(tmp_path, "awq")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.0.mlp.up_proj.qzeros"]
    save_file(tensors, path)
    with pytest.raises(InvalidCheckpoint, match=r"lacks tensor model\.layers\.0\.mlp\.up_proj\.qzeros"):
        load_runner(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidCheckpoint):
        load_runner(tmp_path)


@needs_kernels
def test_layers_of_one_product_with_unlike_orders_are_refused(tmp_path: Path) -> None:
    save_quantised(tmp_path, "gptq-order")
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.g_idx"
    tensors[name] = tensors[name].flip(0).contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"up_proj\.weight has its inputs in another order"):
        load_runner(tmp_path)


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    save_quantised(tmp_path, "compressed-int4")
    with pytest.raises(InvalidCheckpoint, match="the checkpoint stores int4: set it to auto"):
        load_runner(tmp_path, quantization="int8")
