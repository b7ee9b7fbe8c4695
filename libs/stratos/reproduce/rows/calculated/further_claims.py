"""Claims that no experiment of the other rows is about: recomputed from the inputs that were quoted with them.

A claim without inputs, or of a kind that other documents answer, stands in the table with the place of its answer;
where there is none, the table says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.calculators.formula import Formula, Number
from stratos.calculators.hardware.devices import find_device
from stratos.calculators.hardware.prices import price_lists
from stratos.calculators.memory.gpu_memory import MemoryAsk, estimate_gpu_memory
from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.calculators.published import published_batch_size, published_breakeven, published_cost
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind
from stratos.reproduce.record.claim import QuotedClaim, between, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult

PER_MILLION = Formula("usd_per_million", "devices * usd_per_hour / (tokens_per_s * 3600) * 10 ** 6")
KV = Formula("kv_bytes", "users * tokens * 2 * layers * heads * head_dim * element_bytes")
WEIGHTS = Formula("weight_bytes", "parameters * bits / 8")
LARGE = {"layers": 80, "head_dim": 128, "element_bytes": 2}
"""A model of 70B parameters, with 64 heads and 8 KV heads."""


@dataclass(frozen=True, slots=True)
class AnsweredElsewhere:
    """A claim, and the command, file or test that answers it."""

    claim: str
    subject: str
    place: str


ELSEWHERE = (
    AnsweredElsewhere("1.13", "a start ahead of a known peak avoids 80-90 % of cold starts",
                      "no figure here; a spare takes a place without a start: "
                      "tests/integration/platform/test_spares.py"),
    AnsweredElsewhere("3.10", "prices per hour of seven devices",
                      "the table of price lists in this row; they differ by the publication, not by the device"),
    AnsweredElsewhere("3.16", "exercises: batch 1 to 32, quality, cost by volume, drafts by length",
                      "`stratos reproduce batch-sweep`, `stratos plan breakeven`, row committed-figures"),
    AnsweredElsewhere("3.17", "problems: settings that do not start, a tenfold cost, a quality that fell",
                      "`stratos doctor`, `stratos plan breakeven`, strata of `stratos evaluate`"),
    AnsweredElsewhere("4.7", "efficiency of tensor and pipeline parallelism by link",
                      "no figure here; `stratos plan memory` has the bytes by degree"),
    AnsweredElsewhere("4.16", "marks of an autoscaler, and policies by load, latency and length",
                      "tests/unit/planning/test_pool_planner.py, `stratos reproduce policies`"),
)  # fmt: skip


def measure(_: RowConditions) -> RowResult:
    """All of them; nothing is run."""
    prices = [(name, device, usd) for name, one in price_lists().items() for device, usd in one["usd_per_hour"].items()]
    return RowResult(
        answers=[*_memory(), *_large_kv(), *_fitting(), *_speed(), *_money(), *_shares()],
        tables=[
            ResultTable(
                title="Claims that are answered elsewhere", kind=FigureKind.CALCULATED,
                columns=("claim", "subject", "place"), rows=[(one.claim, one.subject, one.place) for one in ELSEWHERE],
            ),
            ResultTable(
                title="Prices of a device's hour by price list", kind=FigureKind.CALCULATED,
                columns=("price_list", "device", "usd_per_hour"), rows=prices,
            ),
        ],
    )  # fmt: skip


def _given(claim: QuotedClaim, formula: Formula | str, name: str = "", /, **inputs: Number) -> ClaimAnswer:
    """A claim beside a formula with its inputs."""
    used = formula if isinstance(formula, Formula) else Formula(name, formula)
    return ClaimAnswer(claim=claim, recomputed=used(**inputs))


def _memory() -> list[ClaimAnswer]:
    """Weights and KV of one token, by the models' own shapes."""
    found = [
        _given(exactly("2.1", f"weights of {billions}B in 16 bits: {gb} GB", gb * 1e9, "bytes"), WEIGHTS,
               parameters=billions * 10**9, bits=16)
        for billions, gb in ((7, 14), (70, 140), (405, 810))
    ]  # fmt: skip
    for model, kib in (("llama-2-7b", 128), ("llama-3.1-70b", 320), ("llama-3.1-405b", 500)):
        claim = exactly("2.1", f"KV of a token, {model}: {kib} KB", kib * 1024)
        shape = find_shape(model)
        token_bytes = estimate_kv(shape, KvAsk())["token_bytes"]
        found.append(_given(claim, "token_bytes", "token_bytes", token_bytes=token_bytes))
    return found


def _large_kv() -> list[ClaimAnswer]:
    """KV of a 70B model, with the heads that each publication gave it."""
    lines = (
        (exactly("1.1", "KV of 4 K tokens of 70B: 1.28 GB", 1.28e9, "bytes"), 1, 4096, 8),
        (exactly("1.1", "KV of 128 K tokens of 70B: 40.96 GB", 40.96e9, "bytes"), 1, 131072, 8),
        (exactly("3.5", "KV of 32 users with 4 K tokens of 70B: 50 GB", 50e9, "bytes"), 32, 4096, 8),
        (exactly("3.5", "the same by the formula given, over the width: 50 GB", 50e9, "bytes"), 32, 4096, 64),
        (exactly("4.1", "KV of a token of 70B with 64 heads: 2.6 MB", 2.6e6, "bytes"), 1, 1, 64),
        (exactly("4.1", "KV of 32 users with 4 K tokens: 327 GB", 327e9, "bytes"), 32, 4096, 64),
        (exactly("4.1", "the same with the 8 KV heads that the model has: 327 GB", 327e9, "bytes"), 32, 4096, 8),
    )
    return [
        _given(claim, KV, users=users, tokens=tokens, heads=heads, **LARGE) for claim, users, tokens, heads in lines
    ]


def _fitting() -> list[ClaimAnswer]:
    """Requests and users that devices hold."""
    users = "floor((devices * memory_gb - weights_gb) / request_gb)"
    token_bytes = KV.of(users=1, tokens=1, heads=8, **LARGE)
    shape, device = find_shape("llama-2-13b"), find_device("a100-80")
    found = [
        _given(exactly("1.3", "70B in 16 bits on 2 devices: 8 users of 4 K", 8), users, "users", devices=2,
               memory_gb=80, weights_gb=140, request_gb=1.28),
        _given(exactly("1.3", "70B in 8 bits on one device with 8 GB left: 6 users of 4 K", 6), users, "users",
               devices=1, memory_gb=8, weights_gb=0, request_gb=1.28),
        _given(exactly("2.2", "70B on 4 devices: KV of 560 K tokens", 560e3),
               "(devices * memory_bytes - weight_bytes) / token_bytes", "tokens", devices=4, memory_bytes=80e9,
               weight_bytes=140e9, token_bytes=token_bytes),
        _given(exactly("2.3", "1,000 users at 30 tokens/s on replicas of 4,000: 32 devices", 32),
               "ceil(users * user_tokens_per_s / replica_tokens_per_s) * devices", "devices", users=1000,
               user_tokens_per_s=30, replica_tokens_per_s=4000, devices=4),
        _given(between("4.3", "optimal_batch_size(80, 35, 2048): 12-15", 12, 15), "rows", "rows",
               rows=published_batch_size(80, 35, 2048, 80, 8192)),
    ]  # fmt: skip
    for weights, kv_dtype in (("bfloat16", "bfloat16"), ("int4", "int8")):
        grid = estimate_gpu_memory(shape, MemoryAsk(weights=weights, kv_dtype=kv_dtype), device).grids[0]
        held = {row[0]: row[grid.columns.index("sequences")] for row in grid.rows}
        words = f"13B, weights {weights}, KV {kv_dtype}"
        for length, count in held.items():
            claim = QuotedClaim(id="3.15", quoted=f"exercise: {words}, sequences of {length} tokens on 80 GB")
            found.append(_given(claim, "sequences", "sequences", sequences=float(count)))
        claim = between("3.18", f"10,000 users, 30 % active, 4 K each: 30-60 devices ({words})", 30, 60)
        found.append(_given(claim, "ceil(users * active_share / sequences)", "devices", users=10_000,
                            active_share=0.3, sequences=float(held[4096])))  # fmt: skip
    return found


def _speed() -> list[ClaimAnswer]:
    """Tokens per step and devices for a load."""
    return [
        _given(QuotedClaim(id="3.13", quoted="more than 70 % accepted is good: tokens a step with 4 drafted"),
               "(1 - rate ** (drafted + 1)) / (1 - rate)", "tokens_per_step", rate=0.7, drafted=4),
        _given(exactly("4.9", "4 drafted tokens, half accepted: 2 tokens a step", 2),
               "(1 - rate ** (drafted + 1)) / (1 - rate)", "tokens_per_step", rate=0.5, drafted=4),
        _given(exactly("4.14", "100 requests/s of 200 tokens: 2 devices, 2,800 tokens/s each by claim 4.13", 2),
               "ceil(requests_per_s * output_tokens / tokens_per_s)", "devices", requests_per_s=100,
               output_tokens=200, tokens_per_s=2800),
    ]  # fmt: skip


def _money() -> list[ClaimAnswer]:
    """Costs by the prices that were quoted."""
    per_million = (
        ("1.8", "8 devices, TensorRT-LLM: 0.04 USD a million", 0.04, 8, 2.5, 4800),
        ("1.8", "8 devices, vLLM: 0.06 USD a million", 0.06, 8, 2.5, 3400),
        ("1.8", "8 devices, TGI: 0.07 USD a million", 0.07, 8, 2.5, 2900),
        ("1.11", "4 devices on demand at 3,400 tokens/s: 0.82 USD a million", 0.82, 4, 2.5, 3400),
        ("1.11", "the same, reserved: 0.52 USD a million", 0.52, 4, 1.6, 3400),
    )
    api = published_breakeven(10_640, 0.0085, 50)
    cost = published_cost(10_000, 500, 200, 3)
    per_day = "devices * usd_per_hour * 24"
    return [
        *(_given(exactly(claim, text, usd), PER_MILLION, devices=devices, usd_per_hour=price, tokens_per_s=speed)
          for claim, text, usd, devices, price, speed in per_million),
        _given(exactly("3.12", "2 devices at 10,640 USD a month against 0.0085 USD a request: even at 1.25 M", 1.25e6),
               "breakeven_requests", "requests", breakeven_requests=api["breakeven_requests"]),
        _given(exactly("3.12", "50 requests/s, 70 % used by its own code: 130 M requests a month", 130e6),
               "use * requests_per_s * 720 * 3600", "requests", use=0.7, requests_per_s=50),
        _given(exactly("3.12", "the same: 106 times cheaper", 106), "use * times_cheaper", "times_cheaper", use=0.7,
               times_cheaper=api["times_cheaper"]),
        _given(exactly("4.4", "calculate_cost(10000, 500, 200, 3): 20.83 USD a day", 20.83), "usd_per_day",
               "usd_per_day", usd_per_day=cost["usd_per_day"]),
        _given(exactly("4.4", "the same: 4.17 USD a million tokens", 4.17), "usd_per_million", "usd_per_million",
               usd_per_million=cost["usd_per_million"]),
        _given(exactly("4.14", "2 devices at 3 USD an hour: 150 USD a day", 150), per_day, "usd_per_day", devices=2,
               usd_per_hour=3),
        _given(exactly("4.14", "5 + 2 x 4 devices: 1,500 USD a day", 1500), per_day, "usd_per_day", devices=13,
               usd_per_hour=3),
        _given(exactly("4.14", "100 devices, the most: 10,000 USD a day", 10_000), per_day, "usd_per_day",
               devices=100, usd_per_hour=3),
    ]  # fmt: skip


def _shares() -> list[ClaimAnswer]:
    """Ratios of quality, price and speed."""
    return [
        _given(exactly("0.7", "quality of 13B beside 70B: 0.880", 0.880), "(small / large) ** exponent",
               "loss_ratio", small=13, large=70, exponent=0.076),
        _given(exactly("0.7", "price of 70B beside 13B: 5.4, for a lower efficiency", 5.4), "large / small", "ratio",
               small=13, large=70),
        _given(exactly("4.5", "int4 is 4 times cheaper", 4), "usd_16_bits / usd_4_bits", "ratio", usd_16_bits=22.22,
               usd_4_bits=7.41),
        _given(exactly("4.5", "throughput of int4: 150 % of 16 bits", 1.5),
               "(devices_4_bits / usd_4_bits) / (devices_16_bits / usd_16_bits)", "throughput_ratio",
               devices_4_bits=1, usd_4_bits=7.41, devices_16_bits=4, usd_16_bits=22.22),
    ]  # fmt: skip
