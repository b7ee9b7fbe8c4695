"""Every finding of the review of the control plane names tests, and these are there."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "control-plane.md"
ROW = re.compile(r"^\| (?P<finding>[^|]+) \| (?P<now>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
NUM_FINDINGS = 37
"""Seven and eleven that stop something, eighteen smaller ones, and the cost."""


@cache
def names_of_tests() -> frozenset[str]:
    paths = (ROOT / "tests").rglob("test_*.py")
    found = (
        re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE) for path in paths
    )
    return frozenset(name for names in found for name in names)


def rows() -> list[tuple[str, str, list[str]]]:
    found = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))[1:]
    return [(finding, now, re.findall(r"`(\w+)`", tests)) for finding, now, tests in found if set(finding) != {"-"}]


def test_every_finding_has_an_answer() -> None:
    assert len(rows()) == NUM_FINDINGS
    assert not [finding for finding, now, tests in rows() if not now.strip() or not tests]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_the_tests_of_a_finding_are_there(row: tuple[str, str, list[str]]) -> None:
    assert not set(row[2]) - names_of_tests()
