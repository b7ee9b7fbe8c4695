"""A further name of models: where its requests go, and how they are split."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Interval

WHOLE = 100
"""Sum of the weights of an alias: they are per cent."""


class Sticky(StrEnum):
    """Holder of a place: what keeps its revision while the weights stay as they are."""

    SESSION = "session"
    """A session that a request names; requests that name none go by their tenant."""
    TENANT = "tenant"
    REQUEST = "request"
    """Nothing: each request is drawn by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasTarget:
    """One place where requests for an alias go."""

    model: str
    """A model, or another alias."""
    digest: str = ""
    """SHA-256 (hex) of one revision of that model; empty goes where requests for that name go."""
    weight: Annotated[int, Interval(ge=1, le=WHOLE)] = WHOLE
    """Per cent of the sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasRecord:
    """An alias; one with the name of a model splits that model's requests among its revisions."""

    name: str
    targets: tuple[AliasTarget, ...]
    before: tuple[AliasTarget, ...] = ()
    """Targets before the last change: they go on until a new one has live workers, and are none of the record then."""
    sticky: Sticky = Sticky.SESSION
    created_unix_s: Annotated[int, Ge(0)] = 0
    """Seconds since the epoch at which its targets were set."""

    @property
    def is_split(self) -> bool:
        """It splits the model that has its name among revisions, and leads to no further name."""
        return all(target.digest and target.model == self.name for target in self.targets + self.before)
