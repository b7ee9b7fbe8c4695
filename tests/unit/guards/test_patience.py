"""Clients of tests wait as long as the test may take: a bound of their own is one that a busy machine passes."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.paths import ROOT

FOLDERS = ("integration", "conformance", "support/worlds", "support/observed", "support/servers")
CLIENTS = {
    *(f"httpx.{name}" for name in ("get", "post", "put", "delete", "request", "stream", "Client", "AsyncClient")),
    *("openai.OpenAI", "openai.AsyncOpenAI", "OpenAI", "AsyncOpenAI", "urlopen", "urllib.request.urlopen"),
}
IN_PROCESS = {"transport", "http_client"}
"""With these a client has no connection, or that of another client."""


def hasty(source: str) -> list[int]:
    """Lines of clients with a number for a time limit, or with the short one that they have by default."""
    if not any(f"{name}(" in source for name in CLIENTS):
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if ast.unparse(call.func) in CLIENTS and not _is_patient(call)]


def _is_patient(call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "timeout" in given:
        limit = given["timeout"]
        return not isinstance(limit, ast.Constant) or limit.value is None
    return None in given or bool(IN_PROCESS & given.keys())


def test_no_client_of_a_test_gives_up_before_it() -> None:
    files: list[Path] = [path for folder in FOLDERS for path in (ROOT / "tests" / folder).rglob("*.py")]
    assert len(files) > 100
    found = {str(path.relative_to(ROOT)): lines for path in files if (lines := hasty(path.read_text()))}
    assert found == {}, "give them timeout=LIMIT_S (tests.support.waiting)"


def test_the_scan_sees_what_it_looks_for() -> None:
    lines = (
        "httpx.get(url, timeout=60)",
        "httpx.AsyncClient(base_url=url)",
        "OpenAI(api_key=key, timeout=30.0)",
        "httpx.get(url, timeout=LIMIT_S)",
        "httpx.AsyncClient(transport=app)",
        "httpx.Client(**options)",
        "urlopen(url, timeout=None)",
    )
    assert hasty("\n".join(lines)) == [1, 2, 3]
