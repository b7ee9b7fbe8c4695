"""Memory of an engine: weights as they lie in memory, KV, run-time; and how many sequences a device holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from stratos.calculators.bounds import above_zero, not_below_zero, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.hardware.devices import DeviceSpec
from stratos.calculators.memory.kv import KvAsk, estimate_kv, state_steps
from stratos.calculators.memory.schemes import (
    WeightScheme,
    find_scheme,
    kept_bytes,
    product_bytes,
)
from stratos.calculators.models.known import find_shape
from stratos.calculators.models.shape import ModelShape
from stratos.calculators.published import memory_claims
from stratos.calculators.sheet import Grid, Sheet
from stratos.common.errors import BadRequest
from stratos.engine.settings import RunnerConfig
from stratos.engine.sizing.case import EXPECTED_TOKENS, Room, SizingCase
from stratos.engine.sizing.need import ModelNeed

_COPY = Formula("output_copy_bytes", "vocab_size * hidden_size * element_bytes")
_ROTARY = Formula("rotary_bytes", "2 * num_rotations * max_model_len * head_dim * 4")
_WEIGHTS = Formula("weights_bytes", "product_bytes + kept_bytes + output_copy_bytes + rotary_bytes")
_DRAFT_KV = Formula("draft_kv_bytes", "max_num_seqs * expected_tokens * draft_token_bytes")
_DEVICE_WEIGHTS = Formula(
    "device_weights_bytes",
    "ceil(layers / pp) / layers * (linear_bytes / tp + expert_bytes / ep)"
    " + (kept_bytes + output_copy_bytes) / (tp * min(pp, 2)) + rotary_bytes",
)
_FITTING = Formula("sequences", "floor(pool_bytes / device_sequence_bytes)")
LENGTHS = (4096, 8192, 16384)
RUNTIME = "run-time and activations"
"""Part of the engine's own sizing that is neither weights nor KV."""
SELF = "self"
_STATES = "states_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAsk(KvAsk):
    """An engine on devices."""

    ep: Annotated[int, "Devices that share the routed experts; 0: those of --tp."] = 0
    utilization: Annotated[float, "Share of a device's memory that the engine takes."] = 0.9
    max_num_seqs: Annotated[int, "Sequences in one batch; their logits are activations."] = 64
    runtime_gb: Annotated[float, "Run-time and activations; 0 takes the engine's own figure."] = 0
    draft: Annotated[str, "Model that drafts beside it, as --model; self: its own weights in int4, on a CPU."] = ""


def estimate_gpu_memory(shape: ModelShape, ask: MemoryAsk, device: DeviceSpec | None = None) -> Sheet:
    """Weights, KV and run-time; with a device, the sequences that it holds.

    Raises:
        BadRequest: a value that makes no sense, by name.
    """
    above_zero(max_num_seqs=ask.max_num_seqs)
    not_below_zero(ep=ask.ep, runtime_gb=ask.runtime_gb)
    shares(utilization=ask.utilization)
    if device is not None and ask.on_cpu:
        raise BadRequest("on_cpu: the devices of the table are GPUs; leave one of both out", param="on_cpu")
    scheme, kv = find_scheme(ask.weights), estimate_kv(shape, ask)
    weights = weight_steps(shape, scheme)
    runtime = _runtime(shape, scheme, ask)
    parts = {"weights_bytes": weights[-1].value, "kv_bytes": kv["kv_bytes"], "runtime_bytes": runtime.value}
    more = (*_draft_steps(shape, scheme, ask), *state_steps(shape, ask.max_num_seqs))
    parts |= _fixed_bytes(more)
    total = Formula("total_bytes", " + ".join(parts))(**parts)
    kv_steps = tuple(step for step in kv.figures if step.name in ("token_bytes", "sequence_bytes", "kv_bytes"))
    sheet = Sheet(
        title=f"Memory of {shape.name} ({shape.source})",
        figures=(_parameters(shape), *weights, *kv_steps, *more, runtime, total),
        published=memory_claims(shape, scheme.bits, ask.batch, ask.seq_len),
    )
    return sheet if device is None else _on_device(sheet, shape, ask, device)


def weight_steps(shape: ModelShape, scheme: WeightScheme) -> tuple[Figure, ...]:
    """Bytes of the weights as the engine holds them; the last step is their sum."""
    steps = [product_bytes(scheme, shape.linear, shape.experts), kept_bytes(shape, scheme)]
    if shape.is_tied or scheme.codes_head:
        why = "one table to look rows up, one packed for the product"
        sizes = {"vocab_size": shape.vocab_size, "hidden_size": shape.hidden_size}
        steps.append(_COPY(why, element_bytes=scheme.head_bytes, **sizes))
    else:
        steps.append(Figure("output_copy_bytes", 0, source="the output layer is a table of its own"))
    sizes = {"num_rotations": shape.num_rotations, "max_model_len": shape.max_model_len, "head_dim": shape.head_dim}
    steps.append(_ROTARY("cosines and sines", **sizes))
    return *steps, _WEIGHTS(**{step.name: step.value for step in steps})


def _draft_steps(shape: ModelShape, scheme: WeightScheme, ask: MemoryAsk) -> tuple[Figure, ...]:
    """Weights of a draft model and a pool for a batch of sequences; it counts in float32, and its own copy as it does.

    Raises:
        BadRequest: the model cannot draft for itself.
    """
    if not ask.draft:
        return ()
    drafts, held = shape, replace(find_scheme("int4-g32"), compute=scheme.compute)
    if ask.draft != SELF:
        drafts, held = find_shape(ask.draft), find_scheme("float32")
    elif not ask.on_cpu or scheme.bits <= held.bits:
        raise BadRequest("draft: a model drafts for itself in int4, on a CPU and with larger weights", param="draft")
    weights = Figure("draft_weights_bytes", weight_steps(drafts, held)[-1].value, source=f"{drafts.name}, as above")
    token = estimate_kv(drafts, KvAsk(weights=held.compute))["token_bytes"]
    pool = _DRAFT_KV(max_num_seqs=ask.max_num_seqs, expected_tokens=EXPECTED_TOKENS, draft_token_bytes=token)
    return weights, pool


def _fixed_bytes(steps: tuple[Figure, ...]) -> dict[str, float]:
    """Parts of an engine's memory beside weights, KV and run-time."""
    return {step.name: step.value for step in steps if step.name.startswith("draft_") or step.name == _STATES}


def _parameters(shape: ModelShape) -> Figure:
    chosen = f"; {shape.active_parameters:,} of them multiply a token" if shape.num_experts else ""
    return Figure("parameters", shape.parameters, source=f"counted from the shape{chosen}")


def _runtime(shape: ModelShape, scheme: WeightScheme, ask: MemoryAsk) -> Figure:
    if ask.runtime_gb:
        return Figure("runtime_bytes", int(ask.runtime_gb * 1e9), source="given")
    need = ModelNeed(
        stored_dtype=scheme.compute, num_weights=0, table_bytes=0, kv_elements=0, max_model_len=shape.max_model_len,
        vocab_size=shape.vocab_size, widest=shape.widest, has_window=shape.max_window > 0,
    )  # fmt: skip
    why = f"the engine's own sizing on a {'CPU' if ask.on_cpu else 'GPU'}"
    room, scheduler = Room(is_gpu=not ask.on_cpu, total_bytes=0, free_bytes=0), ask.scheduler(ask.max_num_seqs)
    case = SizingCase(need=need, room=room, config=RunnerConfig(block_size=ask.block_size), scheduler=scheduler)
    return Figure("runtime_bytes", case.fixed_bytes(scheme.compute)[RUNTIME], source=why)


def _on_device(sheet: Sheet, shape: ModelShape, ask: MemoryAsk, device: DeviceSpec) -> Sheet:
    scheme = find_scheme(ask.weights)
    names = ("kept_bytes", "output_copy_bytes", "rotary_bytes")
    weights = _DEVICE_WEIGHTS(
        linear_bytes=product_bytes(scheme, shape.linear).value,
        expert_bytes=product_bytes(scheme, shape.experts).value,
        layers=shape.num_layers, tp=ask.tp, pp=ask.pp, ep=ask.ep or ask.tp, **{name: sheet[name] for name in names},
    )  # fmt: skip
    more = _fixed_bytes(sheet.figures)
    taken = {"device_weights_bytes": weights.value, "runtime_bytes": sheet["runtime_bytes"], **more}
    pool = Formula("pool_bytes", f"max(0, {' - '.join(('memory_bytes * utilization', *taken))})")(
        memory_bytes=device.memory_bytes, utilization=ask.utilization, **taken
    )
    lengths = sorted({*LENGTHS, ask.seq_len})
    rows = tuple((length, *_fitting(shape, ask, length, pool)) for length in lengths)
    fits = _FITTING(pool_bytes=pool.value, device_sequence_bytes=_device_bytes(shape, ask, ask.seq_len))
    return replace(
        sheet,
        figures=(
            *sheet.figures,
            Figure("memory_bytes", device.memory_bytes, source=device.source),
            weights,
            pool,
            fits,
        ),
        grids=(Grid("Sequences that fit, by their length", ("seq_len", "device_gb_each", "sequences"), rows),),
    )


def _fitting(shape: ModelShape, ask: MemoryAsk, length: int, pool: Figure) -> tuple[float, float]:
    each = _device_bytes(shape, ask, length)
    return each / 1e9, _FITTING.of(pool_bytes=pool.value, device_sequence_bytes=each)


def _device_bytes(shape: ModelShape, ask: MemoryAsk, length: int) -> float:
    """KV of a sequence on one device."""
    kv = estimate_kv(shape, replace(ask, seq_len=length))
    return kv["device_sequence_bytes"] if ask.tp * ask.pp > 1 else kv["sequence_bytes"]
