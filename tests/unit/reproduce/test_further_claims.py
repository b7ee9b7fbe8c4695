"""Quoted figures beside their own inputs: the right value of each, and the verdict that follows."""

from __future__ import annotations

import pytest

from scripts.bench.ablation import ABLATIONS
from stratos.reproduce.catalogue import find_row
from stratos.reproduce.record.answer import ClaimAnswer
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.rows.calculated.bottlenecks import BOTTLENECKS, NamedBottleneck
from stratos.reproduce.rows.calculated.further_claims import measure
from tests.support.paths import ROOT

HOLDS, CONTRADICTS, BEYOND = "its inputs give it", "its inputs give another figure", "beyond its bound"
ANSWERS = measure(RowConditions()).answers
RIGHT = (
    ("0.3", "sigma 0.8", 0.725, CONTRADICTS),
    ("0.3", "15 requests more", 15, HOLDS),
    ("0.6", "55 % of the FLOPs", 0.136, BEYOND),
    ("0.6", "at 100% of the bandwidth", 33.2, HOLDS),
    ("0.6", "at 70% of the bandwidth", 47.4, CONTRADICTS),
    ("0.6", "with 1,200 tokens/s", 50, CONTRADICTS),
    ("0.8", "a device's hour", 1.028, CONTRADICTS),
    ("0.9", "340 to 1,200 tokens/s", 0.51e6, CONTRADICTS),
    ("0.9", "margin after", 0.814, HOLDS),
    ("1.1", "32 users", 42.95e9, HOLDS),
    ("1.2", "KV of 1 tokens of Mixtral", 229_376, CONTRADICTS),
    ("1.2", "KV of 131,072 tokens of 405B", 67.65e9, CONTRADICTS),
    ("1.3", "exceeds its 140 GB", 42.95e9, CONTRADICTS),
    ("1.6", "50-70 %", 0.527, HOLDS),
    ("1.8", "4,800 tokens/s", 138_889, CONTRADICTS),
    ("1.9", "in 4 bits", 35e9, CONTRADICTS),
    ("1.9", "the peak of bf16", 66.5, CONTRADICTS),
    ("1.10", "250 K USD", 175_200, CONTRADICTS),
    ("1.12", "at 10 % use", 460.8e6, CONTRADICTS),
    ("2.2", "270 sequences", 268, HOLDS),
    ("3.1", "600 operations", 295, CONTRADICTS),
    ("3.6", "5-10 times", 4.706, BEYOND),
    ("3.12", "106 times cheaper", 72.5, CONTRADICTS),
    ("3.18", "about 1 GB", 3.355e9, CONTRADICTS),
    ("4.1", "64 KV heads: 467", 483.6e9, HOLDS),
    ("4.2", "total_bytes", 274.7e9, CONTRADICTS),
    ("4.3", "8 KV heads", 46, CONTRADICTS),
    ("4.5", "67 % less", 0.667, HOLDS),
    ("4.7", "(NVLink)", 0.944, HOLDS),
    ("4.7", "(PCIe 4)", 0.769, CONTRADICTS),
    ("4.9", "half accepted: 2 tokens", 1.9375, HOLDS),
    ("4.11", "2,800 tokens/s of the same load", 5376, CONTRADICTS),
    ("4.14", "100 requests/s", 8, CONTRADICTS),
    ("4.15", "of 7B is 4 times cheaper", 14, CONTRADICTS),
)


def found(claim: str, words: str) -> ClaimAnswer:
    [answer] = [one for one in ANSWERS if one.claim.id == claim and words in one.claim.quoted]
    return answer


@pytest.mark.parametrize(("claim", "words", "value", "verdict"), RIGHT, ids=lambda part: str(part)[:24])
def test_a_quoted_figure_stands_beside_what_its_inputs_give(claim: str, words: str, value: float, verdict: str) -> None:
    answer = found(claim, words)
    assert answer.recomputed is not None
    assert answer.recomputed.value == pytest.approx(value, rel=0.005)
    assert answer.recomputed.formula, "printed beside the number"
    assert answer.verdict == verdict


def test_no_claim_is_quoted_twice_in_the_same_words() -> None:
    quoted = [(answer.claim.id, answer.claim.quoted) for answer in ANSWERS]
    assert len(set(quoted)) == len(quoted)


@pytest.mark.parametrize("bottleneck", BOTTLENECKS, ids=lambda one: one.switch)
def test_a_bottleneck_names_a_switch_a_row_and_an_ablation_that_exist(bottleneck: NamedBottleneck) -> None:
    settings = (ROOT / "docs" / "configuration-all.md").read_text(encoding="utf-8")
    assert f"| `{bottleneck.switch}` |" in settings
    assert find_row(bottleneck.row)
    assert bottleneck.ablation in {"", *ABLATIONS}
