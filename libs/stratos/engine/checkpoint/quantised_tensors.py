"""Reads the codes, scales and zeros of one linear layer from the tensors of its format.

A layer ``X`` has, by packing (n outputs, k inputs, g groups):
    plain           X.weight I8 or F8_E4M3 [n, k], X.weight_scale [n, g], [n / block, k / block] or one number;
                    LLM.int8 has X.SCB [n] instead, the sizes that 127 stands for
    compressed-int  X.weight_packed I32 [n, k / codes], lowest bits first; X.weight_shape; zeros I32 [n / 8, g];
                    X.weight_g_idx [k], the group of each input, where groups are no runs (actorder: group)
    mxfp4           X.weight_packed U8 [n, k / 2], lower half first; X.weight_scale U8 [n, k / 32], exponents plus 127
    gptq            X.qweight I32 [k / 8, n], X.qzeros I32 [g, n / 8], X.scales [g, n], X.g_idx [k]
    awq             X.qweight I32 [k, n / 8] and X.qzeros I32 [g, n / 8] in the order 0 2 4 6 1 3 5 7, X.scales [g, n]
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.formats.layer_tensors import LayerTensors
from stratos.engine.checkpoint.formats.nf4 import Nf4Tensors
from stratos.engine.checkpoint.formats.nvfp4 import NvFp4Tensors
from stratos.engine.checkpoint.formats.stored_scheme import StoredScheme
from stratos.engine.checkpoint.quantised_weight import QuantisedWeight, mxfp4_weight
from stratos.engine.checkpoint.stored_tensors import StoredTensor
from stratos.engine.checkpoint.weight_schemes import (
    BYTE_ROWS,
    GROUP_STEP,
    INT4_ZERO,
    MAX_BYTE_INPUTS,
    NAN_EXPONENT,
    LinearScheme,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output of a word that lies at each nibble."""
_SCALES = ("F32", "F16", "BF16")
_WORDS = ("I32",)
_BYTES = {LinearScheme.FP8: ("F8_E4M3",), LinearScheme.INT8: ("I8",), **dict.fromkeys(BYTE_ROWS, ("I8",))}
_ROW_FORMAT = "weight_format"
"""0 where the codes of ``LLM_INT8`` lie row by row."""
_OF_WORDS = ("weight_shape", "weight_g_idx")
_OPTIONAL = {
    "compressed-int4": _OF_WORDS,
    "compressed-int8": _OF_WORDS,
    "plain": ("input_scale", _ROW_FORMAT),
    "gptq": ("g_idx",),
}
Shape = tuple[int, ...]


def layer_tensors(
    layer: str, shape: tuple[int, int], stored: StoredScheme, tensors: Mapping[str, StoredTensor]
) -> LayerTensors:
    """The reader of a layer's format; raises as its constructor does."""
    if stored.scheme == LinearScheme.NF4:
        return Nf4Tensors(layer, shape, stored, tensors)
    kind = NvFp4Tensors if stored.scheme == LinearScheme.NVFP4 else QuantisedTensors
    return kind(layer, shape, stored, tensors)


class QuantisedTensors(LayerTensors):
    """The tensors of one layer of the formats above, as ``LayerTensors`` says."""

    def __init__(
        self, layer: str, shape: tuple[int, int], stored: StoredScheme, tensors: Mapping[str, StoredTensor]
    ) -> None:
        super().__init__(layer, shape, stored, tensors)
        outputs, inputs = shape
        self._group = stored.group or inputs
        if inputs % self._group:
            raise InvalidCheckpoint(f"layer {layer} has {inputs} inputs, which groups of {self._group} do not divide")
        if stored.scheme in BYTE_ROWS:
            if inputs > MAX_BYTE_INPUTS:
                raise InvalidCheckpoint(f"layer {layer} has {inputs} inputs; integer sums hold {MAX_BYTE_INPUTS}")
        elif inputs % GROUP_STEP:
            raise InvalidCheckpoint(f"layer {layer} has {inputs} inputs; supported: multiples of {GROUP_STEP}")
        self.names = frozenset(self._check(outputs, inputs, inputs // self._group))
        if stored.has_order and self._group < inputs:
            self.require("g_idx" if stored.packing == "gptq" else "weight_g_idx", (inputs,), ("I32", "I64"))

    def _check(self, outputs: int, inputs: int, groups: int) -> list[str]:
        packing = self.stored.packing
        if packing in ("gptq", "awq"):
            codes: Shape = (inputs // 8, outputs) if packing == "gptq" else (inputs, outputs // 8)
            wanted: dict[str, tuple[Shape, tuple[str, ...]]] = {
                "qweight": (codes, _WORDS),
                "qzeros": ((groups, outputs // 8), _WORDS),
                "scales": ((groups, outputs), _SCALES),
            }
            if outputs % 8:
                raise InvalidCheckpoint(f"layer {self.layer}: {outputs} outputs do not fill words of 8 codes")
        elif packing == "compressed-mxfp4":
            wanted = {"weight_packed": ((outputs, inputs // 2), ("U8",)), "weight_scale": ((outputs, groups), ("U8",))}
        elif packing == "plain":
            wanted = {"weight": ((outputs, inputs), _BYTES[self.stored.scheme])}
        else:
            per_word = 8 if packing == "compressed-int4" else 4
            wanted = {"weight_packed": ((outputs, inputs // per_word), _WORDS)}
            if self.stored.has_zeros:
                wanted["weight_zero_point"] = ((-(-outputs // 8), groups), _WORDS)
        names = [self.require(suffix, shape, types) for suffix, (shape, types) in wanted.items()]
        if packing not in ("gptq", "awq", "compressed-mxfp4"):
            names.append(self._require_scales(outputs, inputs, groups))
        return names + self.optional(_OPTIONAL.get(packing, ()))

    def _require_scales(self, outputs: int, inputs: int, groups: int) -> str:
        name = f"{self.layer}.{self.stored.scale_name}"
        block = self.stored.block
        shapes: list[Shape] = [(outputs, groups)]
        if block:
            shapes = [(-(-outputs // block), -(-inputs // block))]
        elif groups == 1:
            shapes += [(outputs,), (1,), (), (1, 1)]
        found = self.tensors.get(name)
        if found is not None and found.shape in shapes and found.dtype in _SCALES:
            return name
        return self.require(self.stored.scale_name, shapes[0], _SCALES)

    def read(self) -> QuantisedWeight:
        """The layer's weight.

        Raises:
            InvalidCheckpoint: a scale is no positive number, a zero or an order of inputs is not possible.
        """
        packing = self.stored.packing
        if packing == "plain":
            return self._plain()
        if packing == "gptq":
            return self._gptq()
        if packing == "compressed-mxfp4":
            return self._mxfp4()
        return self._awq() if packing == "awq" else self._compressed()

    def _plain(self) -> QuantisedWeight:
        codes = self.whole("weight").contiguous().view(torch.uint8).clone()
        if self.stored.scheme == LinearScheme.FP8 and bool(((codes & 0x7F) == 0x7F).any()):
            raise InvalidCheckpoint(f"tensor {self.layer}.weight holds NaN")
        if self.optional((_ROW_FORMAT,)) and bool((self.whole(_ROW_FORMAT) != 0).any()):
            raise InvalidCheckpoint(
                f"tensor {self.layer}.{_ROW_FORMAT} states an order of codes other than by rows (0)"
            )
        if self.stored.scheme == LinearScheme.LLM_INT8:
            return QuantisedWeight(scheme=self.stored.scheme, codes=codes, scales=self._sizes(codes))
        return QuantisedWeight(scheme=self.stored.scheme, codes=codes, scales=self._scales())

    def _sizes(self, codes: Tensor) -> Tensor:
        """float32 [outputs, 1]; an output whose weights are all zeros has a size of 0, and codes of 0."""
        sizes = self.whole(self.stored.scale_name).float().reshape(-1, 1).expand(len(codes), -1).contiguous()
        is_zero = (sizes == 0) & (codes == 0).all(1, keepdim=True)
        self._positive(sizes.masked_fill(is_zero, 1.0))
        return sizes

    def _mxfp4(self) -> QuantisedWeight:
        exponents = self.whole("weight_scale")
        if bool((exponents == NAN_EXPONENT).any()):
            raise InvalidCheckpoint(f"tensor {self.layer}.weight_scale holds a scale that is no positive number")
        return mxfp4_weight(self.whole("weight_packed"), exponents)

    def _scales(self) -> Tensor:
        """float32 [outputs, groups] of the layouts that ``_require_scales`` lets through."""
        (outputs, inputs), block = self.shape, self.stored.block
        scales = self._positive(self.whole(self.stored.scale_name))
        if block:
            return scales.repeat_interleave(block, 0)[:outputs].contiguous()
        return scales.reshape(-1, inputs // self._group).expand(outputs, -1).contiguous()

    def _positive(self, scales: Tensor) -> Tensor:
        scales = scales.float()
        if not bool((torch.isfinite(scales) & (scales > 0)).all()):
            name = f"{self.layer}.{self.stored.scale_name}"
            raise InvalidCheckpoint(f"tensor {name} holds a scale that is no positive number")
        return scales

    def _compressed(self) -> QuantisedWeight:
        bits = 4 if self.stored.packing == "compressed-int4" else 8
        codes = _unpacked(self.whole("weight_packed"), bits).reshape(self.shape)
        if bits == 8:
            codes = codes ^ 0x80  # stored with 128 added
        order = self._order("weight_g_idx")
        zeros = None
        if self.stored.has_zeros:
            words = self.whole("weight_zero_point").T
            zeros = _unpacked(words, 4)[:, : self.shape[0]].T.contiguous()
        return QuantisedWeight(
            scheme=self.stored.scheme, codes=_ordered(codes, order), scales=self._scales(), zeros=zeros, order=order
        )

    def _gptq(self) -> QuantisedWeight:
        order = self._order("g_idx")
        codes = _ordered(_unpacked(self.whole("qweight").T, 4), order)
        zeros = _unpacked(self.whole("qzeros"), 4).T
        zeros = zeros + self._zero_offset(zeros)
        scales = self._positive(self.whole("scales")).T.contiguous()
        return QuantisedWeight(
            scheme=LinearScheme.INT4, codes=codes, scales=scales, zeros=_unless_usual(zeros), order=order
        )

    def _zero_offset(self, stored: Tensor) -> int:
        """Offset that the file took off each zero: 1 in v1, 0 in v2; symmetric files tell it by value."""
        if self.stored.zeros_are_less_one is not None:
            return int(self.stored.zeros_are_less_one)
        first = int(stored.flatten()[0])
        if first not in (INT4_ZERO - 1, INT4_ZERO) or not bool((stored == first).all()):
            raise InvalidCheckpoint(
                f"tensor {self.layer}.qzeros of a symmetric model is neither all {INT4_ZERO - 1} (v1) nor all "
                f"{INT4_ZERO} (v2): which zeros are meant?"
            )
        return INT4_ZERO - first

    def _order(self, suffix: str) -> Tensor | None:
        """Inputs group by group, int64 [inputs], where groups are no runs of inputs (desc_act)."""
        name = f"{self.layer}.{suffix}"
        if name not in self.tensors:
            return None
        groups, inputs = self.tensors[name].whole(), self.shape[1]
        count = inputs // self._group
        if groups.shape != (inputs,) or not bool(((groups >= 0) & (groups < count)).all()):
            raise InvalidCheckpoint(f"tensor {name} must name one of {count} groups for each of {inputs} inputs")
        if torch.equal(groups.long(), torch.arange(inputs) // self._group):
            return None
        if not bool((torch.bincount(groups.long(), minlength=count) == self._group).all()):
            raise InvalidCheckpoint(f"tensor {name} has groups of other than {self._group} inputs")
        return torch.argsort(groups.long(), stable=True)

    def _awq(self) -> QuantisedWeight:
        codes = _in_awq_order(_unpacked(self.whole("qweight"), 4)).T.contiguous()
        zeros = _in_awq_order(_unpacked(self.whole("qzeros"), 4)).T
        scales = self._positive(self.whole("scales")).T.contiguous()
        return QuantisedWeight(scheme=LinearScheme.INT4, codes=codes, scales=scales, zeros=_unless_usual(zeros))


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Codes of words of 32 bits, lowest first, along the last axis: uint8."""
    as_bytes = words.contiguous().view(torch.uint8)  # little-endian, as safetensors is
    if bits == 8:
        return as_bytes
    return torch.stack((as_bytes & 0xF, as_bytes >> 4), -1).flatten(-2)


def _in_awq_order(codes: Tensor) -> Tensor:
    places = torch.empty(8, dtype=torch.int64)
    places[torch.tensor(AWQ_ORDER)] = torch.arange(8)
    return codes.view(codes.shape[0], -1, 8)[..., places].flatten(1)


def _ordered(codes: Tensor, order: Tensor | None) -> Tensor:
    return codes.contiguous() if order is None else codes[:, order].contiguous()


def _unless_usual(zeros: Tensor) -> Tensor | None:
    return None if bool((zeros == INT4_ZERO).all()) else zeros.to(torch.uint8).contiguous()
