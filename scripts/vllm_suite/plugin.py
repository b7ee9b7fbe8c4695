"""pytest's plugin in vLLM's environment: its tests ask a server that runs already, and outcomes go to a file.

It is loaded by name (``-p``), without anything else of this project.  The environment has ``SUITE_URL``, ``SUITE_KEY``
and ``SUITE_OUT``.  Tests that send no request are none of a server's and are marked so.  What has an outcome in the
file is not run again, and the test that runs now is in a file beside it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

URL, KEY, OUT = (os.environ.get(name, "") for name in ("SUITE_URL", "SUITE_KEY", "SUITE_OUT"))
MAX_REASON_CHARS = 600
LEFT_OUT = (
    (re.compile(r"\[.*lora"), "it asks for an adapter of a hub"),
    (
        re.compile(r"::test_structured_outputs_(choice|regex)_chat$"),
        "it wants another answer the second time: chance, where a model follows no requests",
    ),
    (
        re.compile(
            r"::(test_chat_with_input_type|test_cancel_completed|test_background|.*echo_and_continue.*|.*root_path.*)(\[|$)"
        ),
        "its answer has to end by itself: chance with this model",
    ),
)
"""Cases that are not run, by their names."""
CLIENTS = {"httpx": ("Client", "AsyncClient"), "httpx2": ("Client", "AsyncClient"), "requests": ("Session",)}
"""Packages that send the tests' requests, with their classes."""
_sent: list[str] = []
"""Requests since the last test, as method and path."""


class RunningServer:
    """In place of the class by which the tests start a server of their own; arguments of one are ignored."""

    DUMMY_API_KEY = KEY

    def __init__(self, model: str, vllm_serve_args: list[str], **_: Any) -> None:
        self.url_root = URL
        host, self.port = URL.removeprefix("http://").split(":")[0], int(URL.rsplit(":", 1)[1])
        self.host, self.uds, self.show_hidden_metrics = host, None, False

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        """Address of a path."""
        return "/".join([URL, *(part.strip("/") for part in parts if part)])

    def get_client(self, **options: Any) -> Any:
        """OpenAI's client."""
        return self._client("openai", "OpenAI", "/v1", options)

    def get_async_client(self, **options: Any) -> Any:
        """OpenAI's client for asyncio."""
        return self._client("openai", "AsyncOpenAI", "/v1", options)

    def get_client_anthropic(self, **options: Any) -> Any:
        """Anthropic's client."""
        return self._client("anthropic", "Anthropic", "", options)

    def get_async_client_anthropic(self, **options: Any) -> Any:
        """Anthropic's client for asyncio."""
        return self._client("anthropic", "AsyncAnthropic", "", options)

    def _client(self, package: str, name: str, path: str, options: dict[str, Any]) -> Any:
        made = getattr(importlib.import_module(package), name)
        return made(**{"base_url": URL + path, "api_key": KEY, "max_retries": 0, "timeout": 60.0, **options})


class _Hub:
    """In place of the models' hub, of which fixtures want adapters; a test that names one gets the server's refusal."""

    def snapshot_download(self, *_: Any, **__: Any) -> str:
        """A folder that is not there."""
        return "/nonexistent"


def _send_with_key() -> None:
    """Let every request of any client bear the key, and be counted."""
    for package, names in CLIENTS.items():
        with suppress(ModuleNotFoundError):
            module = importlib.import_module(package)
            for name in names:
                owner = getattr(module, name)
                owner.send = _counted(owner.send)


def _counted(send: Any) -> Any:
    def sent(self: Any, request: Any, **options: Any) -> Any:
        if str(request.url).startswith(URL):
            _sent.append(f"{request.method} {str(request.url).removeprefix(URL)}")
            if "authorization" not in request.headers:
                request.headers["authorization"] = f"Bearer {KEY}"
        return send(self, request, **options)

    return sent


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put the running server in the place of theirs, before any of their fixtures is read."""
    theirs = importlib.import_module("tests.utils")
    vars(theirs)["RemoteOpenAIServer"] = RunningServer
    vars(importlib.import_module("vllm.transformers_utils.repo_utils"))["hf_api"] = _Hub
    _send_with_key()
    for name in ("Responses", "AsyncResponses"):
        owner = getattr(importlib.import_module("openai.resources.responses"), name)
        owner.create = _naming_the_model(owner.create)


def _naming_the_model(create: Any) -> Any:
    """Their tests of responses name none, which their server takes for its own; OpenAI's API wants one."""
    return lambda self, **fields: create(self, **{"model": "base", **fields})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has an outcome, and some cases."""
    path = Path(OUT)
    rows = path.read_text().splitlines() if path.exists() else []
    done = {json.loads(row)["test"] for row in rows}
    for item in items:
        reason = next((reason for name, reason in LEFT_OUT if name.search(item.nodeid)), "")
        if reason and item.nodeid not in done:
            _write({"test": item.nodeid, "outcome": "left out", "reason": reason, "requests": []})
            done.add(item.nodeid)
    left_out = [item for item in items if item.nodeid in done]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test runs, should the whole process hang in it."""
    Path(OUT).with_suffix(".now").write_text(nodeid)


def _write(row: dict[str, Any]) -> None:
    with Path(OUT).open("a") as file:
        file.write(json.dumps(row) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Write what became of each test, with the requests that it sent."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        text = report.longreprtext.splitlines()
        errors = [line.removeprefix("E").strip() for line in text if line.startswith("E ")] or text[-1:]
        row = {
            "test": item.nodeid,
            "outcome": "error" if report.failed and report.when != "call" else report.outcome,
            "reason": " ".join(errors)[:MAX_REASON_CHARS],
            "requests": sorted(set(_sent)),
        }
        _write(row)
        _sent.clear()
    return report
