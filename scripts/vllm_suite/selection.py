"""Choice of the tests: files that ask a server, without those that need what one small text model is not.

What is left out is counted by its reason, file by file and test by test, by the rules of this module alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDERS = (
    "anthropic", "openai", "serve/tokenize", "serve/instrumentator/test_basic.py", "generate",
    "tool_parsers", "pooling/scoring/test_cross_encoder_online.py", "pooling/embed/test_online.py",
)  # fmt: skip
"""Of the tests' entry points: those of routes that OpenAI, Anthropic or a client of vLLM has."""
NO_SERVER = "it asks no server: a test of vLLM's own classes"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a test's file, or its name, has that this comparison has not."""

    reason: str
    path: str = r"(?!)"
    text: str = r"(?!)"


RULES = (
    Rule("it wants gpt-oss, of 20 B", r"harmony|test_mcp_tools|test_openai_tool_parser", r'"openai/gpt-oss-20b"'),
    Rule("it wants tools that the server runs itself", text=r"--tool-server"),
    Rule("it wants a model of images or sound", r"_vlm|vision|audio|multimodal|test_extra_content_fields"),
    Rule("it wants a model of embeddings or scores", r"^pooling/"),
    Rule("it wants a format of checkpoints, or an adapter, of a hub", r"tensorizer|granite4", r"LORA_MODEL ="),
    Rule("it measures a model's answers by a data set", r"correctness"),
    Rule("it wants a model with heads for decisions", r"structured_decisions"),
    Rule("it wants a server without a tokenizer", text=r"--skip-tokenizer-init"),
    Rule("it is schemathesis over the server's own document, as in make test-clients", r"test_openai_schema"),
)  # fmt: skip


def chosen_files(tests: Path, asked: Sequence[str]) -> tuple[list[str], Counter[str]]:
    """Files below a folder of tests that are run, and the number of the others by reason.

    Args:
        tests: vLLM's ``tests/entrypoints``.
        asked: folders and files below it.
    """
    found, left_out = list[str](), Counter[str]()
    for name in _files(tests, asked):
        reason = why_not(name, (tests / name).read_text())
        if reason:
            left_out[reason] += 1
        else:
            found.append(name)
    return found, left_out


def why_not(name: str, text: str) -> str:
    """Reason to leave a file out; "" where it is run."""
    if not re.search(r"Remote\w*Server|def test_\w+\([^)]*\bclient\b", text):
        return NO_SERVER
    return next((rule.reason for rule in RULES if re.search(rule.path, name) or re.search(rule.text, text)), "")


def _files(tests: Path, asked: Iterable[str]) -> list[str]:
    paths = {
        path
        for name in asked
        for path in ([tests / name] if name.endswith(".py") else (tests / name).rglob("test_*.py"))
    }
    return sorted(str(path.relative_to(tests)) for path in paths)
