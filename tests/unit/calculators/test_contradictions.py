"""Published figures against their own inputs: the values, and that they follow the inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratos.calculators.contradictions import claimed_figures, recompute_claims
from tests.support.paths import ROOT

RECOMPUTED = {
    "requests": 16, "operations_per_byte": 1, "prefix_bytes": 65.5e9, "adapter_share_of_base": 0.005,
    "usd_per_million_replica": 0.2976, "usd_per_million_before": 7.98, "usd_per_million_after": 0.98,
    "saved_usd_per_year": 12.72e6, "token_bytes": 327_680, "int4_bytes": 35e9, "breakeven_tokens": 460.8e6,
    "peak_flops": 989.4e12, "kv_bytes": 171.8e9,
}  # fmt: skip


def test_every_figure_contradicts_its_own_inputs() -> None:
    sheet = recompute_claims()
    assert {f.name: f.value for f in sheet.figures} == pytest.approx(RECOMPUTED, rel=2e-3)
    assert len(sheet.differing()) == len(RECOMPUTED)


def test_six_of_eight_loads_break_littles_law() -> None:
    verdicts = [row[-1] for row in recompute_claims().grids[0].rows]
    assert verdicts.count("impossible") == 6


def test_the_document_says_what_is_computed() -> None:
    """Its sentence is typed; its number is not."""
    before = recompute_claims()["usd_per_million_before"]
    assert f"devices cost {before:.2f}" in (ROOT / "docs" / "economics.md").read_text(encoding="utf-8").replace(
        "\n", " "
    )


def test_another_input_gives_another_figure() -> None:
    before = next(one for one in claimed_figures() if one.claim == "0.8")
    half = replace(before, inputs={**before.inputs, "tokens_per_s": 680})
    assert half.recomputed().value == pytest.approx(before.recomputed().value / 2)
    assert "680" in half.recomputed().numbers
