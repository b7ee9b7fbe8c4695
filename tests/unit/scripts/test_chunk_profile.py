"""Shares of a sampled profile."""

from __future__ import annotations

from scripts.bench.chunk_profile import part_of, shares

HTTP = "run (asyncio/base_events.py:604);write (site-packages/stratos_gateway/http/sse.py:12)"
CODEC = f"{HTTP};decode (libs/stratos/rpc/codec/steps.py:9);inner (google/protobuf/x.py:3)"
LOOP = "run (asyncio/base_events.py:604);_run_once (asyncio/base_events.py:1936)"


def test_the_innermost_part_counts_and_what_it_calls_counts_for_it() -> None:
    assert [part_of(stack) for stack in (HTTP, CODEC, LOOP, "x (y.py:1)")] == [
        "gateway/http", "rpc/codec", "library asyncio", "other",
    ]  # fmt: skip


def test_small_shares_are_left_out() -> None:
    root = "<module> (/x/stratos_gateway/__main__.py:24);"
    text = f"{root}{HTTP} 600\n{root}{LOOP} 399\n{root}x (y.py:1) 1\nrun (threading.py:1) 900\n"
    assert shares(text) == {"gateway/http": 60.0, "library asyncio": 39.9}, "a thread that sleeps is in no share"
