"""StreamingLLM on a real platform: sinks and a window, KV handed over, a prompt found again, a worker killed.

Once in float32, and once in bfloat16 by each build of the kernels that this processor runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stratos.engine.native.isa import cpu_flags, supported_sets
from tests.support.paths import BASE_MODEL
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.core_driver import make_core, make_request, run
from tests.support.worlds.platform_process import PlatformProcess, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SIZE = (
    "--gateways",
    "2",
    "--routers",
    "2",
    "--prefill",
    "1",
    "--decode",
    "2",
    "--max-decode",
    "2",
)
STREAMING = {"attention_window": 120, "attention_sinks": 4, "max_stream_len": 9000}
ENV = {
    f"STRATOS_{role}_WORKER_RUNNER__STREAMING__{name.upper()}": str(value)
    for role in ("PREFILL", "DECODE")
    for name, value in STREAMING.items()
} | {"STRATOS_GATEWAY_MODEL__MAX_STREAM_LEN": "9000"}
BUILDS = [("float32", "auto"), *(("bfloat16", isa.name) for isa in supported_sets(cpu_flags()))]
NUM_TOKENS = 300
PROMPTS = [[1 + (kind * 31 + place * (kind + 3)) % 907 for place in range(700)] for kind in range(3)]


@pytest.fixture(params=BUILDS, ids="-".join)
def build(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Type, and instruction set of the kernels."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def platform(tmp_path: Path, build: tuple[str, str]) -> Iterator[PlatformProcess]:
    dtype, isa = build
    env = ENV | {f"STRATOS_{role}_WORKER_RUNNER__NATIVE_ISA": isa for role in ("PREFILL", "DECODE")}
    with running_platform(tmp_path, *SIZE, "--dtype", dtype, env=env) as running:
        yield running


@pytest.fixture
def expected(build: tuple[str, str]) -> list[list[int]]:
    """Greedy tokens of one engine that computes everything itself."""
    runner = {"block_size": 16, "dtype": build[0], "native_isa": build[1], **STREAMING}
    core = make_core(BASE_MODEL, kv_pool_bytes=64 << 20, runner=runner)
    params: dict[str, Any] = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "ignore_eos": True}
    choices = run(core, *(make_request(prompt, str(kind), **params) for kind, prompt in enumerate(PROMPTS))).choices
    return [choices[str(kind), 0].ids for kind in range(len(PROMPTS))]


def ask(platform: PlatformProcess, kind: int) -> tuple[list[int], int]:
    """Token ids of a greedy answer, and how many tokens of its prompt were cached."""
    body: dict[str, Any] = {
        "model": "base", "prompt": PROMPTS[kind], "max_tokens": NUM_TOKENS, "temperature": 0, "return_token_ids": True,
        "ignore_eos": True,
    }  # fmt: skip
    headers = {"authorization": f"Bearer {platform.api_key}"}
    answer = httpx.post(
        f"{platform.base_url}/completions", json=body, headers=headers, timeout=LIMIT_S, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["choices"][0]["token_ids"], told["usage"]["prompt_tokens_details"]["cached_tokens"]


def kill(platform: PlatformProcess, name: str) -> None:
    """A worker dies, and its next process serves."""
    before = platform.processes()[name]["pid"]
    os.kill(before, signal.SIGKILL)

    def is_back() -> bool:
        now = platform.processes().get(name, {})
        if now.get("pid") in (None, before) or not now.get("metrics_address"):
            return False
        try:
            metrics_of(now)
        except httpx.TransportError:  # its address is known before it listens there
            return False
        return len(platform.status()["workers"]) == 3

    wait_until(is_back)


def metrics_of(facts: dict[str, Any]) -> str:
    return httpx.get(f"http://{facts['metrics_address']}/metrics", trust_env=False, timeout=LIMIT_S).text


def handed_over(platform: PlatformProcess) -> float:
    """Hand-offs that decode workers committed."""
    texts = [metrics_of(facts) for name, facts in platform.processes().items() if name.startswith("decode")]
    samples = [s for text in texts for family in text_string_to_metric_families(text) for s in family.samples]
    labels = {"side": "receiver", "outcome": "committed"}
    return sum(s.value for s in samples if s.name == "stratos_kv_handoffs_total" and labels.items() <= s.labels.items())


def test_streams_are_those_of_one_engine_handed_over_found_again_and_after_a_kill(
    platform: PlatformProcess, expected: list[list[int]]
) -> None:
    tokens, num_cached = ask(platform, 0)
    assert (tokens, num_cached) == (expected[0], 0)
    assert handed_over(platform) >= 1

    def is_found() -> bool:
        tokens, num_cached = ask(platform, 0)
        assert tokens == expected[0]
        return num_cached >= 600

    wait_until(is_found, "its prefix is found, once the router has heard of it")

    for name in ("decode-0", "decode-1"):  # one of them has the prompt's KV, and each next process has none
        kill(platform, name)
    before_kill = handed_over(platform)
    assert [ask(platform, kind)[0] for kind in range(3)] == expected
    assert handed_over(platform) > before_kill
