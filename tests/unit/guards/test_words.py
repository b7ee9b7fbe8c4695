"""The words of code and documents: processes and requests are not persons, and a docstring says something itself.

Looks at comments, docstrings, messages and names alike, in the product and its documents.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDERS = ("libs", "services", "docs", "protos")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SUFFIXES = {".py", ".md", ".proto", ".h", ".cpp"}
GENERATED = ROOT / "libs" / "stratos" / "api"
REFUSED = {
    "nobody": r"\bnobody\b",
    "somebody, anybody": r"\b(some|any)body\b",
    "whoever": r"\bwhoever\b",
    "meanwhile": r"\bmeanwhile\b",
    "anew": r"\banew\b",
    "of late": r"\bof late\b",
    "talks nonsense": r"\btalks nonsense\b",
    "a sketch, a case study (published claim)": r"\b(earl\w+|first|the) sketch(es)?\b|\bcase stud(y|ies)\b",
    "a person's word": r"'s word\b|\bword alone\b",
    "a docstring that sends the reader elsewhere": r'"""See ``[^`]*``\.?"""',
}


@cache
def texts() -> dict[Path, str]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    kept = [path for path in found if GENERATED not in path.parents] + [ROOT / name for name in FILES]
    return {path: path.read_text(encoding="utf-8") for path in kept}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_words_do_not_come_back(name: str) -> None:
    pattern = re.compile(REFUSED[name], re.IGNORECASE)
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path, text in texts().items()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not hits, "\n".join(hits)


def test_the_words_are_found_where_they_are() -> None:
    assert re.search(REFUSED["nobody"], "Nobody waits", re.IGNORECASE)
    assert re.search(REFUSED["a docstring that sends the reader elsewhere"], '    """See ``Receiver.close``."""')
    assert len(texts()) > 300
