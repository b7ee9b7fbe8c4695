"""Layer operations by the C++ kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from stratos.engine.checkpoint.families.experts import Routing
from stratos.engine.layers.ops import SILU_GATE, LayerOps, MlpGate
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import ACTIVATION_CODES, DTYPE_CODES, RoutingOptions
from stratos.engine.revisions import revised


class NativeOps(LayerOps):
    """One pass over memory per operation; float32 and bfloat16 on CPU, rows contiguous."""

    is_invariant_by_design = True
    libraries = routing_libraries = ()

    def __init__(self, library: NativeLibrary, dtype: torch.dtype) -> None:
        self.name = revised("native-ops", f"native-{library.isa}")
        self.library, self._dtype = library, DTYPE_CODES[dtype]
        self._num_best = 0
        self._best: tuple[Any, Any] = (None, None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        return self._norm(x, None, weight, eps, offset)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        return self._norm(x, residual.data_ptr(), weight, eps, offset)

    def _norm(self, x: Tensor, residual: int | None, weight: Tensor, eps: float, offset: float) -> Tensor:
        out = torch.empty_like(x)
        rows, size = x.shape
        self.library.rms_norm(
            *(self._dtype, x.data_ptr(), residual, weight.data_ptr(), out.data_ptr()),
            *(rows, size, eps, offset, torch.get_num_threads()),
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self.gated(gate_up, SILU_GATE)

    def gated(self, gate_up: Tensor, gate: MlpGate) -> Tensor:
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        self.library.gated(
            *(self._dtype, ACTIVATION_CODES[gate.activation], gate.limit, gate_up.data_ptr(), out.data_ptr()),
            *(rows, size, torch.get_num_threads()),
        )
        return out

    def route(self, logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        (rows, num_experts), num_chosen = logits.shape, routing.num_chosen
        options = ctypes.byref(routing_options(routing, num_experts, bias))
        scores = logits.new_empty(rows, self.library.routing_floats(options))
        weights, chosen = logits.new_empty(rows, num_chosen), logits.new_empty(rows, num_chosen, dtype=torch.int64)
        self.library.route(
            *(options, logits.contiguous().data_ptr(), scores.data_ptr(), weights.data_ptr(), chosen.data_ptr()),
            *(rows, torch.get_num_threads()),
        )
        return weights, chosen

    def sigmoid(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        self.library.sigmoid(x.data_ptr(), out.data_ptr(), x.numel())
        return out

    def greedy(self, logits: Tensor) -> tuple[list[int], list[bool]]:
        rows, size = logits.shape
        if self._num_best != rows:  # kept: to make tensors takes longer than to fill them
            self._num_best, self._best = rows, ((ctypes.c_int64 * rows)(), (ctypes.c_bool * rows)())
        tokens, is_finite = self._best
        self.library.argmax(
            *(DTYPE_CODES[logits.dtype], logits.data_ptr(), tokens, is_finite),
            *(rows, size, torch.get_num_threads()),
        )
        return tokens[:], is_finite[:]


def routing_options(routing: Routing, num_experts: int, bias: Tensor | None) -> RoutingOptions:
    """``routing`` as the kernels take it; ``bias`` float32 [experts] is kept by the caller."""
    return RoutingOptions(
        bias=None if bias is None else bias.data_ptr(),
        num_experts=num_experts,
        num_chosen=routing.num_chosen,
        num_groups=routing.num_groups,
        num_scoring=routing.num_scoring,
        num_chosen_groups=routing.num_chosen_groups,
        is_sigmoid=routing.is_sigmoid,
        norms_chosen=routing.norms_chosen,
        scale=routing.scale,
    )
