"""Quoted figures of speed: bounds of memory and arithmetic, tokens of a step, parallelism, Little's law."""

from __future__ import annotations

from stratos.calculators.formula import Formula
from stratos.reproduce.record.answer import ClaimAnswer
from stratos.reproduce.record.claim import QuotedClaim, at_least, at_most, between, exactly
from stratos.reproduce.rows.calculated.quoted import bounded, given

A100 = {"bandwidth_bytes_s": 2.039e12}
STEP = Formula("itl_ms", "1000 * (weight_bytes + rows * tokens * token_bytes) / (bandwidth_bytes_s * mbu)")
DRAFTED = Formula("tokens_per_step", "(1 - rate ** (drafted + 1)) / (1 - rate)")
TENSOR_PARALLEL = Formula(
    "efficiency",
    "memory_ms / (memory_ms + 2 * layers * "
    "(latency_us / 1000 + 2 * (tp - 1) / tp * rows * width * element_bytes / link_gb_s / 10 ** 6))",
)
"""A step's reading against reading and its two sums over all devices in each layer."""
PIPELINE = Formula("efficiency", "batches / (batches + stages - 1)")
LINKS = (("NVLink", 600, 5), ("PCIe 4", 64, 20))
"""GB/s and microseconds, as claim 4.7 has them at the worst."""
PEERS = (("vLLM", 42, 0.85), ("TGI", 38, 0.92), ("TensorRT-LLM", 47, 0.78), ("torch", 12, 2.8))
"""Claim 4.11: requests/s and seconds, batches of 32."""


def speed_answers() -> list[ClaimAnswer]:
    """All of them, in the order of their kinds."""
    return [*_goals(), *_roofs(), *_batches(), *_drafts(), *_parallel(), *_peers()]


def _goals() -> list[ClaimAnswer]:
    """Goals of one publication, against the bandwidth of its own device."""
    middle = {"weight_bytes": 26e9, "token_bytes": 819_200, **A100}
    return [
        bounded(at_least("0.6", "decode at 55 % of the FLOPs: 13B, contexts of 1 K, all that fit", 0.55),
              "rows * 2 * parameters * bandwidth_bytes_s / (weight_bytes + rows * tokens * token_bytes) / peak_flops",
              "mfu", rows=64, parameters=13e9, tokens=1024, peak_flops=312e12, **middle),
        *(given(at_most("0.6", f"60 streams with gaps below 35 ms, at {mbu:.0%} of the bandwidth", 35, "ms"), STEP,
                rows=60, tokens=847, mbu=mbu, **middle) for mbu in (1.0, 0.7)),
        given(at_most("0.6", "the same with 1,200 tokens/s: gaps below 35 ms", 35, "ms"),
              "1000 * streams / tokens_per_s", "itl_ms", streams=60, tokens_per_s=1200),
    ]  # fmt: skip


def _roofs() -> list[ClaimAnswer]:
    """Peaks without sparsity, and what they bound."""
    prefill = Formula("prefill_ms", "1000 * 2 * parameters * tokens / peak_flops")
    return [
        given(exactly("1.9", "an H100 in fp8: 3,958 TFLOPS", 3958), "sparse_tflops / 2", "tflops", sparse_tflops=3958),
        *(given(exactly("1.9", f"4,096 tokens of 8B in about 50 ms, at the peak of {kind}", 50, "ms"), prefill,
                parameters=8.03e9, tokens=4096, peak_flops=peak)
          for kind, peak in (("bf16", 989.4e12), ("fp8", 1978.9e12))),
        given(exactly("3.1", "an H100 has 600 operations a byte", 600), "flops / bandwidth_bytes_s",
              "operations_per_byte", flops=989.4e12, bandwidth_bytes_s=3.35e12),
        given(at_least("4.15", "10,000 tokens/s a device and more: the most of claim 4.12's own table", 10_000),
              "tokens_per_s", "tokens_per_s", tokens_per_s=3200),
    ]  # fmt: skip


def _batches() -> list[ClaimAnswer]:
    """Static batches of unequal outputs."""
    use = Formula("use", "tokens / (rows * longest)")
    three = {"tokens": 710, "rows": 3, "longest": 500}
    return [
        given(between("1.6", "outputs 500, 10, 200: 50-70 % of a static batch is lost", 0.5, 0.7),
              "1 - tokens / (rows * longest)", "lost", **three),
        given(between("1.6", "a static batch uses 30-40 %", 0.3, 0.4), use, **three),
        bounded(between("3.6", "continuous batching gives 5-10 times as much, for 7 x 50 and 1 x 500", 5, 10),
              "rows * longest / tokens", "most_gain", rows=8, longest=500, tokens=850),
    ]  # fmt: skip


def _drafts() -> list[ClaimAnswer]:
    """Tokens of a step that verifies drafts."""
    speedup = Formula("speedup", "tokens_per_step / (1 + drafted * draft_cost)")
    good = DRAFTED.of(rate=0.7, drafted=4)
    return [
        given(QuotedClaim(id="3.13", quoted="more than 70 % accepted is good: tokens a step with 4 drafted"), DRAFTED,
              rate=0.7, drafted=4),
        given(QuotedClaim(id="3.13", quoted="the same: speed-up where a draft costs a tenth of a step"), speedup,
              tokens_per_step=good, drafted=4, draft_cost=0.1),
        given(exactly("4.9", "4 drafted tokens, half accepted: 2 tokens a step", 2), DRAFTED, rate=0.5, drafted=4),
        given(exactly("4.9", "the same: 2x, where a draft costs a tenth of a step", 2), speedup,
              tokens_per_step=DRAFTED.of(rate=0.5, drafted=4), drafted=4, draft_cost=0.1),
    ]  # fmt: skip


def _parallel() -> list[ClaimAnswer]:
    """70B in 16 bits on four devices: 32 rows, weights read at full bandwidth."""
    memory_ms = 1000 * 140e9 / 4 / A100["bandwidth_bytes_s"]
    tensor = [
        given(between("4.7", f"tensor parallelism over 4 devices: 85-95 % ({name})", 0.85, 0.95), TENSOR_PARALLEL,
              memory_ms=memory_ms, layers=80, tp=4, rows=32, width=8192, element_bytes=2, link_gb_s=link,
              latency_us=latency)
        for name, link, latency in LINKS
    ]  # fmt: skip
    pipeline = [
        given(between("4.7", f"pipeline parallelism over 4 stages: 60-75 % ({batches} batches under way)", 0.6, 0.75),
              PIPELINE, batches=batches, stages=4)
        for batches in (4, 8)
    ]  # fmt: skip
    return [*tensor, *pipeline]


def _peers() -> list[ClaimAnswer]:
    """Loads of one publication by Little's law, and against the next table of the same one."""
    return [
        *(given(at_least("4.11", f"{name}: {rate} requests/s, {latency_s * 1000:g} ms, batches of 32: requests under "
                                 "way", 32), "requests_per_s * latency_s", "requests", requests_per_s=rate,
                latency_s=latency_s) for name, rate, latency_s in PEERS),
        given(exactly("4.11", "42 requests/s of 128 tokens; claim 4.12 has 2,800 tokens/s of the same load", 2800),
              "requests_per_s * output_tokens", "tokens_per_s", requests_per_s=42, output_tokens=128),
    ]  # fmt: skip
