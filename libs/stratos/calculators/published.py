"""Published answers to the calculators' questions, computed by the code that gave them.

The formulas are those of published designs, with their errors; an id names the claim.  Nothing here is ours: a
calculator shows these answers beside its own where they differ.
"""

from __future__ import annotations

from stratos.calculators.models.shape import ModelShape
from stratos.calculators.sheet import Published

KV_PER_TOKEN = {
    "llama-3.1-8b": ("1.2", 1e3),
    "llama-3.1-70b": ("1.2", 4e3),
    "llama-3.1-405b": ("1.2", 8e3),
    "mixtral-8x22b": ("1.2", 4e3),
}
KV_AT_4K = {"llama-3.1-8b": 0.25e9, "llama-3.1-70b": 1.28e9, "llama-3.1-405b": 2.56e9, "mixtral-8x22b": 1.28e9}
"""A table of KV "per token" and at 4 K tokens of 16-bit caches."""


def published_gpu_memory(
    parameters_b: float, bits: int, batch: int, seq_len: int, layers: int, hidden: int
) -> dict[str, float]:
    """``estimate_gpu_memory``: KV of all query heads, a byte of activations per feature and layer, and 10 %."""
    weights = parameters_b * 1e9 * bits / 8
    kv = 2 * layers * hidden * 2 * batch * seq_len
    activations = layers * hidden * batch * seq_len
    overhead = 0.1 * (weights + kv + activations)
    return {
        "weights_bytes": weights,
        "kv_bytes": kv,
        "activation_bytes": activations,
        "overhead_bytes": overhead,
        "total_bytes": weights + kv + activations + overhead,
    }


def published_batch_size(gpu_gb: float, model_gb: float, seq_len: int, layers: int, hidden: int) -> int:
    """``optimal_batch_size``: 70 % of what the weights leave, by the KV of all query heads."""
    return int((gpu_gb - model_gb) * 1e9 * 0.7 / (2 * layers * hidden * 2 * seq_len))


def published_cost(
    requests_per_day: float, tokens: float, tokens_per_s: float, usd_per_hour: float
) -> dict[str, float]:
    """``calculate_cost``: hours that the tokens take, paid for as if none were idle."""
    usd_per_day = requests_per_day * tokens / tokens_per_s / 3600 * usd_per_hour
    per_million = usd_per_hour / (tokens_per_s * 3600) * 1e6
    return {"usd_per_day": usd_per_day, "usd_per_month": 30 * usd_per_day, "usd_per_million": per_million}


def published_breakeven(
    own_usd_per_month: float, api_usd_per_request: float, requests_per_s: float
) -> dict[str, float]:
    """``calculate_breakeven``: a capacity at full use; the published table left out the 70 % of its own code."""
    capacity = requests_per_s * 30 * 24 * 3600
    return {
        "breakeven_requests": own_usd_per_month / api_usd_per_request,
        "capacity_requests": capacity,
        "times_cheaper": api_usd_per_request * capacity / own_usd_per_month,
    }


def batch_claims(shape: ModelShape, memory_gb: float, weights_gb: float, seq_len: int) -> tuple[Published, ...]:
    """Answer of ``optimal_batch_size`` for this model."""
    value = published_batch_size(memory_gb, weights_gb, seq_len, shape.num_layers, shape.hidden_size)
    call = f"optimal_batch_size({memory_gb:g}, {weights_gb:.4g}, {seq_len})"
    why = "30 % of what the weights leave stays empty, KV counts all query heads, and no time is promised"
    return (Published(claim="4.3", call=call, name="rows", value=value, why=why),)


def kv_claims(model: str, seq_len: int, element_bytes: int) -> tuple[Published, ...]:
    """Claims about this model's KV in 16 bits."""
    if model not in KV_PER_TOKEN or element_bytes != 2:
        return ()
    claim, per_token = KV_PER_TOKEN[model]
    why = "at most the bytes of one layer, called those of a token"
    found = [Published(claim=claim, call=f"KV per token of {model}", name="token_bytes", value=per_token, why=why)]
    if seq_len == 4096:
        value = KV_AT_4K[model]
        found.append(
            Published(claim=claim, call="the same at 4 K", name="sequence_bytes", value=value, why="its table")
        )
    return tuple(found)


def cost_claims(requests: float, tokens: float, tokens_per_s: float, usd_per_hour: float) -> tuple[Published, ...]:
    """Answer of ``calculate_cost`` for these requests."""
    answer = published_cost(requests, tokens, tokens_per_s, usd_per_hour)
    answer["usd_per_million_output"] = answer.pop("usd_per_million")
    call = f"calculate_cost({requests:g}, {tokens:g}, {tokens_per_s:g}, {usd_per_hour:g})"
    why = "no paid hour is idle"
    return tuple(Published(claim="4.4", call=call, name=name, value=value, why=why) for name, value in answer.items())


def breakeven_claims(own_usd: float, api_usd_per_request: float, requests_per_s: float) -> tuple[Published, ...]:
    """Answer of ``calculate_breakeven`` as it was printed."""
    answer = published_breakeven(own_usd, api_usd_per_request, requests_per_s)
    call = f"calculate_breakeven at {requests_per_s:g} requests/s"
    why = "the table has every second of the month used"
    return tuple(Published(claim="3.12", call=call, name=name, value=value, why=why) for name, value in answer.items())


def memory_claims(shape: ModelShape, bits: int, batch: int, seq_len: int) -> tuple[Published, ...]:
    """Answer of ``estimate_gpu_memory`` for this model."""
    billions = shape.parameters / 1e9
    answer = published_gpu_memory(billions, bits, batch, seq_len, shape.num_layers, shape.hidden_size)
    call = f"estimate_gpu_memory({billions:.4g}, {bits} bits, {batch}, {seq_len})"
    reasons = {
        "weights_bytes": "tables in the compute type, scales, packed copy and rotary tables are left out",
        "kv_bytes": "a head of KV for each query head, and no blocks or windows",
        "total_bytes": "the KV above, 25 % of it as activations, and 10 % of all",
    }
    return tuple(
        Published(claim="4.2", call=call, name=name, value=answer[name], why=why) for name, why in reasons.items()
    )
