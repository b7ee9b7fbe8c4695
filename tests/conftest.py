"""Shared by all tests: interpreted Triton kernels where there is no GPU, and the profiles of property tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # counts at the first import of Triton, and peft imports it

# jsonschema reads the grammar of IRIs when it is imported, for seconds; no schema here has that format.
sys.modules["rfc3987_syntax"] = None

# A busy machine is no counterexample: what has to be fast is measured by tests of its own.
hypothesis.settings.register_profile("stratos", deadline=None)
hypothesis.settings.load_profile("stratos")
