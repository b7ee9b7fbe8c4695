"""The forward pass of a model by one call of the C++ kernels (decoder.cpp).

A step that returns to Python between operations gives Python's lock away some hundred times, and each time may wait
milliseconds until another thread hands it back.  Here it is given away once.  The kernels and the bits are the same.
While inputs are kept (``KeptInputs``) so are the arguments of the call, which point to them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.grouped import GroupedAttention
from stratos.engine.attention.native import NativePagedAttention, NativeStep
from stratos.engine.layers.linear import Linear
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.layers.native_linear import NativeProduct
from stratos.engine.layers.native_ops import NativeOps
from stratos.engine.layers.rotary import RopeRows, RotaryTable, StreamingRotary
from stratos.engine.lora.native import NativeAdapters
from stratos.engine.memory.state_slots import StateSlots
from stratos.engine.models.decoder import Decoder, DecoderLayer
from stratos.engine.models.expert_arguments import ExpertArguments, argument_of
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import (
    ACTIVATION_CODES,
    DTYPE_CODES,
    AttentionStep,
    ExpertRows,
    ForwardPass,
    LayerWeights,
    ModelWeights,
)
from stratos.engine.runner.forward import Forward, ForwardResult, LayeredForward
from stratos.engine.runner.step_inputs import StepInputs
from stratos.engine.switches import KernelSwitches

BUFFER_DTYPES = {
    **dict.fromkeys(("cos", "sin", "scores", "weights"), torch.float32),
    **dict.fromkeys(("chosen", "places"), torch.int64),
}
"""Of buffers that are not of the compute type."""


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
    if decoder.has_experts and not switches.whole_step_experts:
        return layered
    linears = [linear for layer in decoder.layers for linear in _products(layer)]
    if decoder.lm_head is not None:
        linears.append(decoder.lm_head)
    if not isinstance(decoder.ops, NativeOps) or not all(isinstance(linear, NativeProduct) for linear in linears):
        return layered
    groups = attention if isinstance(attention, GroupedAttention) else None
    return NativeForward(library, decoder, columns, layered, groups, takes_adapters=switches.whole_step_adapters)


def _products(layer: DecoderLayer) -> Iterator[Linear]:
    """All products of a layer."""
    yield from (layer.qkv, layer.output)
    mixture = layer.mlp if isinstance(layer.mlp, MixtureOfExperts) else None
    for mlp in (layer.mlp,) if isinstance(layer.mlp, GatedMlp) else layer.mlp.all_mlps:
        yield from (mlp.gate_up, mlp.down)
    if mixture is not None:
        yield mixture.router
        if mixture.shared_gate is not None:
            yield mixture.shared_gate


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
    """Every linear layer is a ``NativeProduct``; use ``make_forward``.

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
        self._experts = ExpertArguments(decoder)
        ropes = decoder.rotaries
        self._on_demand = ropes[0] if isinstance(ropes[0], StreamingRotary) else None
        self._tables = tuple((ctypes.c_void_p * len(ropes))() for _ in range(2))
        self._set_tables([rotary for rotary in ropes if isinstance(rotary, RotaryTable)])
        dense = [argument_of(layer.mlp.down).k for layer in decoder.layers if isinstance(layer.mlp, GatedMlp)]
        inner = dense[0] if dense else 0
        self._layers = (LayerWeights * config.num_layers)(
            *(
                _layer(
                    *(layer, window, (0, index) if groups is None else groups.places[index]),
                    self._experts.address(index),
                )
                for index, (layer, window) in enumerate(zip(decoder.layers, config.windows, strict=True))
            )
        )
        self._model = ModelWeights(
            layers=ctypes.addressof(self._layers),
            embedding=decoder.embedding.data_ptr(),
            final_norm=decoder.final_norm.data_ptr(),
            cos=ctypes.addressof(self._tables[0]),
            sin=ctypes.addressof(self._tables[1]),
            head=argument_of(decoder.lm_head),
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
        widest = max(inner, self._experts.max_shared)
        widths = {
            **dict.fromkeys(("residual", "x"), config.hidden_size),
            "wide": max(argument_of(first.qkv).stride, 2 * widest),
            "narrow": max(argument_of(first.output).k, widest),
            **dict.fromkeys(("cos", "sin"), len(ropes) * config.head_dim),
        }
        self._buffers = _Buffers(widths, self._experts, dtype)
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


def _layer(layer: DecoderLayer, window: int | None, place: tuple[int, int], experts: int | None) -> LayerWeights:
    mlp = layer.mlp if isinstance(layer.mlp, GatedMlp) else None
    whole = layer.whole_qk_norm or (None, None)
    return LayerWeights(
        before_attention=_address(layer.before_attention),
        after_attention=_address(layer.after_attention),
        before_mlp=_address(layer.before_mlp),
        after_mlp=_address(layer.after_mlp),
        qk_norm=None if layer.qk_norm is None else layer.qk_norm.weight.data_ptr(),
        whole_q_norm=_address(whole[0]),
        whole_k_norm=_address(whole[1]),
        qkv=argument_of(layer.qkv),
        output=argument_of(layer.output),
        gate_up=argument_of(mlp and mlp.gate_up),
        down=argument_of(mlp and mlp.down),
        experts=experts,
        window=window or 0,
        rope=layer.rope,
        column=place[0],
        place=place[1],
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class _Buffers:
    """Activations of a pass, as large as the largest step so far, and the arguments that point to them.

    Args:
        widths: elements of a token, by the name of the buffer.
        experts: of the model.
        dtype: of activations.
    """

    def __init__(self, widths: dict[str, int], experts: ExpertArguments, dtype: torch.dtype) -> None:
        self._of_experts = {name: width for name, width in experts.widths().items() if width}
        self._widths, self._dtype, self._num_tokens = widths, dtype, 0
        self._tensors: dict[str, Tensor] = {}
        self._experts: dict[str, Tensor] = {}
        self.arguments = ForwardPass()
        for name in ("begins", "active"):
            self._keep(self._experts, self.arguments.experts, name, torch.empty(experts.max_experts + 1).long())

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
            self._keep(self._tensors, self.arguments, name, self._rows(name, width))
        for name, width in self._of_experts.items():
            self._keep(self._experts, self.arguments.experts, name, self._rows(name, width))

    def _rows(self, name: str, width: int) -> Tensor:
        return torch.empty(self._num_tokens, width, dtype=BUFFER_DTYPES.get(name, self._dtype))

    @staticmethod
    def _keep(tensors: dict[str, Tensor], arguments: ForwardPass | ExpertRows, name: str, tensor: Tensor) -> None:
        tensors[name] = tensor
        setattr(arguments, name, tensor.data_ptr())
