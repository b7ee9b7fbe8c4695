"""Text for the demo models: everything comes from the running Python installation (PSF licence).

* ``base``     standard library sources without tests, plus chat pairs made of documented functions
* ``headers``  slice 1: the C headers of CPython
* ``prose``    slice 2: the language reference (``pydoc_data.topics``)
* ``tests``    slice 3: CPython's own unit tests

The three slices share no file with ``base``.  In every part some documents (chosen by hash of their
name) are held out, so a re-run on the same Python version gives the same split.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

END, SYSTEM, USER, ASSISTANT, STOP = "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = [END, SYSTEM, USER, ASSISTANT, STOP]
EXCLUDED_PARTS = {"test", "tests", "idle_test", "site-packages", "pydoc_data", "__pycache__", "encodings"}
HELD_OUT_ONE_IN = {"base": 20, "headers": 8, "prose": 6, "tests": 12}
TEST_SLICE_BYTES = 6_000_000


@dataclass
class Part:
    """Documents of one part of the corpus, split by name into training and held-out."""

    held_out_one_in: int
    train: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)

    def add(self, name: str, text: str) -> None:
        """File ``text`` under the side of the split that the hash of ``name`` chooses."""
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        (self.held_out if digest % self.held_out_one_in == 0 else self.train).append(text)


def chat_pairs(source: str) -> list[str]:
    """Turn each documented function of ``source`` into one user / assistant exchange."""
    pairs = []
    lines = source.splitlines()
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not (doc := ast.get_docstring(node)):
            continue
        code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        first_line = doc.strip().splitlines()[0]
        if not 20 < len(first_line) < 160 or len(code) > 1200:
            continue
        question = f"{USER}\nWrite the function {node.name}. {first_line}{STOP}\n"
        pairs.append(f"{question}{ASSISTANT}\n{code}{STOP}\n")
    return pairs


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return ""


def build_corpus() -> dict[str, Part]:
    """Read all four parts; raises ``FileNotFoundError`` if the installation lacks one of them."""
    paths = sysconfig.get_paths()
    stdlib, include = Path(paths["stdlib"]), Path(paths["include"])
    corpus = {name: Part(one_in) for name, one_in in HELD_OUT_ONE_IN.items()}
    for path in sorted(stdlib.rglob("*.py")):
        name = str(path.relative_to(stdlib))
        if EXCLUDED_PARTS.isdisjoint(Path(name).parts) and (text := _read(path)):
            corpus["base"].add(name, text)
            for index, pair in enumerate(chat_pairs(text)):
                corpus["base"].add(f"{name}#{index // 8}", pair)
    for path in sorted(include.rglob("*.h")):
        corpus["headers"].add(str(path.relative_to(include)), _read(path))
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        corpus["prose"].add(name, text)
    size = 0
    for path in sorted((stdlib / "test").glob("test_*.py"), key=lambda p: hashlib.sha256(p.name.encode()).digest()):
        if size < TEST_SLICE_BYTES and (text := _read(path)).isascii():
            corpus["tests"].add(path.name, text)
            size += len(text)
    for name, part in corpus.items():
        if not part.train or not part.held_out:
            raise FileNotFoundError(f"this Python installation has no text for the part {name!r}")
    return corpus
