"""How long a session of the model ``auto`` keeps its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicesConfig:
    """The model ``auto``; every gateway has the same."""

    session_s: Annotated[float, Ge(0)] = 3600.0
    """After a session's last request it keeps its model for so long, while that may answer; 0 chooses each time."""
