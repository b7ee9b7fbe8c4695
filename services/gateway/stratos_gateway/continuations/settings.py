"""How long, and for how much of an answer, continuation tokens are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationsConfig:
    """Tokens with which answers go on; there are none at a gateway without a platform key."""

    kept_s: Annotated[int, Ge(0)] = 3600
    """Seconds after the end of an answer in which it can be gone on with; 0 gives no tokens."""
    max_bytes: Annotated[int, Ge(0)] = 256 * 1024
    """Characters of a token, about 3 for each token of the output; a longer answer ends without one."""
