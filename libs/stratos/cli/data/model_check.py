"""Check of a model folder, from its ``config.json`` and the names of its tensors: no weight is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.core.files.safetensors_header import ALL_BYTES, read_safetensors_header
from stratos.engine.checkpoint.model_config import DecoderConfig, parse_decoder_config
from stratos.engine.checkpoint.tensor_names import BODY_PREFIX, EMBEDDING, LINEAR_SUFFIXES, expected_shapes, text_name

INDEX_NAME = "model.safetensors.index.json"
MAX_SHOWN = 5


def check_model(path: Path) -> list[str]:
    """Lines about a model: what it is, what it needs, and which tensors are missing.

    Args:
        path: a model folder, or a ``config.json`` alone; an index beside it is enough to compare names.

    Raises:
        InvalidCheckpoint: the engine does not serve it; the message says why.
    """
    config_path = path / "config.json" if path.is_dir() else path
    model = parse_decoder_config(read_json(config_path))
    lines = [f"{model.architecture}: served", *_facts(model)]
    names = _tensor_names(config_path.parent)
    if names is None:
        return [*lines, f"tensors: neither weights nor {INDEX_NAME} are here, so names were not compared"]
    missing = list(_missing(model, names))
    if missing:
        shown = ", ".join(missing[:MAX_SHOWN])
        raise InvalidCheckpoint(f"{model.architecture}: {len(missing)} tensors are missing, among them {shown}")
    return [*lines, f"tensors: all that are needed are among the {len(names)} here"]


def _facts(model: DecoderConfig) -> Iterator[str]:
    windows = sorted({window for window in model.windows if window is not None})
    num_windows = sum(window is not None for window in model.windows)
    yield f"layers: {model.num_layers}, {num_windows} with a window{f' of {windows[0]}' if windows else ''}"
    yield f"context: {model.max_model_len:,} tokens, rotation {model.rope.kind}"
    yield f"KV: {model.num_kv_sides * len(model.kv_layers) * model.kv_size:,} elements per token"
    if model.delta is not None:
        size = len(model.delta.layers) * model.delta.state_size
        yield f"states: {len(model.delta.layers)} layers with {size:,} numbers of float32 per sequence; on a CPU alone"
    if model.moe is not None:
        yield f"experts: {model.moe.num_chosen} of {model.moe.num_experts} per token"
    if model.latent is not None:
        yield "devices: a CPU alone; kernels of a GPU have no latent attention"
    if not model.options.has_plain_attention:
        yield "devices: a CPU alone; kernels of a GPU neither cap scores nor have sinks of heads"


def _tensor_names(folder: Path) -> set[str] | None:
    """Names in the index, else in the headers of the weights; ``None`` where neither is there."""
    index = folder / INDEX_NAME
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise InvalidCheckpoint(f"{index} has no weight_map")
        return set(weight_map)
    weights = sorted(folder.glob("*.safetensors"))
    headers = [read_safetensors_header(path, InvalidCheckpoint, ALL_BYTES) for path in weights]
    return {name for header in headers for name in header} if headers else None


def _missing(model: DecoderConfig, stored: set[str]) -> Iterator[str]:
    names = {text_name(name) for name in stored} if model.is_text_part else stored
    if EMBEDDING.removeprefix(BODY_PREFIX) in names:
        names = {f"{BODY_PREFIX}{name}" for name in names if name is not None}
    layouts = [
        {name for name, _ in expected_shapes(model, is_stacked=is_stacked, is_coded=is_coded)}
        for is_stacked, is_coded in ((False, False), (True, False), (False, True))
    ]
    wanted = min(layouts, key=lambda layout: len(layout - names))
    for name in sorted(wanted - names):
        # quantised layers have tensors of other names: codes and scales
        if model.quantisation is None or not name.endswith(LINEAR_SUFFIXES):
            yield name
