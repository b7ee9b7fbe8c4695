"""The tables of docs/numbers.md are those of the files that they name, and the README's are rows of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBERS = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
LINK = r"\]\(\.\./benchmarks/results/({}[a-z0-9-]*\.json)\)"


def tables(prefix: str) -> dict[str, list[list[str]]]:
    """Rows of the first table after each link to a result, as cells."""
    found = {}
    for link in re.finditer(LINK.format(prefix), NUMBERS):
        lines = NUMBERS[link.end() :].splitlines()
        begin = next(index for index, line in enumerate(lines) if line.startswith("|"))
        end = next(index for index in range(begin, len(lines)) if not lines[index].startswith("|"))
        found[link[1]] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[begin + 2 : end]]
    return found


def document(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def of_level(level: dict[str, Any]) -> list[str]:
    is_ttft = level["metric"].endswith("_ms")
    streams, unit = level["streams"], "ms" if is_ttft else "tokens/s"
    load = f"TTFT of {level['prompt_tokens']} tokens" if is_ttft else f"{streams} stream{'s' * (streams > 1)}"
    return [load, *(f"{level[side]:.0f} {unit}" for side in ("ours", "peer")), f"{level['ratio']:.2f}x"]


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("peer-*.json")))
def test_comparisons_with_a_peer(name: str) -> None:
    rows = {row[0].partition(",")[0]: row[1:] for row in tables("peer-")[name]}
    for level in document(name)["summary"]:
        load, *expected = of_level(level)
        assert rows[load] == expected


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("products-*.json")))
def test_shares_of_the_peak(name: str) -> None:
    measured = {(row["kernel"], row["rows"]): row for row in document(name)["rows"] if row["dtype"] == "bfloat16"}
    rows = tables("products-")[name]
    assert rows
    for rows_cell, amx, avx512, onednn, tiles, vectors in rows:
        count = int(rows_cell)
        bytes_ = ((tiles, "amx int8"), (vectors, "amx int8-vectors"))
        for cell, kernel in ((amx, "amx"), (avx512, "avx512-bf16"), *bytes_):
            row = measured[kernel, count]
            assert cell == f"{row['gflops']:.0f} ({row['share_of_peak']:.0%})"
        assert onednn == f"{measured['onednn', count]['gflops']:.0f}"


def test_a_table_is_found_after_its_link() -> None:
    assert {len(row) for rows in tables("peer-").values() for row in rows} == {4}


def test_the_readme_says_the_ratios_of_the_comparison() -> None:
    levels = document("peer-2core-cpu.json")["summary"]
    ratios = {(level["streams"], level["prompt_tokens"]): f"{level['ratio']:.2f}x" for level in levels}
    sentence = README.partition("Against vLLM's CPU build")[2].partition("([machines")[0]
    assert re.findall(r"[\d.]+x", sentence) == [ratios[8, 128], ratios[32, 128], ratios[1, 1024]]


def test_policies_on_real_processes_are_those_of_their_file() -> None:
    (table,) = document("policies-processes-2core-cpu.json")["rows"]["policies-on-processes"]["tables"]
    lines = (ROOT / "docs" / "routing.md").read_text(encoding="utf-8").splitlines()
    for policy, rate, ratio, hits, p50_ms, p99_ms in table["rows"]:
        assert f"| `{policy}` | {rate:.1f} | {ratio:.2f} | {hits:.0%} | {p50_ms:.0f} | {p99_ms:.0f} |" in lines
