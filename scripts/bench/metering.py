#!/usr/bin/env python3
"""Measure what counting for the ledger costs the step loop: whose tokens a step computed, and whose its time was.

    python -m scripts.bench.metering --out benchmarks/results/metering-2core-cpu.json

One engine over the shipped model decodes for as many tenants as it has streams.  Blocks of steps take turns, counted
and not counted, so both see the same machine and the same batch; figures are medians over blocks of the CPU time of the
step thread per step.  A fake runner that computes nothing shows the same against the host's work alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from scripts.bench.harness import MODEL, flag, run_bench, show
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.runner import Runner
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.worker.engine_client.device_time import DeviceTime

PROMPT_TOKENS, BLOCK_STEPS = 16, 20


def _note_nothing(launched: object, shares: object) -> None:
    return


@contextmanager
def uncounted() -> Iterator[None]:
    """Steps that do not note whose tokens they compute."""
    with mock.patch("stratos.engine.step_tracker._share", new=_note_nothing):
        yield


def request_of(number: int, num_tokens: int) -> EngineRequest:
    """One stream of a tenant of its own."""
    return EngineRequest(
        key=RequestKey(f"r{number}", 0),
        prompt_ids=tuple((number * 31 + place) % 4000 for place in range(PROMPT_TOKENS)),
        choices=(ChoiceState(index=0),),
        sampling=SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True),
        seed=number,
        terms=RequestTerms(tenant=f"t{number}"),
    )


def measure(runner: Runner, num_streams: int, num_blocks: int) -> dict[str, Any]:
    """Medians over blocks, in microseconds of CPU per step."""
    core, device = EngineCore(runner, SchedulerConfig(max_num_seqs=num_streams)), DeviceTime()
    for number in range(num_streams):
        core.add(request_of(number, 2 * num_blocks * BLOCK_STEPS + 100))
    for _ in range(50):
        core.step()
    spent: dict[str, list[float]] = {"counted": [], "not counted": []}
    for block in range(2 * num_blocks):
        is_counted = block % 4 in (1, 2)  # A B B A: contexts grow, so that later steps are longer
        spent["counted" if is_counted else "not counted"].append(_block(core, device if is_counted else None))
    counted, plain = (statistics.median(spent[arm]) for arm in ("counted", "not counted"))
    return {"streams": num_streams, "counted_us": round(counted, 1), "not_counted_us": round(plain, 1),
            "ratio": round(counted / plain, 4)}  # fmt: skip


def _block(core: EngineCore, device: DeviceTime | None) -> float:
    began_s = time.thread_time()
    if device is None:
        with uncounted():
            for _ in range(BLOCK_STEPS):
                core.step()
    else:
        for _ in range(BLOCK_STEPS):
            device.on_step(core.step())
    return (time.thread_time() - began_s) / BLOCK_STEPS * 1e6


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Both runners, with few and with many streams."""
    rows = []
    for num_streams in (1, 8, 32, 64):
        config = RunnerConfig(model_path=MODEL, kv_pool_bytes=256 << 20, num_threads=1, max_model_len=2048)
        rows.append({"runner": "shipped model"} | measure(TorchRunner.load(config), num_streams, args.blocks))
        fake = FakeRunner(FakeConfig(num_blocks=8192))
        rows.append({"runner": "fake"} | measure(fake, num_streams, args.blocks))
        show(rows[-2:])
    return {"rows": rows}


if __name__ == "__main__":
    run_bench(__doc__, bench, flag("--blocks", type=int, default=15, help="of each arm"))
