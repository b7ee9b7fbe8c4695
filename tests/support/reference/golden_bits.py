"""Golden bits: digests of what each family of C++ kernels computes from fixed inputs, by instruction set and type.

``python -m tests.support.reference.golden_bits`` writes those of the sets that this machine runs, and refuses where
bits changed and the revision did not.  Inputs are made of integers, so that no library's generator decides them; the
layout of pages does not show, only what attention gives.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import NativePagedAttention
from stratos.engine.attention.projections import QkNorm
from stratos.engine.checkpoint.families.delta import DeltaConfig
from stratos.engine.checkpoint.families.experts import Routing
from stratos.engine.checkpoint.layer_weights import DeltaParts
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.native_linear import NativeLinear
from stratos.engine.layers.native_ops import NativeOps
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.memory.state_slots import StepStates
from stratos.engine.models.delta import DeltaRule, gate_heads
from stratos.engine.native.isa import TILE_TWIN
from stratos.engine.native.library import NativeLibrary
from stratos.engine.revisions import REVISIONS
from tests.support.reference.native_kernels import NATIVE_SETS, native_library

GOLDEN = Path(__file__).with_name("golden_bits.json")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HEADS, KV_HEADS, HEAD_DIM, BLOCK, WINDOW = 6, 2, 40, 16, 50


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Values in [-2, 2), the same on every machine."""
    count = int(np.prod(shape))
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B1) + np.uint64(seed * 0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(0xC2B2AE35) % np.uint64(1 << 32)
    values = (mixed >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-22) - np.float32(2)
    return torch.from_numpy(values).view(shape).to(dtype)


def _attention(library: NativeLibrary, dtype: torch.dtype) -> list[Tensor]:
    """A prompt in two chunks and two decode steps beside it, with norm, in a windowed and a full layer."""
    geometry = KvGeometry(
        num_layers=2, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK, element_bytes=dtype.itemsize
    )
    pages = KvPages(geometry, 24, dtype, torch.device("cpu"))
    kernel = NativePagedAttention(library, pages, HEADS, [WINDOW, None])
    norm, table = QkNorm(numbers((HEADS + KV_HEADS, HEAD_DIM), dtype, 1), 1e-6), (3, 9, 1, 14, 7, 20, 5, 11)
    outputs, start = [], 0
    for seed, count in enumerate((70, 33, 1, 1), 2):
        angles = numbers((count, HEAD_DIM // 2), torch.float32, seed + 10)  # any numbers do for cosines and sines
        rope = RopeRows(angles.repeat(1, 2), torch.cat((-angles, angles), 1))
        rows = [RowSpan(0, count, start, table)]
        qkv = numbers((count, (HEADS + 2 * KV_HEADS) * HEAD_DIM), dtype, seed)
        outputs += [kernel.forward(layer, qkv.clone(), rope, norm, kernel.prepare(rows)) for layer in range(2)]
        start += count
    return outputs


def _ops(library: NativeLibrary, dtype: torch.dtype) -> list[Tensor]:
    ops, (x, residual) = NativeOps(library, dtype), (numbers((5, 203), dtype, seed) for seed in (1, 2))
    weight, gate_up = numbers((203,), dtype, 3), numbers((5, 406), dtype, 4) * 20
    return [ops.rms_norm(x, weight, 1e-5), ops.add_rms_norm(x, residual, weight, 1e-5), residual, ops.silu_mul(gate_up)]


def _routing(library: NativeLibrary, dtype: torch.dtype) -> list[Tensor]:
    """Scores by a softmax and by sigmoids, of which groups are left out."""
    ops, logits, bias = NativeOps(library, dtype), numbers((9, 48), torch.float32, 1), numbers((48,), torch.float32, 2)
    softmax = Routing(num_chosen=5, norms_chosen=True)
    sigmoid = Routing(num_chosen=5, norms_chosen=True, is_sigmoid=True, scale=2.5, num_groups=6, num_chosen_groups=2)
    found = [*ops.route(logits, softmax), *ops.route(logits, sigmoid, bias)]
    return [*found, ops.sigmoid(logits)]


def _products(library: NativeLibrary, dtype: torch.dtype) -> list[Tensor]:
    """One row and many, rounded to the type and not, with a bias and without."""
    weight, bias, outputs = numbers((75, 203), dtype, 1), numbers((75,), dtype, 2), []
    for rows in (1, 7, 40):
        x = numbers((rows, 203), dtype, 3 + rows)
        outputs += [NativeLinear(library, weight, bias)(x), NativeLinear(library, weight, None, is_float=True)(x)]
    return outputs


def _coded_products(
    weights: list[QuantisedWeight | NestedWeight], library: NativeLibrary, dtype: torch.dtype
) -> list[Tensor]:
    """One row and many, rounded to the type with a bias, and not."""
    factory, outputs = LinearFactory(torch.device("cpu"), dtype, enable_prepacked_gemm=False, library=library), []
    for weight in weights:
        layers = (factory.quantised(weight, numbers((weight.shape[0],), dtype, 2)), factory.to_float32(weight))
        for rows in (1, 7, 40):
            x = _spread((rows, weight.shape[1]), dtype, 3 + rows)
            outputs += [linear(x) for linear in layers]
    return outputs


def _spread(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers from 2^-8 to 2^7 times ``numbers``: the order in which they are added shows."""
    return numbers(shape, dtype, seed) * torch.exp2(_bytes(shape, 15).float() - 8).to(dtype)


def _bytes(shape: tuple[int, ...], most: int) -> Tensor:
    """Integers from 0 to ``most``, uint8."""
    return ((numbers(shape, torch.float32, most) + 2) / 4 * (most + 1)).to(torch.uint8)


def _quantised(library: NativeLibrary, dtype: torch.dtype) -> list[Tensor]:
    """Codes of one scale for a group, one with zeros of its own."""
    weights: list[QuantisedWeight | NestedWeight] = []
    for scheme, groups in (("INT8_ROWS", 1), ("INT8", 6), ("INT4", 6), ("INT4", 1), ("FP8", 3), ("MXFP4", 6)):
        kind = LinearScheme[scheme]
        codes = _bytes((75, 192), 15 if scheme in ("INT4", "MXFP4") else 255)
        if scheme == "FP8":
            codes[codes & 0x7F == 0x7F] = 0  # not a number
        scales = (numbers((75, groups), torch.float32, 5) + 2.25) / 64
        zeros = _bytes((75, groups), 15) if (scheme, groups) == ("INT4", 6) else None
        weights.append(QuantisedWeight(scheme=kind, codes=codes, scales=scales, zeros=zeros))
    return _coded_products(weights, library, dtype)


def _blocks(library: NativeLibrary, dtype: torch.dtype) -> list[Tensor]:
    """NF4, NVFP4, and LLM.int8 with rows that have outliers."""
    bytes_ = _bytes((75, 192), 255)
    weights: list[QuantisedWeight | NestedWeight] = [
        QuantisedWeight(scheme=kind, codes=codes, scales=(numbers((75, groups), torch.float32, 5) + 2.25) / 64)
        for kind, codes, groups in ((LinearScheme.NF4, bytes_ & 15, 3), (LinearScheme.LLM_INT8, bytes_, 1))
    ]
    parts, whole = _bytes((75, 6, 2), 0x7E), (numbers((75, 1, 1), torch.float32, 7) + 2.25) / 256
    weights.append(NestedWeight(scheme=LinearScheme.NVFP4, codes=bytes_ & 15, parts=parts, wholes=whole))
    return _coded_products(weights, library, dtype)


def _k_quants(library: NativeLibrary, dtype: torch.dtype) -> list[Tensor]:
    weights: list[QuantisedWeight | NestedWeight] = []
    for name, code, part in (("Q4_K", 15, 63), ("Q5_K", 31, 63), ("Q6_K", 63, 255)):
        wholes = (numbers((75, 2, 1 if name == "Q6_K" else 2), torch.float32, 5) + 2.25) / 256
        weights.append(
            NestedWeight(
                scheme=LinearScheme[name], codes=_bytes((75, 512), code), parts=_bytes((75, 16, 2), part), wholes=wholes
            )
        )
    return _coded_products(weights, library, dtype)


def _delta(library: NativeLibrary, dtype: torch.dtype) -> list[Tensor]:
    """A prompt in two chunks, with a snapshot, and a token after each; the state, too, and the gate of attention."""
    config = DeltaConfig(layers=(0,), key_heads=2, value_heads=4, key_dim=20, value_dim=37, kernel=4)
    sizes = ((4, config.channels), (4,), (4,), (37,))
    parts = DeltaParts(*(numbers(shape, torch.float32, seed) for seed, shape in enumerate(sizes, 1)))
    rule, width = DeltaRule(library, config, 0, parts, 1e-6), config.channels + config.value_size + 8
    slots, outputs = torch.zeros(4, 1, config.state_size), []
    for seed, (count, read, write) in enumerate(((33, -1, 0), (20, 0, 1), (1, 1, 0), (1, 2, 3)), 9):
        snapshots = np.array([[0, 17, 2]] if count == 20 else [], dtype=np.int64).reshape(-1, 3)
        step = StepStates(np.array([[0, count, read, write]]), snapshots, slots)
        outputs.append(rule(numbers((count, width), dtype, seed), step))
    gated = gate_heads(library, numbers((5, 203), dtype, 2), numbers((5, 203), dtype, 3) * 20)
    return [*outputs, slots, gated]


FAMILIES: dict[str, Callable[[NativeLibrary, torch.dtype], list[Tensor]]] = {
    "native-attention": _attention,
    "native-delta": _delta,
    "native-gguf-products": _k_quants,
    "native-ops": _ops,
    "native-ops/routing": _routing,
    "native-products": _products,
    "native-quantised-products": _quantised,
    "native-quantised-products/blocks": _blocks,
}
"""By family of revisions; schemes that came later are a part of their own, as they change no bits of the others."""


def revision_of(name: str) -> int:
    """Revision of an entry of ``FAMILIES``."""
    return REVISIONS[name.partition("/")[0]]


def digest_of(family: str, build: str, dtype: str) -> str:
    """Digest of the bits that a family computes here."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in FAMILIES[family](native_library(build), DTYPES[dtype]):
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def golden_key(build: str, dtype: str) -> str:
    """Name in the file; the twin of the tiles has the tiles' own."""
    return f"{'amx' if build == TILE_TWIN.name else build} {dtype}"


def read_golden() -> dict[str, Any]:
    """Family -> its revision, and digests by ``golden_key``."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    return found


def main() -> int:
    """Write the digests of this machine's sets; those of others stay where the revision did."""
    golden = read_golden()
    for family in FAMILIES:
        known = golden.get(family, {"revision": 0, "bits": {}})
        bits = {golden_key(build, dtype): digest_of(family, build, dtype) for build in NATIVE_SETS for dtype in DTYPES}
        is_same_revision = known["revision"] == revision_of(family)
        if is_same_revision and any(known["bits"].get(key, value) != value for key, value in bits.items()):
            print(f"the bits of {family} changed: raise its revision in stratos.engine.revisions first")
            return 1
        golden[family] = {
            "revision": revision_of(family),
            "bits": {**(known["bits"] if is_same_revision else {}), **bits},
        }
    GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
