"""Shared by all tests: Triton's interpreter where there is no GPU, property tests' profile, collection, promises."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import hypothesis
import pytest

from tests.support.examples import examples
from tests.support.promises import promised, pytest_terminal_summary

__all__ = ["promised", "pytest_terminal_summary"]

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # counts at the first import of Triton, and peft imports it

# jsonschema reads the grammar of IRIs when it is imported, for seconds; no schema here has that format.
sys.modules["rfc3987_syntax"] = None

# A busy machine is no counterexample: what has to be fast is measured by tests of its own.
hypothesis.settings.register_profile("stratos", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("stratos")


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # nearly all that is made until the first test stays


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Every full collection would look through all modules and tests, for most of a second."""
    gc.freeze()
    gc.enable()
