"""A bound on the memory that a piece of a test may take."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEADROOM_BYTES = 1 << 30
"""Address space in addition to what the process has; what tests load within it needs some MiB."""


@contextmanager
def bounded_memory() -> Iterator[None]:
    """A far larger allocation fails instead of taking the machine's memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + HEADROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
