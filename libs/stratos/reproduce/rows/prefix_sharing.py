"""One prefix of 2,000 tokens in the prompts of 100 users: KV with and without sharing it, and what a hit saves.

Blocks are counted on the real block manager in the simulator, in bytes of a 70B model with 8 KV heads.  The first
request computes the prefix, the others come when it is there, and all of them run at the same time.
"""

from __future__ import annotations

import statistics
from random import Random

from stratos.calculators.formula import Formula
from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.engine.contract.results import EngineStatus
from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import SchedulerSwitches
from stratos.reproduce.load.asks import FIRST_TOKEN, LoadAsk
from stratos.reproduce.load.loaded import LoadedModel, load_model
from stratos.reproduce.load.virtual import BLOCK_SIZE, VirtualEngine, run_virtual
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_least, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult

PREFIX_TOKENS, OWN_TOKENS, VOCABULARY = 2000, 16, 4096
SWITCHES = {"kept apart": SchedulerSwitches(prefix_cache=False), "shared": SchedulerSwitches()}
APART = Formula("prefix_bytes", "users * prefix_tokens * token_bytes")
SHARED = Formula("shared_prefix_bytes", "prefix_tokens * token_bytes")
SAVED = Formula("saved_share", "1 - 1 / users")


def measure(conditions: RowConditions) -> RowResult:
    """Blocks of all users, and the first token of one."""
    users, num_output, repeats = conditions.sized(smoke=(8, 24, 1), short=(100, 160, 5), full=(100, 160, 15))
    token_bytes = int(estimate_kv(find_shape("llama-3.1-70b"), KvAsk())["token_bytes"])
    held = {
        name: _most_blocks(switches, users, num_output, conditions.seed) * BLOCK_SIZE * token_bytes
        for name, switches in SWITCHES.items()
    }
    model = load_model(conditions)
    ttft_ms = {name: _ttft_ms(model, switches, repeats, conditions.seed) for name, switches in SWITCHES.items()}
    inputs = {"prefix_tokens": PREFIX_TOKENS, "token_bytes": token_bytes}
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=exactly("1.4", "a prefix of 2 K tokens for 100 users: 800 MB", 800e6, "bytes"),
                recomputed=APART(users=100, **inputs),
                own=OwnFigure(
                    name="apart_bytes", value=held["kept apart"], kind=FigureKind.SIMULATED,
                    how=f"{users} users, their own tokens and whole blocks included",
                ),
            ),
            ClaimAnswer(
                claim=exactly("1.4", "shared: about 10 MB", 10e6, "bytes"),
                recomputed=SHARED(**inputs),
                own=OwnFigure(name="shared_bytes", value=held["shared"], kind=FigureKind.SIMULATED, how="the same"),
            ),
            ClaimAnswer(
                claim=at_least("1.4", "99 % saved", 0.99),
                recomputed=SAVED(users=100),
                own=OwnFigure(
                    name="saved_share", value=1 - held["shared"] / held["kept apart"], kind=FigureKind.SIMULATED,
                    how="the same",
                ),
            ),
            ClaimAnswer(
                claim=exactly("1.7", "a hit saves about 50 ms for 2,000 tokens", 50, "ms"),
                own=OwnFigure(
                    name="saved_ms", value=ttft_ms["kept apart"] - ttft_ms["shared"], kind=FigureKind.MEASURED,
                    how=model.name,
                ),
            ),
        ],
        tables=[
            ResultTable(
                title=f"KV of {users} users at once", kind=FigureKind.SIMULATED, columns=("prefix", "kv_gb"),
                rows=[(name, count / 1e9) for name, count in held.items()],
            ),
            ResultTable(
                title=f"First token behind a prefix of {PREFIX_TOKENS} tokens: {model.name}", kind=FigureKind.MEASURED,
                columns=("prefix", "ttft_ms"), rows=list(ttft_ms.items()),
            ),
        ],
        notes=["What users ask and get themselves is not shared, so less is saved than of the prefix alone."],
    )  # fmt: skip


def _most_blocks(switches: SchedulerSwitches, users: int, num_output: int, seed: int) -> int:
    rng = Random(seed)
    prefix = _tokens(rng, PREFIX_TOKENS)
    asks = [
        LoadAsk(
            num_prompt_tokens=0, num_output_tokens=num_output, arrival_s=0.0 if number == 0 else 1.0,
            prompt_ids=prefix + _tokens(rng, OWN_TOKENS),
        )
        for number in range(users)
    ]  # fmt: skip
    most = 0

    def note(_: float, status: EngineStatus) -> None:
        nonlocal most
        most = max(most, status.blocks.allocated)

    scheduler = SchedulerConfig(
        max_num_seqs=256, max_num_batched_tokens=8192, step_time_budget_ms=0.0, kv_watermark=1.0, switches=switches
    )
    run_virtual(VirtualEngine(scheduler=scheduler), asks, seed=seed, on_step=note)
    return most


def _ttft_ms(model: LoadedModel, switches: SchedulerSwitches, repeats: int, seed: int) -> float:
    """Median of requests one after another; the first one, which finds nothing cached, does not count."""
    rng = Random(seed)
    prefix, engine = _tokens(rng, PREFIX_TOKENS), model.engine(SchedulerConfig(switches=switches))
    times_ms = []
    for _ in range(repeats + 1):
        ask = LoadAsk(num_prompt_tokens=0, num_output_tokens=1, prompt_ids=prefix + _tokens(rng, OWN_TOKENS))
        times_ms.append(1e3 * model.run_on(engine, [ask], seed=seed).outcomes[0].ttft_s)
    return statistics.median(times_ms[1:])


def _tokens(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(count))
