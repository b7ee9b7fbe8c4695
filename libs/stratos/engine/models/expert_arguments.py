"""Experts of a decoder as the C++ pass takes them: addresses of their weights, and how rows are routed."""

from __future__ import annotations

import ctypes

from stratos.engine.layers.invariance import Linear
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.layers.native_linear import NativeProduct
from stratos.engine.layers.native_ops import routing_options
from stratos.engine.models.decoder import Decoder
from stratos.engine.native.structures import ExpertsOfLayer, LinearWeight, MlpArgument


def argument_of(linear: Linear | None) -> LinearWeight:
    """The weight of a product of the kernels, or none."""
    if linear is None:
        return LinearWeight()
    assert isinstance(linear, NativeProduct)
    return linear.argument


class ExpertArguments:
    """Arguments of every layer with experts, and how much room a token takes there."""

    def __init__(self, decoder: Decoder) -> None:
        layers = {i: layer.mlp for i, layer in enumerate(decoder.layers) if isinstance(layer.mlp, MixtureOfExperts)}
        self._mlps = {index: _mlps(mixture) for index, mixture in layers.items()}
        self._layers = {index: _layer(mixture, self._mlps[index]) for index, mixture in layers.items()}

    def address(self, layer: int) -> int | None:
        """The argument of a layer; ``None``: it is dense."""
        found = self._layers.get(layer)
        return None if found is None else ctypes.addressof(found)

    @property
    def max_experts(self) -> int:
        """Experts of the layer that has the most; 0: all are dense."""
        return max((layer.routing.num_experts for layer in self._layers.values()), default=0)

    def widths(self) -> dict[str, int]:
        """Elements of a token in each buffer of ``ExpertRows``."""
        found = dict.fromkeys(("logits", "inputs", "wide", "narrow", "shared", "gates", "scores", "weights"), 0)
        found |= dict.fromkeys(("chosen", "places"), 0)
        for index, layer in self._layers.items():
            routing, down = layer.routing, self._mlps[index][0].down
            num_experts, num_chosen = routing.num_experts, routing.num_chosen
            needed = {
                "logits": 2 * num_experts,  # elements of two bytes may lie there as floats
                "inputs": num_chosen * down.stride,
                "wide": 2 * num_chosen * down.k,
                "narrow": num_chosen * down.k,
                "shared": layer.shared_down.stride,
                "gates": layer.shared_gate.stride,
                "scores": 2 * num_experts + routing.num_groups,
                "weights": num_chosen,
                "chosen": num_chosen,
                "places": num_chosen,
            }
            found = {name: max(width, needed[name]) for name, width in found.items()}
        return found

    @property
    def max_shared(self) -> int:
        """Features within the widest shared expert."""
        return max((layer.shared_down.k for layer in self._layers.values()), default=0)


def _mlps(mixture: MixtureOfExperts) -> ctypes.Array[MlpArgument]:
    mlps = [MlpArgument(argument_of(mlp.gate_up), argument_of(mlp.down)) for mlp in mixture.experts]
    return (MlpArgument * len(mlps))(*mlps)


def _layer(mixture: MixtureOfExperts, mlps: ctypes.Array[MlpArgument]) -> ExpertsOfLayer:
    shared: GatedMlp | None = mixture.shared
    assert isinstance(mixture.router, NativeProduct)
    return ExpertsOfLayer(
        experts=ctypes.addressof(mlps),
        router=mixture.router.argument,
        shared_gate_up=argument_of(shared and shared.gate_up),
        shared_down=argument_of(shared and shared.down),
        shared_gate=argument_of(mixture.shared_gate),
        routing=routing_options(mixture.routing, len(mixture.experts), mixture.selection_bias),
        is_router_float=mixture.router.is_float,
    )
