"""The report of two models: a table, and a page whose plots are well formed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from stratos.cli.evaluate.forest import forest_svg
from stratos.cli.evaluate.page import report_page
from stratos.cli.evaluate.table import report_text

MODEL = {"model": "/m/<a>", "quantization": "", "step_weight_bytes": 2e6, "kv_dtype": "float32", "kv_token_bytes": 64}


def loss(stratum: str, verdict: str, low: float | None, high: float | None) -> dict[str, Any]:
    return {
        "stratum": stratum, "measure": "perplexity", "num_samples": 12, "reference": 10.0, "candidate": 12.5,
        "loss": {"value": 0.25, "low": low, "high": high}, "bound": 0.1, "verdict": verdict,
    }  # fmt: skip


REPORT = {
    "verdict": "not acceptable",
    "reference": MODEL,
    "candidate": {**MODEL, "quantization": "int4"},
    "losses": [loss("names & <numbers>", "beyond", 0.2, 0.3), loss("kind: mixed", "open", None, None)],
    "texts": [{"name": "prose", "sha256": "ab" * 32}],
    "window": 256, "num_windows": 9, "num_prompts": 0,
}  # fmt: skip


def test_the_table_says_loss_interval_and_verdict() -> None:
    text = report_text(REPORT)
    assert re.search(r"names & <numbers> +perplexity +12 +10 +12.5 +\+25.00 % +\+20.00 % to \+30.00 % +\+10.00 %", text)
    assert "unknown to unknown" in text
    assert text.endswith("verdict: not acceptable")
    assert "weights floats (2.0 MB a step)" in text


def test_the_page_is_escaped_and_its_plot_well_formed() -> None:
    page = report_page(REPORT)
    assert "<a>" not in page
    assert "names &amp; &lt;numbers&gt;" in page
    root = ET.fromstring(forest_svg(REPORT["losses"], "t"))
    dots = [node for node in root.iter() if node.tag.endswith("circle")]
    assert [dot.get("fill") for dot in dots] == ["#d62728", "#7f7f7f"]
