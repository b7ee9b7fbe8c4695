"""No number of a table in the documents is nowhere in the file of results that is linked above it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

LINK = re.compile(r"\]\((?:\.\./)?benchmarks/results/([a-z0-9-]+\.json)\)")
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
MADE = "<!-- reproduced claims -->"
"""What follows it is written by a script."""
SCALES = (1, 100, 1000, 1e-3, 1e-6)
"""As in the file; percent; ms of seconds, and the other way; MB."""
BESIDE = {
    "attention-xeon-avx512-bf16-2core-cpu.json", "speculation-k-2core-cpu.json", "tool-cost-2core-cpu.json",
    "speculation-32-streams-xeon-amx-2core-cpu.json", "idle-xeon-amx-2core-cpu.json",  # ratios of two of its figures
    "peer-2core-cpu.json", "peer-xeon-amx-2core-cpu.json", "acceptance-distilled-2core-cpu.json",
    "ledger-10m.json", "batch-prefixes-2core-cpu.json",  # rows of other runs, sizes
    "snapshot-2core-cpu.json",
}  # fmt: skip
"""Files whose tables have more than the file's own numbers."""


def tables() -> Iterator[tuple[str, str, list[str]]]:
    """Document, file of results, and cells of the first table below its link, in the same section."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8").partition(MADE)[0]
        links = list(LINK.finditer(text))
        for number, link in enumerate(links, 1):
            lines = text[link.end() : links[number].start() if number < len(links) else None].splitlines()
            begin = next((place for place, line in enumerate(lines) if line.startswith("|")), 0)
            if begin and not any(line.startswith("#") for line in lines[:begin]):
                yield path.name, link[1], cells_of(lines[begin + 2 :])


def cells_of(lines: list[str]) -> list[str]:
    """Cells of the table's lines, without those that name a row."""
    end = next((number for number, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [cell for line in lines[:end] for cell in line.strip("|").split("|")[1:]]


def missing(cells: list[str], result: Any) -> list[str]:
    """Numbers that no value of the result is, rounded as the number is and in one of the scales."""
    values = list(leaves(result))
    texts = [text for cell in cells for text in NUMBER.findall(cell)]
    rounded = {digits: wholes(values, digits) for digits in {digits_of(text) for text in texts}}
    return [text for text in texts if round(number_of(text) * 10 ** digits_of(text)) not in rounded[digits_of(text)]]


def leaves(result: Any) -> Iterator[float]:
    if isinstance(result, dict | list):
        for part in result.values() if isinstance(result, dict) else result:
            yield from leaves(part)
    elif isinstance(result, int | float) and math.isfinite(result):
        yield abs(float(result))


def wholes(values: list[float], digits: int) -> set[int]:
    """Values in the last printed place; one that lies in the middle may be printed either way."""
    scaled = (value * scale * 10**digits for value in values for scale in SCALES)
    return {math.floor(value + half) for value in scaled for half in (0.499999, 0.500001)}


def digits_of(text: str) -> int:
    return len(text.partition(".")[2])


def number_of(text: str) -> float:
    return float(text.replace(",", ""))


TABLES = [(document, name, cells) for document, name, cells in tables() if name not in BESIDE]


@pytest.mark.parametrize(("name", "cells"), [pytest.param(*one[1:], id=f"{one[0]}-{one[1]}") for one in TABLES])
def test_numbers_of_a_table_are_in_the_file_that_it_names(name: str, cells: list[str]) -> None:
    assert missing(cells, json.loads(Path(ROOT, "benchmarks", "results", name).read_text(encoding="utf-8"))) == []


def test_tables_are_found_and_a_number_of_no_file_is_missed() -> None:
    assert len(TABLES) > 20
    assert sum(len(cells) for _, _, cells in TABLES) > 500
    result = {"rows": [{"ratio": 1.5987, "share": 0.345, "ms": 1201.4, "bytes": 12_345_678}]}
    assert missing(["1.60x", "**34 %**, 35 %", "1,201 ms, 1.2 s", "12.3 MB"], result) == []
    assert missing(["1.61x", "36 %", "1,202 ms", "12.4 MB"], result) == ["1.61", "36", "1,202", "12.4"]
