"""What a comparison with a peer says of CPU time."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.bench.compare import Side, summary

LEVEL = (1, 6, 128, 64)


def row(peers_cpu_s: float | None) -> dict[str, Any]:
    return {
        "level": LEVEL,
        "ours": {"output_tokens_per_s": 20.0, "cpu_s": 2.0},
        "peer": {"output_tokens_per_s": 10.0, "cpu_s": peers_cpu_s},
    }


@pytest.mark.parametrize(("peers_cpu_s", "expected"), [(3.0, 1.5), (None, None)])
def test_the_cpu_time_of_a_peer_that_was_not_started_here_is_not_known(
    peers_cpu_s: float | None, expected: float | None
) -> None:
    assert summary([row(peers_cpu_s)], [LEVEL])[0]["peers_cpu_of_ours"] == expected
    assert Side("http://127.0.0.1:1/v1", "none", "m").cpu_s() is None
