"""One adapter in host memory: read from its folder, checked against the model, converted, not yet laid out.

Loading an adapter again from here touches no disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stratos.common.errors import InvalidAdapter
from stratos.core.files.adapter_files import WEIGHTS_NAME, AdapterFiles
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.rotated_rows import row_order

TensorKey = tuple[int, str, str]
"""(layer, projection, "A", "B" or "bias")."""


@dataclass(frozen=True, slots=True)
class HostAdapter:
    """Tensors of an adapter on the host, in the compute type; the scaling is folded into B."""

    digest: str
    tensors: dict[TensorKey, Tensor]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def read_adapter(files: AdapterFiles, config: DecoderConfig, dtype: torch.dtype) -> HostAdapter:
    """Read a checked adapter folder.

    Raises:
        InvalidAdapter: it does not fit the model, is not finite, or cannot be read.
    """
    check_shapes(files, config)
    tensors: dict[TensorKey, Tensor] = {}
    try:
        with safe_open(files.path / WEIGHTS_NAME, framework="pt") as handle:
            for key, name in files.names.items():
                tensor: Tensor = handle.get_tensor(name).float()
                if not bool(torch.isfinite(tensor).all()):
                    raise InvalidAdapter(f"adapter tensor {name} holds NaN or infinity")
                scaled = tensor * files.scalings[key[:2]] if key[2] == "B" else tensor
                order = None if key[2] == "A" else row_order(config, key[1])
                ordered = scaled if order is None else scaled[order]
                tensors[key] = ordered.to(dtype, copy=True)  # the tensor may lie in the mapped file
    except (SafetensorError, OSError) as error:
        raise InvalidAdapter(f"{WEIGHTS_NAME} cannot be read: {error}") from error
    return HostAdapter(files.digest, tensors)


def check_shapes(files: AdapterFiles, config: DecoderConfig) -> None:
    """Compare every tensor of an adapter with the model.

    Raises:
        InvalidAdapter: names the first tensor that does not fit.
    """
    if config.latent:
        raise InvalidAdapter("adapters on a model with latent attention (MLA) are not supported")
    if config.delta is not None:
        raise InvalidAdapter("adapters on models that have layers with a state are not supported")
    for (layer, projection, part), shape in sorted(files.shapes.items()):
        if layer >= config.num_layers:
            raise InvalidAdapter(f"adapter tensor of layer {layer}: the model has only {config.num_layers} layers")
        name = files.names[layer, projection, part]
        projections = config.projection_shapes(layer)
        if projection not in projections:
            why = f"this model has no {projection}"
            if config.has_experts(layer):
                why = f"layer {layer} is a mixture of experts, and adapters on experts are not supported"
            raise InvalidAdapter(f"adapter tensor {name}: {why}; train it for {', '.join(projections)}")
        if part == "bias" and not config.has_bias(projection):
            raise InvalidAdapter(f"adapter tensor {name}: {projection} of this model has no bias")
        out_features, in_features = projections[projection]
        expected = {"A": (shape[0], in_features), "B": (out_features, shape[-1]), "bias": (out_features,)}[part]
        if shape != expected:
            raise InvalidAdapter(f"adapter tensor {name} has shape {list(shape)}, the model needs {list(expected)}")
