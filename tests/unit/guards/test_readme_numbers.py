"""The tables of docs/numbers.md are those of the files that they name, and the README's are rows of them."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_UP, Decimal
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


def rounded(figure: float, places: str) -> str:
    """As a reader of the file rounds it; ``format`` cuts 3.65, which is stored as a little less."""
    return str(Decimal(str(figure)).quantize(Decimal(places), ROUND_HALF_UP))


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


def runs_of(name: str) -> list[dict[str, Any]]:
    """Runs of a document, which has one where it does not list them."""
    found = document(name)
    runs: list[dict[str, Any]] = found.get("runs", [found])
    return runs


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("decode-steps-*.json")))
def test_steps_of_decode(name: str) -> None:
    measured = {row["load"]: row for run in runs_of(name) for row in run["rows"]}
    told, model = set(), ""
    for cell, *figures in tables("decode-steps-")[name]:
        if found := re.match(r"([\d.]+) M in (\w+), ", cell):  # the model of this row and of those below
            model = f"{found[1]}M {found[2]}"
        load = re.search(r"(\d+) streams? at ([\d,]+)", cell)
        assert load, cell
        row = measured[f"{model}, {load[1]} at {load[2].replace(',', '')}"]
        steps = [row[arm]["step_ms"] for arm in ("other", "this")]
        assert figures == [
            *(f"{rounded(step, '0.1')} ms" for step in steps),
            f"{rounded(row['ratio']['step_ms'], '0.01')}x",
        ], cell
        told.add(row["load"])
    assert told == measured.keys()


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("sampling-*-2core-cpu.json")))
def test_time_of_the_sampler(name: str) -> None:
    vocab, rows = document(name)["vocab"], tables("sampling-")[name]
    assert rows
    for case, *cells in rows:
        for size, cell in zip(("32000", "128256"), cells, strict=True):
            us = {arm: f"{value:,.0f}" for arm, value in vocab[size][case]["us_per_row"].items()}
            torch, fastest, *_ = us.values()
            assert cell.partition(" (")[0] == f"{torch} -> {fastest}", (case, size)
            if " (" in cell:
                assert cell.endswith(f" ({us['avx2']})"), (case, size)


def test_sampling_by_turns() -> None:
    name = "turns-sampling-xeon-amx-2core-cpu.json"
    measured = {row["name"]: f"{rounded(row['median'], '0.01')}x" for row in document(name)["rows"]}
    told = {
        f"sampling of {vocab}, {case}": cell
        for case, *cells in tables("turns-")[name]
        for vocab, cell in zip((32000, 128256), cells, strict=True)
    }
    assert told == measured


def attention_rows(name: str) -> dict[tuple[str, ...], dict[str, Any]]:
    return {(row.get("kv") or row["dtype"], row["head"], f"{row['context']:,}"): row for row in document(name)["rows"]}


def heads_filled(rows: list[list[str]]) -> list[list[str]]:
    """Rows whose first cell is that of the row above where it is empty, as the files write it."""
    head = ""
    for row in rows:
        head = row[0].replace(", ", ", group ") or head
        row[0] = head
    return rows


@pytest.mark.parametrize("name", ["attention-epyc-bf16-2core-cpu.json", "attention-xeon-amx-2core-cpu.json"])
def test_speed_of_attention(name: str) -> None:
    measured, rows = attention_rows(name), heads_filled(tables("attention-")[name])
    assert rows
    for head, context, *cells in rows:
        both = [measured[dtype, head, context] for dtype in ("bfloat16", "float32")]
        figures = [row[f"{side}_gb_per_s"] for row in both for side in ("plain", "packed")]
        assert cells == [rounded(figure, "0.1") for figure in figures], (head, context)


def test_speed_of_attention_over_codes() -> None:
    name = "attention-xeon-avx512-bf16-2core-cpu.json"
    tiles, vectors = attention_rows("attention-xeon-amx-2core-cpu.json"), attention_rows(name)
    rows = heads_filled(tables("attention-")[name])
    assert rows
    for head, context, *cells in rows:
        found = [side.get((codes, head, context)) for side in (tiles, vectors) for codes in ("int8", "fp8")]
        assert cells == [f"{rounded(row['speed_of_bfloat16'], '0.01')}x" if row else "" for row in found], (
            head,
            context,
        )


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
