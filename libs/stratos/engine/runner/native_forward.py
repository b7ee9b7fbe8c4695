"""The forward pass of a dense model by one call of the C++ kernels (decoder.cpp).

A step that returns to Python between operations gives Python's lock away some hundred times, and each time may wait
milliseconds until another thread hands it back.  Here it is given away once.  The kernels and the bits are the same.
Models with experts take the layered pass, as this one is not built for them.  While inputs are kept (``KeptInputs``)
so are the arguments of the call, which point to them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.grouped import GroupedAttention
from stratos.engine.attention.native import NativePagedAttention, NativeStep
from stratos.engine.layers.linear import Linear
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.native_linear import NativeProduct
from stratos.engine.layers.native_ops import NativeOps
from stratos.engine.layers.rotary import RopeRows, RotaryTable, StreamingRotary
from stratos.engine.lora.native import NativeAdapters
from stratos.engine.memory.state_slots import StateSlots
from stratos.engine.models.decoder import Decoder, DecoderLayer
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import (
    ACTIVATION_CODES,
    DTYPE_CODES,
    AttentionStep,
    ForwardPass,
    LayerWeights,
    LinearWeight,
    ModelWeights,
)
from stratos.engine.runner.forward import Forward, ForwardResult, LayeredForward
from stratos.engine.runner.step_inputs import StepInputs
from stratos.engine.switches import KernelSwitches


def make_forward(
    decoder: Decoder,
    attention: AttentionBackend,
    library: NativeLibrary | None,
    switches: KernelSwitches,
    states: StateSlots | None = None,
) -> Forward:
    """The pass in one call where it is wanted and every part of the model has a kernel, else the layered one."""
    layered = LayeredForward(decoder, attention, states)
    if states is not None:
        return layered
    parts = attention.backends if isinstance(attention, GroupedAttention) else [attention]
    columns = [part for part in parts if isinstance(part, NativePagedAttention)]
    if not switches.whole_step or library is None or len(columns) < len(parts):
        return layered
    linears = [linear for layer in decoder.layers for linear in _linears(layer)]
    if decoder.lm_head is not None:
        linears.append(decoder.lm_head)
    if not isinstance(decoder.ops, NativeOps) or not all(isinstance(linear, NativeProduct) for linear in linears):
        return layered
    groups = attention if isinstance(attention, GroupedAttention) else None
    return NativeForward(library, decoder, columns, layered, groups, takes_adapters=switches.whole_step_adapters)


def _linears(layer: DecoderLayer) -> list[Linear | None]:
    if not isinstance(layer.mlp, GatedMlp):
        return [None]
    return [layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down]


def _argument(linear: Linear | None) -> LinearWeight:
    if linear is None:
        return LinearWeight()
    assert isinstance(linear, NativeProduct)
    return linear.argument


@dataclass(slots=True)
class _LaidOut:
    """Arguments of the last call, as far as they outlive it, and what keeps their memory alive."""

    inputs: StepInputs
    threads: int
    logits: Tensor | None
    is_finite: np.ndarray
    columns: ctypes.Array[AttentionStep]
    step: NativeStep | None
    """Arguments of attention that can be moved on; ``None`` where they cannot."""
    num_moves: int
    """Moves of the inputs that the arguments have seen."""
    held: object

    def move(self, inputs: StepInputs, threads: int) -> bool:
        """Let the arguments be those of kept inputs, whose tensors they point to; ``False``: they have to be set."""
        step, is_next = self.step, inputs is self.inputs and inputs.num_moves == self.num_moves + 1
        if step is None or not is_next or threads != self.threads:
            return False
        self.num_moves += 1
        self.columns[0].threads = threads  # the kernel takes fewer where there is little to do
        return step.move(inputs.spans, inputs.grown)


class NativeForward(Forward):
    """Every linear layer is a ``NativeProduct``, every MLP dense; use ``make_forward``.

    Args:
        library: the compiled kernels.
        decoder: the model; kept, since the kernels read its weights.
        columns: attention over the pages of each column of layers.
        layered: computes steps with adapters that this pass does not take.
        groups: what the columns are of, where they are several.
        takes_adapters: ablation switch.
    """

    is_bare = True
    _laid: _LaidOut | None

    def __init__(
        self,
        library: NativeLibrary,
        decoder: Decoder,
        columns: list[NativePagedAttention],
        layered: LayeredForward,
        groups: GroupedAttention | None = None,
        *,
        takes_adapters: bool = True,
    ) -> None:
        self._library, self._decoder, self._layered = library, decoder, layered
        self._columns, self._groups = columns, groups
        dtype = decoder.embedding.dtype
        self._adapters = NativeAdapters(decoder.config.num_layers, dtype) if takes_adapters else None
        config, options, first = decoder.config, decoder.config.options, decoder.layers[0]
        assert isinstance(first.mlp, GatedMlp)
        ropes = decoder.rotaries
        self._on_demand = ropes[0] if isinstance(ropes[0], StreamingRotary) else None
        self._tables = tuple((ctypes.c_void_p * len(ropes))() for _ in range(2))
        self._set_tables([rotary for rotary in ropes if isinstance(rotary, RotaryTable)])
        inner = _argument(first.mlp.down).k
        self._layers = (LayerWeights * config.num_layers)(
            *(
                _layer(layer, window, (0, index) if groups is None else groups.places[index])
                for index, (layer, window) in enumerate(zip(decoder.layers, config.windows, strict=True))
            )
        )
        self._model = ModelWeights(
            layers=ctypes.addressof(self._layers),
            embedding=decoder.embedding.data_ptr(),
            final_norm=decoder.final_norm.data_ptr(),
            cos=ctypes.addressof(self._tables[0]),
            sin=ctypes.addressof(self._tables[1]),
            head=_argument(decoder.lm_head),
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            inner=inner,
            dtype=DTYPE_CODES[dtype],
            num_ropes=len(ropes),
            activation=ACTIVATION_CODES[options.activation],
            eps=config.rms_norm_eps,
            norm_offset=options.norm_offset,
            embedding_scale=decoder.embedding_scale,
            residual_scale=options.residual_scale,
            activation_limit=options.activation_limit,
        )
        wide, narrow = max(_argument(first.qkv).stride, 2 * inner), max(_argument(first.output).k, inner)
        self._buffers = _Buffers(config.hidden_size, wide, narrow, len(ropes) * config.head_dim, dtype)
        self._logits = np.empty((0, self._model.head.stride), dtype=np.float32)
        self._finishes_logits, self._laid = decoder.finishes_logits, None

    def run(self, inputs: StepInputs) -> ForwardResult:
        threads, laid = torch.get_num_threads(), self._laid
        if laid is None or not laid.move(inputs, threads):
            self._laid = None  # its buffers may go
            if inputs.lora is not None and not (self._adapters is not None and self._adapters.takes(inputs.lora)):
                return self._layered.run(inputs)
            laid = self._laid = self._lay_out(inputs, threads)
        self._library.forward(ctypes.byref(self._model), ctypes.byref(self._buffers.arguments))
        if laid.logits is not None and self._finishes_logits:
            with torch.inference_mode():
                self._decoder.finished(laid.logits)
        return ForwardResult(self._buffers.residual, laid.logits, laid.is_finite)

    def _lay_out(self, inputs: StepInputs, threads: int) -> _LaidOut:
        """Set all arguments of the call."""
        num_tokens, num_sampled = inputs.token_ids.shape[0], len(inputs.sampled_rows)
        self._buffers.reserve(num_tokens)
        if num_sampled > len(self._logits):
            self._logits = np.empty((num_sampled, self._model.head.stride), dtype=np.float32)
        sampled = np.arange(num_tokens) if inputs.sampled_tokens is None else inputs.sampled_tokens.numpy()
        is_finite = np.empty(num_tokens, dtype=np.bool_)
        steps = self._steps(inputs.spans)
        for step in steps:
            step.arguments.norm_eps = self._decoder.config.rms_norm_eps
            step.arguments.norm_offset = self._decoder.config.options.norm_offset
        arguments = self._buffers.arguments
        columns = (AttentionStep * len(steps))(*(step.arguments for step in steps))
        arguments.step, arguments.num_steps = ctypes.addressof(columns), len(steps)
        rope, positions = None, inputs.positions
        if self._on_demand is not None:  # the step's own rows are the table
            rope, positions = self._on_demand.rows(positions), torch.arange(num_tokens)
            self._set_tables([rope])
        arguments.token_ids, arguments.positions = inputs.token_ids.data_ptr(), positions.data_ptr()
        arguments.sampled, arguments.num_sampled = sampled.ctypes.data, num_sampled
        arguments.logits, arguments.is_finite = self._logits.ctypes.data, is_finite.ctypes.data
        adapters = None
        if inputs.lora is not None and self._adapters is not None:
            adapters = self._adapters.step(inputs.lora, num_tokens)
        arguments.adapters = None if adapters is None else ctypes.addressof(adapters)
        arguments.threads = threads
        logits = torch.from_numpy(self._logits[:num_sampled]) if num_sampled else None
        can_move = self._groups is None and self._on_demand is None and self._columns[0].can_move
        return _LaidOut(
            inputs=inputs,
            threads=threads,
            logits=logits,
            is_finite=is_finite,
            columns=columns,
            step=steps[0] if can_move else None,
            num_moves=inputs.num_moves,
            held=(steps, rope, positions, sampled, adapters),
        )

    def _steps(self, rows: list[RowSpan]) -> list[NativeStep]:
        if self._groups is None:
            return [self._columns[0].unplanned(rows)]
        return [column.unplanned(self._groups.column(rows, index)) for index, column in enumerate(self._columns)]

    def _set_tables(self, ropes: Sequence[RotaryTable | RopeRows]) -> None:
        """Let the model's rotations be ``ropes``, in order."""
        for index, rope in enumerate(ropes):
            self._tables[0][index], self._tables[1][index] = rope.cos.data_ptr(), rope.sin.data_ptr()


def _layer(layer: DecoderLayer, window: int | None, place: tuple[int, int]) -> LayerWeights:
    qkv, output, gate_up, down = _linears(layer)
    whole = layer.whole_qk_norm or (None, None)
    return LayerWeights(
        before_attention=_address(layer.before_attention),
        after_attention=_address(layer.after_attention),
        before_mlp=_address(layer.before_mlp),
        after_mlp=_address(layer.after_mlp),
        qk_norm=None if layer.qk_norm is None else layer.qk_norm.weight.data_ptr(),
        whole_q_norm=_address(whole[0]),
        whole_k_norm=_address(whole[1]),
        qkv=_argument(qkv),
        output=_argument(output),
        gate_up=_argument(gate_up),
        down=_argument(down),
        window=window or 0,
        rope=layer.rope,
        column=place[0],
        place=place[1],
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class _Buffers:
    """Activations of a pass, as large as the largest step so far, and the arguments that point to them."""

    def __init__(self, hidden: int, wide: int, narrow: int, rope: int, dtype: torch.dtype) -> None:
        self._widths = {"residual": hidden, "x": hidden, "wide": wide, "narrow": narrow}
        self._widths |= {"cos": rope, "sin": rope}
        self._dtype, self._num_tokens = dtype, 0
        self._tensors: dict[str, Tensor] = {}
        self.arguments = ForwardPass()

    @property
    def residual(self) -> Tensor:
        """[at least as many tokens as reserved, hidden]."""
        return self._tensors["residual"]

    def reserve(self, num_tokens: int) -> None:
        """Make room for a step of ``num_tokens``."""
        if num_tokens <= self._num_tokens:
            return
        self._num_tokens = num_tokens
        for name, width in self._widths.items():
            dtype = torch.float32 if name in ("cos", "sin") else self._dtype
            self._tensors[name] = torch.empty(num_tokens, width, dtype=dtype)
            setattr(self.arguments, name, self._tensors[name].data_ptr())
