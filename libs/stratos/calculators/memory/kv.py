"""KV cache of sequences of one length: what the engine's blocks take, per device of a parallel group.

With windows in every layer the engine keeps a window, a step and two ends of a sequence.  Where only some layers have
one, an engine on a CPU keeps those of these layers, in pages of some layers each (``engine.contract.kv_groups``); on a
GPU its blocks span all layers and keep everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stratos.calculators.bounds import above_zero, not_below_zero
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.memory.schemes import SCHEMES_HELP, find_scheme, kv_element_bytes
from stratos.calculators.models.shape import ModelShape
from stratos.calculators.published import kv_claims
from stratos.calculators.sheet import Sheet
from stratos.common.errors import BadRequest
from stratos.engine.contract.kv_groups import group_layers
from stratos.engine.settings import SchedulerConfig
from stratos.engine.sizing.case import LEAST_STATE_SLOTS, STATES_PER_PLACE
from stratos.engine.sizing.need import KV_SCALE_BYTES

_TOKEN_LAYER = Formula("token_layer_bytes", "2 * kv_heads * head_dim * element_bytes")
_CODED_LAYER = Formula("token_layer_bytes", "2 * kv_heads * (head_dim * element_bytes + scale_bytes)")
_LATENT_LAYER = Formula("token_layer_bytes", "latent_size * element_bytes")
_TOKEN = Formula("token_bytes", "layers * token_layer_bytes")
_HELD = Formula("held_tokens", "ceil(seq_len / block_size) * block_size")
_WINDOW_HELD = Formula(
    "window_held_tokens", "min(held_tokens, (ceil((window + step_tokens) / block_size) + 2) * block_size)"
)
_SEQUENCE = Formula("sequence_bytes", "held_tokens * token_bytes")
_MIXED = Formula(
    "sequence_bytes", "(held_tokens * full_layers + window_held_tokens * window_layers) * token_layer_bytes"
)
_PAGED = Formula(
    "sequence_bytes",
    "(held_tokens * full_pages + window_held_tokens * window_pages) * page_layers * token_layer_bytes",
)
_STATE = Formula("state_bytes", "state_layers * state_size * 4")
_STATES = Formula("states_bytes", "max(least_slots, slots_per_place * places) * state_bytes")
_TOTAL = Formula("kv_bytes", "batch * sequence_bytes")
_DEVICE_SHARE = Formula(
    "device_sequence_bytes", "sequence_bytes * ceil(kv_heads / tp) / kv_heads * ceil(layers / pp) / layers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAsk:
    """Sequences to keep, and how."""

    weights: Annotated[str, SCHEMES_HELP] = "bfloat16"
    kv_dtype: Annotated[str, "KV: auto (as weights are computed), float32, bfloat16, float16, fp8, int8."] = "auto"
    batch: Annotated[int, "Sequences at once."] = 1
    seq_len: Annotated[int, "Tokens of each sequence, prompt and output."] = 4096
    block_size: Annotated[int, "Tokens of a KV block."] = 16
    on_cpu: Annotated[bool, "An engine on a CPU."] = False
    step_tokens: Annotated[int, "Tokens of a step; 0: the engine's own. Activations and windows follow from it."] = 0
    tp: Annotated[int, "Devices that share each layer (tensor parallel)."] = 1
    pp: Annotated[int, "Stages of layers (pipeline parallel)."] = 1

    def scheduler(self, max_num_seqs: int = 1) -> SchedulerConfig:
        """Bounds of a step on the kind of device."""
        config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=self.step_tokens or None)
        return config.for_device("cpu" if self.on_cpu else "cuda")


def estimate_kv(shape: ModelShape, ask: KvAsk) -> Sheet:
    """KV of ``ask.batch`` sequences.

    Raises:
        BadRequest: a value that makes no sense, by name.
    """
    above_zero(batch=ask.batch, seq_len=ask.seq_len, block_size=ask.block_size, tp=ask.tp, pp=ask.pp)
    not_below_zero(step_tokens=ask.step_tokens)
    element = kv_element_bytes(ask.kv_dtype, find_scheme(ask.weights))
    if shape.latent_size and ask.on_cpu and element == 1:
        raise BadRequest("an engine on a CPU keeps no codes of latent vectors: set it to auto", param="kv_dtype")
    if shape.latent_size:
        layer = _LATENT_LAYER("one latent vector for all heads", latent_size=shape.latent_size, element_bytes=element)
    elif ask.on_cpu and element == 1:
        layer = _CODED_LAYER(
            "an engine on a CPU keeps a scale of every head and token",
            kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, element_bytes=element, scale_bytes=KV_SCALE_BYTES,
        )  # fmt: skip
    else:
        layer = _TOKEN_LAYER(kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, element_bytes=element)
    token = _TOKEN(layers=shape.kv_layers, token_layer_bytes=layer.value)
    held = _HELD(seq_len=ask.seq_len, block_size=ask.block_size)
    sequence = _sequence(shape, ask, held, token, layer)
    total = _TOTAL(batch=ask.batch, sequence_bytes=sequence[-1].value)
    device = _DEVICE_SHARE(
        "the cache of latent vectors is whole on every device of tp" if shape.latent_size else "",
        sequence_bytes=sequence[-1].value, kv_heads=shape.num_kv_heads, layers=shape.num_layers, tp=ask.tp, pp=ask.pp,
    )  # fmt: skip
    parallel = (device,) if ask.tp * ask.pp > 1 else ()
    return Sheet(
        title=f"KV cache of {shape.name} ({shape.source})",
        figures=(layer, token, held, *sequence, total, *parallel, *state_steps(shape, ask.batch)),
        published=kv_claims(shape.name, ask.seq_len, element),
    )


def state_steps(shape: ModelShape, places: int) -> tuple[Figure, ...]:
    """Memory of recurrent states beside KV, whose last step is that of a batch with so many places; none without."""
    if not shape.state_layers:
        return ()
    state = _STATE("in float32", state_layers=shape.state_layers, state_size=shape.state_size)
    why = "rows write two slots by turns, and a snapshot takes one"
    slots = {"least_slots": LEAST_STATE_SLOTS, "slots_per_place": STATES_PER_PLACE, "places": places}
    return state, _STATES(why, **slots, state_bytes=state.value)


def _sequence(shape: ModelShape, ask: KvAsk, held: Figure, token: Figure, layer: Figure) -> tuple[Figure, ...]:
    """Steps whose last one is the bytes of a sequence."""
    sizes = [window for window in shape.windows if window is not None]
    groups = group_layers(shape.windows) if ask.on_cpu else None
    if not sizes or not (shape.max_window or groups):
        return (_SEQUENCE(held_tokens=held.value, token_bytes=token.value),)
    held_by = {"held_tokens": held.value, "window": max(sizes), "block_size": ask.block_size}
    window = _WINDOW_HELD("a window, a step and two ends", step_tokens=ask.scheduler().token_budget, **held_by)
    lengths = {"held_tokens": held.value, "window_held_tokens": window.value}
    if groups is not None:
        pages = {"full_pages": groups.num_full, "window_pages": groups.num_window, "page_layers": groups.num_layers}
        return window, _PAGED(**lengths, **pages, token_layer_bytes=layer.value)
    counts = {"full_layers": len(shape.windows) - len(sizes), "window_layers": len(sizes)}
    return window, _MIXED(**lengths, **counts, token_layer_bytes=layer.value)
