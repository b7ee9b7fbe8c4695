"""The first line of a docstring begins with a noun of the field or a verb, never with What, Of, Those, As or With."""

from __future__ import annotations

import ast
import re

from tests.support.paths import ROOT

REFUSED = {"What", "Of", "Those", "As", "With"}
GENERATED = ROOT / "libs" / "stratos" / "api"
MAY_OFFEND = re.compile(rf"[\"'](\\\n)?\s*({'|'.join(sorted(REFUSED))})\b")
"""A text that begins so; reading the syntax of all files takes seconds."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def refused_docstrings(source: str) -> list[int]:
    """Lines of definitions whose docstring begins with a refused word; fields' docstrings count as well."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)) if MAY_OFFEND.search(source) else ():
        if isinstance(node, _DOCUMENTED) and _is_refused(ast.get_docstring(node) or ""):
            found.append(getattr(node, "lineno", 1))
        if isinstance(node, ast.ClassDef):
            found += [part.lineno for part in node.body[1:] if _is_refused(_text(part))]
    return found


def _text(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""


def _is_refused(docstring: str) -> bool:
    words = docstring.split(maxsplit=1)
    return bool(words) and words[0].rstrip(",.:;") in REFUSED


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    files = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(files)
        if not path.is_relative_to(GENERATED)
        for line in refused_docstrings(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "\n".join(found)


def test_refused_first_words_are_found() -> None:
    source = (
        '"""Of both."""\nclass A:\n    """Parts."""\n    x: int\n    """What is left."""\n'
        '    def f(self):\n        """As is."""'
    )
    assert refused_docstrings(source) == [1, 5, 6]
    assert refused_docstrings('"""Whatever."""') == []
