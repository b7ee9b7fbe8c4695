"""The gated delta rule of a layer, and the gate of attention beside it, by the C++ kernels (native/delta.cpp)."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from stratos.engine.checkpoint.families.delta import DeltaConfig
from stratos.engine.checkpoint.layer_weights import DeltaParts
from stratos.engine.memory.state_slots import StepStates
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import DTYPE_CODES, DeltaStep
from stratos.engine.revisions import revised


class DeltaRule:
    """Convolution, recurrence and gated norm of one layer.

    Args:
        library: the compiled kernels.
        config: shape of the layers.
        place: of the layer among those with a state.
        parts: its tensors.
        eps: of its norm.
    """

    def __init__(self, library: NativeLibrary, config: DeltaConfig, place: int, parts: DeltaParts, eps: float) -> None:
        self._library, self._config, self._place, self._parts, self._eps = library, config, place, parts, eps

    def __call__(self, x: Tensor, step: StepStates) -> Tensor:
        """Go on with the states of a step.

        Args:
            x: [tokens, channels + value_size + 2 * value_heads]: q, k and v, the gate, b, a; contiguous.
            step: slots of its rows.

        Returns:
            [tokens, value_size].
        """
        config, threads = self._config, torch.get_num_threads()
        out = x.new_empty(x.shape[0], config.value_size)
        scratch = torch.empty(threads * config.key_dim * config.value_dim)
        parts = self._parts
        arguments = DeltaStep(
            rows=step.rows.ctypes.data,
            snapshots=step.snapshots.ctypes.data,
            slots=step.slots.data_ptr(),
            x=x.data_ptr(),
            conv=parts.conv.data_ptr(),
            a_log=parts.a_log.data_ptr(),
            dt_bias=parts.dt_bias.data_ptr(),
            norm=parts.norm.data_ptr(),
            out=out.data_ptr(),
            scratch=scratch.data_ptr(),
            num_rows=len(step.rows),
            num_snapshots=len(step.snapshots),
            slot_stride=step.slots.stride(0),
            layer_offset=self._place * step.slots.stride(1),
            width=x.shape[1],
            key_heads=config.key_heads,
            value_heads=config.value_heads,
            key_dim=config.key_dim,
            value_dim=config.value_dim,
            kernel=config.kernel,
            dtype=DTYPE_CODES[x.dtype],
            threads=threads,
            eps=self._eps,
        )
        self._library.delta(ctypes.byref(arguments))
        return out


class DeltaKernel:
    """Facts of these kernels, for the numerics id."""

    is_invariant_by_design = True
    """Same as ``AttentionBackend.is_invariant_by_design``."""
    libraries = ()

    def __init__(self, library: NativeLibrary) -> None:
        self.name = revised("native-delta", f"delta-{library.isa}")


def gate_heads(library: NativeLibrary, x: Tensor, gate: Tensor) -> Tensor:
    """``x * sigmoid(gate)``, in place; both [tokens, features] and contiguous."""
    library.sigmoid_gate(DTYPE_CODES[x.dtype], x.data_ptr(), gate.data_ptr(), x.numel())
    return x
