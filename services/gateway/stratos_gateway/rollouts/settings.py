"""How often a gateway looks at roll-outs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsConfig:
    """Roll-outs of revisions; every gateway has the same."""

    publish_s: Annotated[float, Gt(0)] = 2.0
    """Between two writes of what this gateway has counted of both revisions; a gateway that dies loses that much."""
    poll_s: Annotated[float, Gt(0)] = 2.0
    """Between two looks at a roll-out that runs; which gateway acts does not matter."""
