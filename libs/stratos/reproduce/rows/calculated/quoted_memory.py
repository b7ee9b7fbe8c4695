"""Quoted figures of memory: weights, KV of a token and of many, requests that devices hold."""

from __future__ import annotations

from stratos.calculators.formula import Formula
from stratos.calculators.hardware.devices import find_device
from stratos.calculators.memory.gpu_memory import MemoryAsk, estimate_gpu_memory
from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.calculators.published import published_batch_size, published_gpu_memory
from stratos.reproduce.load.lengths import CONTEXT_TOKENS, mean_of_log_normal
from stratos.reproduce.record.answer import ClaimAnswer
from stratos.reproduce.record.claim import QuotedClaim, at_least, between, exactly
from stratos.reproduce.rows.calculated.memory_budget import EQUAL, TYPES
from stratos.reproduce.rows.calculated.quoted import given

KV = Formula("kv_bytes", "users * tokens * 2 * layers * heads * head_dim * element_bytes")
WEIGHTS = Formula("weight_bytes", "parameters * bits / 8")
HELD = Formula("rows", "floor((memory_gb - weights_gb) * 10 ** 9 * share / request_bytes)")
WASTE = Formula("waste_share", "1 - mean_tokens / context_tokens")
LARGE = {"layers": 80, "head_dim": 128, "element_bytes": 2}
"""A model of 70B parameters, with 64 heads and 8 KV heads."""
MIDDLE = {"layers": 40, "heads": 40, "head_dim": 128, "element_bytes": 2}
"""One of 13B."""
SIGMAS = (0.6, 0.8, 0.9, 1.0)
QUOTED_KV = (
    ("llama-3.1-8b", "8B", 1e3, 0.25e9, 8e9),
    ("llama-3.1-70b", "70B", 4e3, 1.28e9, 41e9),
    ("llama-3.1-405b", "405B", 8e3, 2.56e9, 82e9),
    ("mixtral-8x22b", "Mixtral 8x22B", 4e3, 1.28e9, 41e9),
)
"""Claim 1.2: KV of a token, of 4 K and of 128 K."""


def memory_answers() -> list[ClaimAnswer]:
    """All of them, in the order of their kinds."""
    return [*_weights(), *_tokens(), *_table(), *_large_kv(), *_slots(), *_fitting(), *_exercises()]


def _weights() -> list[ClaimAnswer]:
    """By parameters and bits."""
    lines = (("2.1", 7, 16, 14.0), ("2.1", 70, 16, 140.0), ("2.1", 405, 16, 810.0), ("1.9", 70, 4, 8.75))
    return [
        given(exactly(claim, f"weights of {billions}B in {bits} bits: {gb:g} GB", gb * 1e9, "bytes"), WEIGHTS,
              parameters=billions * 10**9, bits=bits)
        for claim, billions, bits, gb in lines
    ]  # fmt: skip


def _tokens() -> list[ClaimAnswer]:
    """KV of one token, by the models' own shapes."""
    found = []
    for model, kib in (("llama-2-7b", 128), ("llama-3.1-70b", 320), ("llama-3.1-405b", 500)):
        claim = exactly("2.1", f"KV of a token, {model}: {kib} KB", kib * 1024)
        found.append(given(claim, "token_bytes", "token_bytes", token_bytes=_token_bytes(model)))
    return found


def _table() -> list[ClaimAnswer]:
    """A table of KV, whose tokens are those of one layer."""
    kv = Formula("kv_bytes", "tokens * token_bytes")
    found = []
    for model, name, *figures in QUOTED_KV:
        for tokens, quoted in zip((1, 4096, 131_072), figures, strict=True):
            text = f"{quoted / 1e9:g} GB" if tokens > 1 else f"{quoted:,.0f} bytes"
            claim = exactly("1.2", f"KV of {tokens:,} tokens of {name}: {text}", quoted, "bytes" * (tokens > 1))
            found.append(given(claim, kv, tokens=tokens, token_bytes=_token_bytes(model)))
    return found


def _token_bytes(model: str) -> float:
    return estimate_kv(find_shape(model), KvAsk())["token_bytes"]


def _large_kv() -> list[ClaimAnswer]:
    """KV of a 70B model, with the heads that each publication gave it."""
    lines = (
        (exactly("1.1", "KV of 4 K tokens of 70B: 1.28 GB", 1.28e9, "bytes"), 1, 4096, 8),
        (exactly("1.1", "KV of 128 K tokens of 70B: 40.96 GB", 40.96e9, "bytes"), 1, 131072, 8),
        (exactly("1.1", "KV of 32 users with 4 K tokens each: 40.96 GB", 40.96e9, "bytes"), 32, 4096, 8),
        (at_least("1.3", "KV of 128 K tokens of 70B exceeds its 140 GB of weights", 140e9, "bytes"), 1, 131072, 8),
        (exactly("1.4", "KV of a prefix of 2 K tokens: 8 MB a user", 8e6, "bytes"), 1, 2000, 8),
        (exactly("3.5", "KV of 32 users with 4 K tokens of 70B: 50 GB", 50e9, "bytes"), 32, 4096, 8),
        (exactly("3.5", "the same by the formula given, over the width: 50 GB", 50e9, "bytes"), 32, 4096, 64),
        (exactly("4.1", "KV of a token of 70B with 64 heads: 2.6 MB", 2.6e6, "bytes"), 1, 1, 64),
        (exactly("4.1", "KV of 4 K tokens: 10.24 GB", 10.24e9, "bytes"), 1, 4096, 64),
        (exactly("4.1", "KV of 32 users with 4 K tokens: 327 GB", 327e9, "bytes"), 32, 4096, 64),
        (exactly("4.1", "the same with the 8 KV heads that the model has: 327 GB", 327e9, "bytes"), 32, 4096, 8),
        (exactly("4.2", "KV of estimate_gpu_memory(70, int4, 32, 2048) with 8 KV heads: 82 GB", 82e9, "bytes"),
         32, 2048, 8),
    )  # fmt: skip
    found = [
        given(claim, KV, users=users, tokens=tokens, heads=heads, **LARGE) for claim, users, tokens, heads in lines
    ]
    for heads in (64, 8):
        claim = exactly("4.1", f"the same beside 140 GB of weights, {heads} KV heads: 467 GB", 467e9, "bytes")
        kv_bytes = KV.of(users=32, tokens=4096, heads=heads, **LARGE)
        found.append(given(claim, "weight_bytes + kv_bytes", "total_bytes", weight_bytes=140e9, kv_bytes=kv_bytes))
    answer = published_gpu_memory(70, 4, 32, 2048, 80, 8192)
    for name, quoted in (("weights_bytes", 35e9), ("total_bytes", 130e9)):
        claim = exactly("4.2", f"{name} of estimate_gpu_memory(70, int4, 32, 2048)", quoted, "bytes")
        found.append(given(claim, name, name, **{name: answer[name]}))
    return found


def _slots() -> list[ClaimAnswer]:
    """Slots of the whole context, and what is empty in them."""
    wasted = Formula("wasted_gb", "requests * request_gb * waste_share")
    means = [
        given(exactly("0.3", f"79.3 % of a slot is wasted; log-normal with this median, sigma {sigma}", 0.793), WASTE,
              mean_tokens=mean_of_log_normal(sigma), context_tokens=CONTEXT_TOKENS)
        for sigma in SIGMAS
    ]  # fmt: skip
    return [
        *means,
        given(exactly("0.3", "53.3 GB of 80 are wasted by 20 requests", 53.3), wasted, requests=20, request_gb=3.36,
              waste_share=0.793),
        given(exactly("0.3", "which is 15 requests more", 15), "floor(wasted_gb / request_gb)", "requests",
              wasted_gb=53.3, request_gb=3.36),
        given(exactly("3.4", "30 requests of 4 K that hold 1 K use 16 GB", 16e9, "bytes"), KV, users=30, tokens=1024,
              layers=32, heads=32, head_dim=128, element_bytes=2),
        given(exactly("3.4", "and 50 of 66 GB are wasted", 50e9, "bytes"), "reserved_bytes - kv_bytes", "wasted_bytes",
              reserved_bytes=66e9, kv_bytes=30 * 1024 * 524_288),
    ]  # fmt: skip


def _fitting() -> list[ClaimAnswer]:
    """Requests and users that devices hold."""
    users = "floor((devices * memory_gb - weights_gb) / request_gb)"
    tokens = Formula("tokens", "(devices * memory_bytes - weight_bytes) / token_bytes")
    large = {"devices": 4, "memory_bytes": 80e9, "weight_bytes": 140e9,
             "token_bytes": KV.of(users=1, tokens=1, heads=8, **LARGE)}  # fmt: skip
    sequence = KV.of(users=1, tokens=2048, heads=8, **LARGE)
    return [
        given(exactly("1.3", "70B in 16 bits on 2 devices: 8 users of 4 K", 8), users, "users", devices=2,
              memory_gb=80, weights_gb=140, request_gb=1.28),
        given(exactly("1.3", "70B in 8 bits on one device with 8 GB left: 6 users of 4 K", 6), users, "users",
              devices=1, memory_gb=8, weights_gb=0, request_gb=1.28),
        given(exactly("2.2", "70B on 4 devices: KV of 560 K tokens", 560e3), tokens, **large),
        given(exactly("2.2", "which are 270 sequences of 2 K", 270), "floor(tokens / 2048)", "sequences",
              tokens=tokens.of(**large)),
        given(exactly("2.3", "1,000 users at 30 tokens/s on replicas of 4,000: 32 devices", 32),
              "ceil(users * user_tokens_per_s / replica_tokens_per_s) * devices", "devices", users=1000,
              user_tokens_per_s=30, replica_tokens_per_s=4000, devices=4),
        given(exactly("3.11", "an A100 with 7B in 4 bits: 34 sequences of 4 K in 73.5 GB", 34), HELD, memory_gb=73.5,
              weights_gb=0, share=1, request_bytes=4096 * 524_288),
        given(between("4.3", "optimal_batch_size(80, 35, 2048): 12-15", 12, 15), "rows", "rows",
              rows=published_batch_size(80, 35, 2048, 80, 8192)),
        given(between("4.3", "the same with the 8 KV heads that the model has: 12-15", 12, 15), HELD, memory_gb=80,
              weights_gb=35, share=0.7, request_bytes=sequence),
    ]  # fmt: skip


def _exercises() -> list[ClaimAnswer]:
    """A 13B model on 80 GB, by the types of weights and KV; the engine's run-time is taken off."""
    shape, device = find_shape("llama-2-13b"), find_device("a100-80")
    request = exactly("3.18", "KV of 4 K tokens of 13B: about 1 GB", 1e9, "bytes")
    found = [given(request, KV, users=1, tokens=4096, **MIDDLE)]
    for weights, kv_dtype in TYPES:
        sheet = estimate_gpu_memory(shape, MemoryAsk(weights=weights, kv_dtype=kv_dtype), device)
        grid = sheet.grids[0]
        held = {row[0]: row[grid.columns.index("sequences")] for row in grid.rows}
        words = f"13B, weights {weights}, KV {kv_dtype}"
        for length, count in held.items():
            claim = QuotedClaim(id="3.15", quoted=f"exercise: {words}, sequences of {length} tokens on 80 GB")
            found.append(given(claim, "sequences", "sequences", sequences=float(count)))
        token_bytes = estimate_kv(shape, KvAsk(weights=weights, kv_dtype=kv_dtype))["token_bytes"]
        equal = QuotedClaim(id="3.15", quoted=f"exercise: {words}, context at which KV is as large as the weights")
        found.append(given(equal, EQUAL, weight_bytes=sheet["weights_bytes"], token_bytes=token_bytes))
        claim = between("3.18", f"10,000 users, 30 % active, 4 K each: 30-60 devices ({words})", 30, 60)
        found.append(given(claim, "ceil(users * active_share / sequences)", "devices", users=10_000,
                           active_share=0.3, sequences=float(held[4096])))  # fmt: skip
    return found
