"""``stratos up --kv-host``: a worker finds in host memory what its small pool gave up, and its metrics add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SIZE = ("--prefill", "0", "--decode", "1", "--max-decode", "1", "--kv-host", "1")
NUM_BLOCKS, BLOCK_BYTES, PROMPT_TOKENS = 64, 16 * 6144, 400
ENV = {
    "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": str(NUM_BLOCKS * BLOCK_BYTES),
    "STRATOS_DECODE_WORKER_SCHEDULER__SWITCHES__SWAP_COSTS": "false",
}
Blocks = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE, *MTLS, env=ENV) as running:
        yield running


def ask(platform: PlatformProcess, kind: int) -> tuple[list[int], int]:
    """Token ids of a greedy answer, and how many tokens of its prompt were cached."""
    body: dict[str, Any] = {
        "model": "base", "prompt": [1 + (kind * 31 + place * (kind + 3)) % 907 for place in range(PROMPT_TOKENS)],
        "max_tokens": 8, "temperature": 0, "return_token_ids": True, "ignore_eos": True,
    }  # fmt: skip
    headers = {"authorization": f"Bearer {platform.api_key}"}
    answer = httpx.post(
        f"{platform.base_url}/completions", json=body, headers=headers, timeout=LIMIT_S, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["choices"][0]["token_ids"], told["usage"]["prompt_tokens_details"]["cached_tokens"]


def blocks(platform: PlatformProcess) -> Blocks:
    """By metric, and state or direction or tier."""
    address = platform.processes()["decode-0"]["metrics_address"]
    text = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=LIMIT_S).text
    found: Blocks = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("stratos_kv_"):
                for label in ("state", "direction", "tier"):
                    if label in sample.labels:
                        key = sample.name.removeprefix("stratos_kv_"), sample.labels[label]
                        found[key] = found.get(key, 0) + sample.value
    return found


def test_metrics_of_both_tiers_are_the_ledgers_of_their_blocks(platform: PlatformProcess) -> None:
    assert "host tier" in platform.output
    assert "1.0 GiB" in next(line for line in platform.output.splitlines() if "host tier" in line)
    answers = [ask(platform, kind) for kind in range(6)]  # each takes 26 of 64 blocks
    assert [cached for _, cached in answers] == [0] * 6
    again = [ask(platform, kind) for kind in range(6)]
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in answers]
    num_cached = sum(cached for _, cached in again)
    assert num_cached >= 6 * 300

    def shows_the_end() -> bool:  # the page is written again from time to time, and copies end after answers
        found = blocks(platform)
        num_in = found["swapped_blocks_total", "in"]
        return not found["host_blocks", "moving"] and num_in >= num_cached / 16 - NUM_BLOCKS

    wait_until(shows_the_end, what="the end of the last copies")
    found = blocks(platform)
    device = {state: found["blocks", state] for state in ("free", "cached", "allocated", "reserved", "fenced")}
    assert sum(device.values()) == NUM_BLOCKS
    host = {state: found["host_blocks", state] for state in ("free", "cached", "held", "moving")}
    assert sum(host.values()) == (1 << 30) // BLOCK_BYTES
    assert (host["held"], host["moving"]) == (0, 0)
    # nothing was evicted from host memory, and nothing was swapped out but cached blocks: each lies there once
    assert found["evicted_blocks_total", "host"] == 0
    assert host["cached"] == found["swapped_blocks_total", "out"] > 100
    assert found["swapped_blocks_total", "out"] <= found["evicted_blocks_total", "device"]
    # what requests found cached was loaded, or was on the device still
    assert 0 < found["swapped_blocks_total", "in"] <= num_cached / 16
    assert num_cached / 16 - found["swapped_blocks_total", "in"] <= NUM_BLOCKS
