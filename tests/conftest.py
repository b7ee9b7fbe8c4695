"""Shared by all tests: Triton's interpreter without a GPU, property tests' profile, collection, processes, promises."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis.internal.conjecture import providers

from tests.support.examples import IS_THOROUGH, examples
from tests.support.left_children import children_left, watch_children
from tests.support.promises import promised, pytest_terminal_summary
from tests.support.servers import collected_server
from tests.support.shared_platforms import RoomScheduling, starts_platform

__all__ = ["promised", "pytest_terminal_summary"]

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # counts at the first import of Triton, and peft imports it

# The library that renders the chart is in Go, whose collector takes a fifth of its time by default.
os.environ.setdefault("GOGC", "400")

# jsonschema reads the grammar of IRIs when it is imported, for seconds; no schema here has that format.
sys.modules["rfc3987_syntax"] = None

# A busy machine is no counterexample: what has to be fast is measured by tests of its own. And a run that is to tell
# whether a change is sound draws the same cases as the one before; the thorough one draws others each time.
hypothesis.settings.register_profile(
    "stratos",
    deadline=None,
    max_examples=examples(100),
    derandomize=not IS_THOROUGH,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("stratos")
if not IS_THOROUGH:  # those of all modules that are imported by then, and read for them: other cases in each process
    vars(providers)["_get_local_constants"] = providers.Constants


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # nearly all that is made until the first test stays


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Every full collection would look through all modules and tests, for most of a second."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # a test makes little, and a collection costs what the processor had cached
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole platforms come first: they take longest, and the many short files at the end keep all processes busy."""
    items.sort(key=lambda item: not starts_platform(item.nodeid.split("::")[0]))


_GRACE_S = 120
"""After its time limit, which a test that waits in its ``finally`` outlives: then the process says where, and ends."""


def _end_later(item: pytest.Item) -> None:
    marker, told = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    limit_s = float(marker.args[0] if marker else item.config.getini("timeout") if told is None else told)
    if limit_s:
        stderr = item.config.stash[fault_handler_stderr_fd_key]  # the test captures what has that name
        faulthandler.dump_traceback_later(limit_s + _GRACE_S, exit=True, file=stderr)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _end_later(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


watch_children()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Blame a child on the test that left it: the warning comes in whichever one runs when it is collected."""
    yield
    assert not (left := children_left()), f"its event loop ended before its children: {left}"


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Arm it once more: pytest disarms it for the debugger that may be started now."""
    if isinstance(node, pytest.Item):
        _end_later(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files that share a platform run in one process."""
    return RoomScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Processes begin with the tests imported."""
    if config.getoption("dist") == "loadfile":
        collected_server.begin(config, specs)
