"""Sentences of documents have at most 40 words; a longer one is a list or a table that was not made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

MAX_WORDS = 40
PENDING = {"services/router/README.md"}
_SKIPPED = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.?!:])[\"')*]*\s+(?=[\"'(*`\[]*[A-Z0-9`])")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")


def documents() -> list[Path]:
    folders = ("docs", "services", "libs", "models", "examples")
    return sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))])


def sentences(text: str) -> list[str]:
    """Prose alone: without code, tables, headings; a link counts as its text."""
    prose = _SKIPPED.sub("\n\n", text)
    prose = "\n".join("" if line.lstrip().startswith(("|", "#", "![")) else line for line in prose.splitlines())
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    prose = re.sub(r"`[^`]*`", "CODE", prose)
    blocks = [" ".join(block.split()) for block in _BLOCK.split(prose)]
    return [sentence for block in blocks for sentence in _SENTENCE_END.split(block) if sentence]


def test_sentences_are_short() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {len(sentence.split())} words: {sentence[:100]}"
        for path in documents()
        if str(path.relative_to(ROOT)) not in PENDING
        for sentence in sentences(path.read_text(encoding="utf-8"))
        if len(sentence.split()) > MAX_WORDS
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two three.\n\n- four\n- five", ["One.", "Two three.", "- four", "- five"]),
        ("| a table |\n# A heading\nA `code with words` and [a link](x.md).", ["A CODE and a link."]),
    ],
)
def test_sentences_are_found(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected
