"""How many cases a property test draws: a third by default, all of them with ``HYPOTHESIS_PROFILE=thorough``."""

from __future__ import annotations

import os

IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SHARE, FLOOR = 3, 10


def examples(thorough: int) -> int:
    """``max_examples`` of a test that draws ``thorough`` cases in a thorough run."""
    return thorough if IS_THOROUGH else min(thorough, max(FLOOR, thorough // SHARE))
