"""The first work of a worker: real steps, so that nothing is loaded or compiled at a client's cost."""

from __future__ import annotations

import asyncio

from stratos.common.clock import Clock
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.results import StepResult
from stratos.worker.engine_client.base import EngineClient

WARM_UP_KEY = RequestKey("warm-up", 0)
WARM_UP_SALT = b"warm-up"
SECOND_STEP_SHARE = 3
"""The second step is so many times smaller: less than ``OUTLIER_RATIO``."""


async def warm_up_engine(engine: EngineClient, clock: Clock, max_num_batched_tokens: int) -> None:
    """Run the largest step, a smaller one and a real token, or a real vector where the model only embeds.

    They also show how long a step may take, before the first one could count as a hang: the second is large enough
    that the first does not look like a stall of the machine (``SlowSteps``).
    """
    pool_tokens = engine.status().blocks.total * engine.info.geometry.block_size
    wanted = max_num_batched_tokens + -(-max_num_batched_tokens // SECOND_STEP_SHARE)
    num_tokens = max(min(wanted, engine.info.max_model_len - 1, pool_tokens // 2), 1)
    await run_probe(engine, WARM_UP_KEY.request_id, num_tokens, clock.now())


async def run_probe(engine: EngineClient, request_id: str, num_tokens: int, now_s: float) -> None:
    """``add_probe``, and wait for its token or vector; raises what ends it."""
    key, done = RequestKey(request_id, 0), asyncio.get_running_loop().create_future()

    def on_step(result: StepResult) -> None:
        if done.done():
            return
        if key in result.errors:
            done.set_exception(result.errors[key])
        elif key in {o.key for o in result.outputs} | {e.key for e in result.embeddings}:
            done.set_result(None)

    engine.subscribe(on_step)
    try:
        await add_probe(engine, request_id, num_tokens, now_s)
        await done
    finally:
        engine.unsubscribe(on_step)  # a step with nothing of it is not its business


async def add_probe(engine: EngineClient, request_id: str, num_tokens: int, now_s: float) -> None:
    """Have the engine compute a prompt of so many tokens, and a token or, where it only embeds, a vector of it."""
    key = RequestKey(request_id, 0)
    if engine.info.can_generate:
        await engine.add(_generation(key, num_tokens, now_s))
    else:
        await engine.add_embedding(_embedding(key, num_tokens, now_s))


def _generation(key: RequestKey, num_tokens: int, now_s: float) -> EngineRequest:
    return EngineRequest(
        key=key,
        prompt_ids=(0,) * num_tokens,
        choices=(ChoiceState(index=0),),
        sampling=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
        seed=0,
        terms=RequestTerms(cache_salt=WARM_UP_SALT, arrival_s=now_s),
    )


def _embedding(key: RequestKey, num_tokens: int, now_s: float) -> EmbedRequest:
    return EmbedRequest(
        key=key,
        token_ids=(0,) * num_tokens,
        pooling=PoolingKind.LAST,
        terms=RequestTerms(cache_salt=WARM_UP_SALT, arrival_s=now_s),
    )
