"""Needs of a model, from its ``config.json`` and the headers of its weights: no tensor is read.

Weights count in the compute type, with the second copy of an embedding that is the output layer as well (one to look
rows up, one packed for the product), and with the tables of the rotary embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.block_types import FLOAT_BLOCKS
from stratos.core.files.gguf.parts import SUFFIX, read_gguf
from stratos.core.files.model_files import read_json
from stratos.core.files.safetensors_header import ALL_BYTES, read_safetensors_header
from stratos.engine.checkpoint.families.latent import UP
from stratos.engine.checkpoint.gguf.kept_codes import HEAD, KEPT_BYTES, TABLE, kept_schemes
from stratos.engine.checkpoint.model_config import DecoderConfig, parse_decoder_config
from stratos.engine.checkpoint.tensor_names import CODED_SUFFIXES, LINEAR_SUFFIXES, expected_shapes
from stratos.engine.checkpoint.weight_schemes import HEAD_KIND, LinearScheme, can_round, kind_of_layers, rounds_head
from stratos.engine.sizing.operations import layer_operations, output_operations

_UP = f".{UP}.weight"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
STORED_DTYPES = {"F32": "float32", "F64": "float32", "BF16": "bfloat16", "F16": "float16"}
ROUNDED_BYTES = {"int8": 1.0, "int4": 0.625, "fp8": 1.0, "mxfp4": 0.625, "nf4": 0.5625, "llm-int8": 1.0}
"""Of an element that is quantised at load, scales included."""
TABLE_BYTES, KV_SCALE_BYTES, SCALE_BYTES = 4, 2, 4
HEAD_LOAD_BYTES, LAYER_LOAD_BYTES = 2, 4
"""Of an element of a GGUF file while it is loaded: two parts of a code; those of two weights and of their product."""
SCALE_SUFFIXES = (".weight_scale", ".weight.absmax")
"""End the names of scales that may be stored in a byte each (MXFP4, NF4), and are floats in memory."""
STATE_SUFFIXES = (".quant_map", ".nested_quant_map", ".nested_absmax", ".quant_state.bitsandbytes__nf4")
"""End the names of what is read and not kept (NF4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeed:
    """Sizes of a model, in elements: the bytes follow from the type."""

    stored_dtype: str
    """Type that most of the checkpoint's bytes have."""
    num_weights: int
    """Elements of all tensors, and of what is held twice."""
    table_bytes: int
    kv_elements: int
    """KV elements of one token, in all layers."""
    max_model_len: int
    vocab_size: int
    widest: int
    """Features of the widest activation of a token."""
    has_window: bool
    """Every layer has a sliding window: a sequence does not hold KV of its whole context."""
    num_read: int = 0
    """Elements that every step reads: all tensors but the table in which a token's row is looked up."""
    code_bytes: int = 0
    """Weights that stay codes, in whatever type the rest is."""
    code_elements: int = 0
    """Elements of them; one a byte where a checkpoint stores codes that are packed."""
    load_bytes: int = 0
    """Copies of the largest weight that stays codes while it is loaded."""
    layer_operations: int = 0
    output_operations: int = 0
    """Operations of a token, see ``operations``."""
    kv_rows: int = 0
    """Heads of K and of V of one token, in all layers."""
    rank_elements: int = 0
    """Elements of an adapter of rank 1 on every linear layer."""
    state_elements: int = 0
    """Numbers, in float32, of the recurrent state of one sequence; 0: the model has none."""
    num_state_layers: int = 0
    widened: tuple[str, ...] = ()
    """Types of blocks of a GGUF file that are floats in memory, and its embedding where that alone is."""

    def weight_bytes(self, dtype: str) -> int:
        return self.num_weights * DTYPE_BYTES[dtype] + self.code_bytes + self.table_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of a slot for the recurrent state of one sequence."""
        return self.state_elements * DTYPE_BYTES["float32"]

    @property
    def state_layer_bytes(self) -> int:
        """Bytes of it in one layer."""
        return self.state_bytes // max(1, self.num_state_layers)

    @property
    def float_bytes(self) -> int:
        """Bytes of the model without any codes, in float32."""
        return (self.num_weights + self.code_elements) * DTYPE_BYTES["float32"] + self.table_bytes

    def read_bytes(self, dtype: str) -> int:
        """Bytes that every step reads."""
        return self.num_read * DTYPE_BYTES[dtype] + self.code_bytes

    def rounded(self, model: DecoderConfig, kind: str) -> ModelNeed:
        """The same with float weights of the linear layers quantised at load; ``kind`` is no "auto"."""
        linear = sum(
            math.prod(shape)
            for name, shape in expected_shapes(model)
            if name.endswith(LINEAR_SUFFIXES)
            and len(shape) == 2
            and can_round(shape[1], kind)
            and not name.endswith(_UP)
        )
        linear = min(linear, self.num_read)
        code_bytes = int(linear * ROUNDED_BYTES[kind_of_layers(kind)])
        if rounds_head(kind) and model.has_lm_head and can_round(model.hidden_size, HEAD_KIND):
            head = model.vocab_size * model.hidden_size
            linear, code_bytes = linear + head, code_bytes + int(head * ROUNDED_BYTES[HEAD_KIND])
        return replace(
            self,
            num_weights=self.num_weights - linear,
            num_read=self.num_read - linear,
            code_bytes=self.code_bytes + code_bytes,
            code_elements=self.code_elements + linear,
        )

    def token_bytes(self, dtype: str, kv_dtype: str = "auto", *, has_scales: bool = False) -> int:
        """KV of one token; codes may have scales beside them (``memory.kv_codes``)."""
        if kv_dtype == "auto":
            return self.kv_elements * DTYPE_BYTES[dtype]
        return self.kv_elements + has_scales * KV_SCALE_BYTES * self.kv_rows


def read_need(folder: Path, rounding: str = "auto", *, keeps_codes: bool = True) -> ModelNeed:
    """Sizes of the model in ``folder``.

    Args:
        folder: of the model.
        rounding: what its linear layers are quantised to at load.
        keeps_codes: whether the device has products for blocks of GGUF files and of coded experts.

    Raises:
        InvalidCheckpoint: its configuration or a header cannot be read.
    """
    model = parse_decoder_config(read_json(folder / "config.json"))
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and (parts := sorted(folder.glob(f"*{SUFFIX}"))):
        need = _gguf_need(model, parts[0], keeps_codes=keeps_codes)
    else:
        need = _safetensors_need(model, weights, widens=not keeps_codes or rounding != "auto")
    return need if rounding == "auto" else need.rounded(model, rounding)


def _safetensors_need(model: DecoderConfig, weights: list[Path], *, widens: bool) -> ModelNeed:
    elements, code_bytes = dict.fromkeys(STORED_DTYPES, 0), 0
    for path in weights:
        for name, entry in read_safetensors_header(path, InvalidCheckpoint, ALL_BYTES).items():
            if model.quantisation is not None and name.endswith(STATE_SUFFIXES):
                continue
            if entry["dtype"] in elements and not name.endswith(SCALE_SUFFIXES[1]):
                elements[entry["dtype"]] += math.prod(entry["shape"])
            elif model.has_coded_experts and name.endswith(CODED_SUFFIXES):
                is_scale, count = name.endswith(CODED_SUFFIXES[1]), math.prod(entry["shape"])
                if widens:
                    elements["BF16"] += 0 if is_scale else 2 * count
                else:
                    code_bytes += count * (SCALE_BYTES if is_scale else 1)
            elif model.quantisation is not None and name.endswith(_UP):
                elements["BF16"] += math.prod(entry["shape"])
            elif model.quantisation is not None:
                is_widened = entry["dtype"] == "U8" and name.endswith(SCALE_SUFFIXES)
                code_bytes += math.prod(entry["shape"]) * (SCALE_BYTES if is_widened else ALL_BYTES[entry["dtype"]])
    stored = max(elements, key=lambda name: elements[name] * ALL_BYTES[name])
    need = need_of(model, sum(elements.values()), STORED_DTYPES[stored])
    return replace(need, code_bytes=code_bytes, code_elements=code_bytes)


def _gguf_need(model: DecoderConfig, first: Path, *, keeps_codes: bool) -> ModelNeed:
    tensors = read_gguf(first).tensors
    types = {name: info.block_type.name for name, info in tensors.items()}
    kept = kept_schemes(types) if keeps_codes else {}
    elements, code_bytes = dict.fromkeys(STORED_DTYPES, 0), 0.0
    coded = {name: tensors[name].num_elements for name in kept}
    for name, info in tensors.items():
        if name in kept:
            code_bytes += info.num_elements * KEPT_BYTES[kept[name]]
        if name not in kept or name == TABLE:  # rows are looked up in a copy of floats
            # a product reads bfloat16 fastest, and blocks are less exact than it
            elements[types[name] if types[name] in FLOAT_BLOCKS else "BF16"] += info.num_elements
    num_floats, code_elements = sum(elements.values()), sum(coded.values())
    elements["BF16"] += code_elements  # codes do not change what the rest is computed in
    stored = max(elements, key=lambda name: elements[name] * ALL_BYTES[name])
    return replace(
        need_of(model, num_floats, STORED_DTYPES[stored], has_own_head=TABLE in kept),
        code_bytes=int(code_bytes),
        code_elements=code_elements,
        load_bytes=max((count * _copies(name) for name, count in coded.items()), default=0),
        widened=_widened(types, kept),
    )


def _copies(name: str) -> int:
    """Bytes of an element of a weight whose codes are being read: parts of one product are joined by a copy."""
    return HEAD_LOAD_BYTES if name in (HEAD, TABLE) else LAYER_LOAD_BYTES


def _widened(types: Mapping[str, str], kept: Mapping[str, LinearScheme]) -> tuple[str, ...]:
    """Quantised types of products that are floats in memory, and the embedding, whose rows are only looked up."""
    looked_up = TABLE if HEAD in types or TABLE in kept else ""
    products = {types[name] for name in types if name not in kept and name != looked_up} - set(FLOAT_BLOCKS)
    kind = types.get(looked_up, "")
    is_named = kind and kind not in FLOAT_BLOCKS
    return (*sorted(products), *([f"the embedding ({kind})"] if is_named else []))


def need_of(model: DecoderConfig, num_stored: int, stored_dtype: str, *, has_own_head: bool = False) -> ModelNeed:
    """Sizes of a parsed model whose files hold ``num_stored`` elements; ``has_own_head``: not those of a table."""
    table = model.vocab_size * model.hidden_size
    twice = table if model.tie_word_embeddings and not has_own_head else 0
    return ModelNeed(
        stored_dtype=stored_dtype,
        num_weights=num_stored + twice,
        table_bytes=2 * len(set(model.ropes)) * model.max_model_len * model.rotary_dim * TABLE_BYTES,
        kv_elements=model.num_kv_sides * len(model.kv_layers) * model.kv_size,
        kv_rows=model.num_kv_sides * len(model.kv_layers) * model.num_kv_heads,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        widest=max(2 * model.intermediate_size, model.q_size + 2 * model.kv_size, model.hidden_size),
        has_window=model.max_window > 0,
        num_read=num_stored + twice - table,
        num_state_layers=len(model.delta.layers) if model.delta else 0,
        state_elements=len(model.delta.layers) * model.delta.state_size if model.delta else 0,
        layer_operations=layer_operations(model),
        output_operations=output_operations(model),
        rank_elements=0
        if model.latent or model.delta  # no adapters
        else sum(sum(shape) for layer in range(model.num_layers) for shape in model.projection_shapes(layer).values()),
    )
