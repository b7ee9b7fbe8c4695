"""Steps without a thread: the fake engine's tokens, after the time that the cost model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratos.common.clock import SystemClock
from stratos.common.errors import WorkerLost
from stratos.core.kv import KvRange
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.results import StepResult
from stratos.engine.fake.runner import FakeConfig, fake_generate
from stratos.engine.settings import SchedulerConfig
from stratos.kv_transfer.registry import port_transports
from stratos.kv_transfer.settings import TransportConfig
from stratos.sim.runner import StepCosts
from stratos.worker.simulated.engine import SimulatedEngine
from tests.support.kv.port_ends import STAGING, write_kv
from tests.support.waiting import eventually
from tests.support.worlds.terms import make_terms

PROMPT, NUM_TOKENS = tuple(range(40)), 5
STEP_S = 0.02


def make_engine(config: FakeConfig | None = None, **costs: float) -> SimulatedEngine:
    all_costs = StepCosts(**{"step_s": STEP_S, "prompt_token_s": 0.0, "sequence_s": 0.0, **costs})
    return SimulatedEngine(config or FakeConfig(), all_costs, SchedulerConfig(), SystemClock())


def request(name: str = "r") -> EngineRequest:
    return EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=PROMPT,
        choices=(ChoiceState(index=0),),
        sampling=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True),
        seed=0,
        terms=make_terms(),
    )


async def test_tokens_are_the_fake_engines_and_steps_take_their_time() -> None:
    engine, tokens, clock = make_engine(), list[int](), SystemClock()
    engine.subscribe(lambda result: [tokens.extend(output.token_ids) for output in result.outputs])
    await engine.start()
    began = clock.now()
    await engine.add(request())
    await eventually(lambda: len(tokens) == NUM_TOKENS)
    assert tokens == fake_generate(PROMPT, NUM_TOKENS, prefill_weight=1, decode_weight=1)
    assert clock.now() - began >= NUM_TOKENS * STEP_S
    assert engine.status().slow_step_s >= 0.99 * STEP_S  # what the engine's own clock says
    await eventually(lambda: not engine.status().is_computing)
    await engine.close()


async def test_kv_is_written_through_its_data_port(tmp_path: Path) -> None:
    config = TransportConfig(names=("shm",), shm_directory=tmp_path / "shm", staging=STAGING)
    costs = StepCosts(step_s=0.0, prompt_token_s=0.0, sequence_s=0.0)
    engine = SimulatedEngine(FakeConfig(), costs, SchedulerConfig(), SystemClock(), lambda _: port_transports(config))
    await engine.start()
    assert await engine.reserve(request()) is not None
    kv_range = KvRange(0, len(PROMPT) - 1, 0, 1)
    await write_kv(engine.data_port, tmp_path / "shm", request().key, kv_range, bytes(8 * kv_range.num_cells))
    await engine.commit(request().key)
    with pytest.raises(KeyError):
        await engine.data_port.gather("shm", "unknown", kv_range)
    await engine.close()
    assert not list((tmp_path / "shm").iterdir())


async def test_a_prompt_takes_longer_than_a_token() -> None:
    engine, clock, times = make_engine(step_s=0.0, prompt_token_s=0.002), SystemClock(), list[float]()
    engine.subscribe(lambda _: times.append(clock.now()))
    await engine.start()
    began = clock.now()
    await engine.add(request())
    await eventually(lambda: len(times) == NUM_TOKENS)
    assert times[0] - began >= len(PROMPT) * 0.002
    await engine.close()


async def test_many_engines_share_the_thread_of_the_loop() -> None:
    engines, ended = [make_engine() for _ in range(50)], list[StepResult]()

    def count(result: StepResult) -> None:
        ended.extend([result] * sum(bool(output.finish_reason) for output in result.outputs))

    for index, engine in enumerate(engines):
        engine.subscribe(count)
        await engine.start()
        await engine.add(request(f"r{index}"))
    await eventually(lambda: len(ended) == 50)
    for engine in engines:
        await engine.close()


async def test_what_kills_the_step_loop_is_told() -> None:
    engine = make_engine(FakeConfig(fail_at_step=1))
    await engine.start()
    await engine.add(request())
    with pytest.raises(RuntimeError, match="told to fail"):
        await engine.wait_failed()
    with pytest.raises(WorkerLost):
        await engine.add(request("other"))


@pytest.mark.parametrize("method", ["add", "match"])
async def test_a_closed_engine_refuses(method: str) -> None:
    engine = make_engine()
    await engine.start()
    await engine.close()
    arguments: dict[str, tuple[Any, ...]] = {"add": (request(),), "match": (PROMPT, "", b"")}
    with pytest.raises(WorkerLost):
        await getattr(engine, method)(*arguments[method])
