"""The benchmark of the ledger in a small form: more entries than Redis may keep, each counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench.ledger import Options, run
from stratos.store.ledger.sealer import SealLimits


@pytest.mark.slow
async def test_a_month_goes_through_a_redis_that_keeps_a_part_of_it(tmp_path: Path) -> None:
    limits = SealLimits(max_unsealed=800, max_lines=500, older_days=2)
    result = await run(Options(num_entries=5000, num_tenants=3, batch=250, limits=limits), tmp_path)
    assert (result["is_exact"], result["problems"], result["dropped"]) == (True, [], 0)
    assert result["segments"] > 5
    assert result["lines"] > 5000, "some were claimed, sealed, and billed later"
    assert max(sample["unsealed"] for sample in result["samples"]) <= 800
