"""Published figures against their own inputs: each computed again by one formula, so that nothing is typed twice.

``stratos plan claims`` prints them.  A row has the inputs that were quoted with the figure; where the figure is a bound
("exceeds 47 M"), it stands for the least value that would make the sentence true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratos.calculators.formula import Figure, Formula, Number
from stratos.calculators.models.known import find_shape
from stratos.calculators.sheet import Grid, Published, Sheet

_OWN_COST = "usd_per_month / (devices * 720) / (tokens_per_s * 3600) * 10 ** 6"
_LITTLE = Formula("latency_s", "rows * output_tokens / tokens_per_s")


@dataclass(frozen=True, slots=True)
class ClaimedFigure:
    """A figure, the formula that its own inputs need, and those inputs."""

    claim: str
    text: str
    name: str
    value: Number
    formula: str
    inputs: Mapping[str, Number]
    why: str

    def recomputed(self) -> Figure:
        return Formula(self.name, self.formula)(self.text, **self.inputs)


@dataclass(frozen=True, slots=True)
class ClaimedLoad:
    """A row of a table of throughput and latency."""

    model: str
    rows: int
    output_tokens: int
    tokens_per_s: float
    latency_s: float


LOADS = (
    ClaimedLoad("7B", 64, 128, 3200, 0.45),
    ClaimedLoad("7B", 32, 128, 2800, 0.68),
    ClaimedLoad("7B", 16, 256, 2400, 1.2),
    ClaimedLoad("7B", 8, 512, 2000, 2.5),
    ClaimedLoad("70B on 4", 32, 128, 800, 1.2),
    ClaimedLoad("70B on 4", 16, 128, 650, 1.8),
    ClaimedLoad("70B on 4", 8, 256, 550, 3.0),
    ClaimedLoad("70B on 4", 4, 512, 400, 5.5),
)
"""Claim 4.12."""


def claimed_figures() -> tuple[ClaimedFigure, ...]:
    """All of them, in the order of their ids."""
    llama = find_shape("llama-3.1-70b")
    heads = {"layers": llama.num_layers, "head_dim": llama.head_dim, "element_bytes": 2}
    return (
        ClaimedFigure(
            "0.2", "requests of 3.36 GB that 80 GB hold beside 26 GB of weights", "requests", 20,
            "floor((memory_gb - weights_gb) / request_gb)", {"memory_gb": 80, "weights_gb": 26, "request_gb": 3.36},
            "before any run-time",
        ),
        ClaimedFigure(
            "0.5", "decode of one token is bound by compute, at 2,560 operations a byte", "operations_per_byte", 2560,
            "2 * width ** 2 / (2 * width ** 2)", {"width": 5120}, "a weight of two bytes is read for two operations",
        ),
        ClaimedFigure(
            "0.8", "256 devices for 1.8 M USD a month at 340 tokens/s", "usd_per_million_before", 0.84, _OWN_COST,
            {"usd_per_month": 1.8e6, "devices": 256, "tokens_per_s": 340}, "what the same page pays and serves",
        ),
        ClaimedFigure(
            "0.9", "the same for 0.78 M USD at 1,200 tokens/s", "usd_per_million_after", 0.24, _OWN_COST,
            {"usd_per_month": 0.78e6, "devices": 256, "tokens_per_s": 1200}, "what the same page pays and serves",
        ),
        ClaimedFigure(
            "0.10", "1.06 M USD saved a month exceed 47 M raised", "saved_usd_per_year", 47e6,
            "12 * saved_usd_per_month", {"saved_usd_per_month": 1.06e6}, "a year's savings are less than was raised",
        ),
        ClaimedFigure(
            "1.2", "KV of a token of a 70B model with 8 KV heads", "token_bytes", 4000,
            "2 * layers * kv_heads * head_dim * element_bytes", {**heads, "kv_heads": 8}, "one layer, called a token",
        ),
        ClaimedFigure(
            "1.4", "KV of a prefix of 2 K tokens, held by each of 100 users of a 70B model", "prefix_bytes", 800e6,
            "users * prompt_tokens * 2 * layers * kv_heads * head_dim * element_bytes",
            {**heads, "kv_heads": 8, "users": 100, "prompt_tokens": 2000}, "one layer again",
        ),
        ClaimedFigure(
            "1.9", "70B parameters in 4 bits", "int4_bytes", 17.5e9, "parameters * bits / 8",
            {"parameters": 70e9, "bits": 4}, "two bits a parameter; scales come on top",
        ),
        ClaimedFigure(
            "1.10", "an adapter of 700 MB, at least 1 % of a 70B base in 16 bits", "adapter_share_of_base", 0.01,
            "adapter_bytes / (parameters * 2)", {"adapter_bytes": 700e6, "parameters": 70e9}, "half of that",
        ),
        ClaimedFigure(
            "1.12", "break-even of 4 devices at 1.60 USD against 10 USD a million", "breakeven_tokens", 0.46e6,
            "devices * usd_per_hour * 720 / api_usd_per_million * 10 ** 6",
            {"devices": 4, "usd_per_hour": 1.60, "api_usd_per_million": 10}, "a thousandth of it",
        ),
        ClaimedFigure(
            "3.1", "peak of an H100 in 16 bits", "peak_flops", 1979e12, "sparse_flops / 2",
            {"sparse_flops": 1979e12}, "the datasheet counts zeros that no language model has",
        ),
        ClaimedFigure(
            "4.2", "KV of estimate_gpu_memory(70, int4, 32, 2048), as its code has it", "kv_bytes", 82e9,
            "2 * layers * heads * head_dim * element_bytes * batch * seq_len",
            {**heads, "heads": llama.num_heads, "batch": 32, "seq_len": 2048}, "printed, not what the code returns",
        ),
        ClaimedFigure(
            "4.13", "one replica at 3 USD an hour and 2,800 tokens/s", "usd_per_million_replica", 3.75,
            "usd_per_hour / (tokens_per_s * 3600) * 10 ** 6", {"usd_per_hour": 3, "tokens_per_s": 2800},
            "what its own price and speed give",
        ),
    )  # fmt: skip


def recompute_claims() -> Sheet:
    """Every figure beside its own inputs, and the loads that break Little's law."""
    claimed = claimed_figures()
    rows = []
    for load in LOADS:
        needed = _LITTLE.of(rows=load.rows, output_tokens=load.output_tokens, tokens_per_s=load.tokens_per_s)
        verdict = "possible" if needed <= load.latency_s else "impossible"
        rows.append((load.model, load.rows, load.output_tokens, load.tokens_per_s, load.latency_s, needed, verdict))
    columns = ("model", "rows", "output_tokens", "tokens_per_s", "claimed_s", "least_s", "verdict")
    return Sheet(
        title="Published figures, computed from their own inputs",
        figures=tuple(one.recomputed() for one in claimed),
        grids=(Grid(f"Claim 4.12 by Little's law: {_LITTLE.text}", columns, tuple(rows)),),
        published=tuple(
            Published(claim=one.claim, call=one.text, name=one.name, value=one.value, why=one.why) for one in claimed
        ),
    )
