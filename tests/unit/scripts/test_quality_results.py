"""The committed figures of quality: bounds that schemes are held to, and the document that shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from scripts.bench.quality import AT_LOAD, BOUNDS, GROUPS, plot, table
from scripts.bench.stored_models import BLOCKS, NVFP4
from stratos.engine.checkpoint.gguf.blocks import as_floats
from stratos.quantise.schemes import SCHEMES
from tests.support.paths import ROOT
from tests.support.reference.gguf_models import ROUNDED

RESULTS: dict[str, Any] = json.loads((ROOT / "benchmarks/results/quality-2core-cpu.json").read_text())
ROWS = RESULTS["rows"]
LOSSES = {(row["scheme"], row["group"]): row["loss"] for row in ROWS}


def test_every_scheme_is_measured_and_within_its_bound() -> None:
    assert {row["scheme"] for row in ROWS} >= {*SCHEMES, *BOUNDS, *AT_LOAD, NVFP4}
    assert {row["name"] for row in ROWS} >= {f"GGUF {blocks}" for blocks in BLOCKS}
    assert {row["scheme"]: row["bound"] for row in ROWS if row["bound"] is not None} == BOUNDS
    assert all(row["loss"] <= row["bound"] for row in ROWS if row["bound"] is not None)


def test_calibrated_weights_lose_less_than_the_nearest_numbers_of_as_many_bits() -> None:
    for group in GROUPS:
        assert LOSSES["int4-gptq", group] < LOSSES["int4-rtn", group]
        assert LOSSES["int4-awq", group] < LOSSES["int4-rtn", group]


def test_text_of_another_kind_is_worse_beyond_chance() -> None:
    by_text = {row["calibration"]: row for row in RESULTS["calibration_sweep"] if row["sequences"] == 128}
    assert by_text["headers"]["interval"]["prose"][0] > by_text["prose"]["interval"]["prose"][1]


def test_the_document_shows_these_figures() -> None:
    assert table(ROWS) in (ROOT / "docs/quantisation.md").read_text()
    assert plot(ROWS) + "\n" == (ROOT / "docs/pictures/quality.svg").read_text()


@pytest.mark.parametrize(
    ("blocks", "most"), [("Q4_0", 0.1), ("Q4_K", 0.09), ("Q5_K", 0.045), ("Q6_K", 0.022), ("Q8_0", 0.006)]
)
def test_blocks_of_the_table_stand_for_what_was_rounded(blocks: str, most: float) -> None:
    weight = torch.randn(8, 512, generator=torch.Generator().manual_seed(0))
    error = as_floats(blocks, ROUNDED[blocks](weight).flatten(0, 1)).view(weight.shape) - weight
    assert error.norm() < most * weight.norm()
