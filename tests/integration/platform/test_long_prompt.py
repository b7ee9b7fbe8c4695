"""One long prompt through the processes of a platform, from a hand-off and from cached KV: tokens of one engine."""

from __future__ import annotations

import pytest

from scripts.bench.long_prompt import measure


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["full", "window", "mixed"])
def test_a_long_prompt_has_the_tokens_of_one_engine(kind: str) -> None:
    """At 6,000 tokens; ``python -m scripts.bench.long_prompt`` has 32,768."""
    row = measure(kind, 6000, 24)
    assert row["equals_one_engine"]
    assert row["num_unlike_tokens"] > 2
    assert (row["cold"]["prefill_path"], row["cold"]["transferred_tokens"]) == ("handoff", 5999)
    assert row["hit"]["prefix_match_tokens"] >= 5984
