"""Where requests go that would wait too long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import SecretStr

from stratos.core.tenancy.prices import Price

_NO_KEY = SecretStr("")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowConfig:
    """The external endpoint; never for tenants whose plan is resident_only."""

    url: str = ""
    """Base URL of an OpenAI-compatible API, such as https://api.example.com/v1; empty is off: requests wait here."""
    key: SecretStr = _NO_KEY
    """Sent to it as a bearer token; empty sends none."""
    model: str = ""
    """Model that is asked for there; empty takes the served name of the base model."""
    prompt_price: Annotated[int, Ge(0)] = 0
    """Price of a million prompt tokens there, in micro-units, charged to the platform: the cost in `admin costs`."""
    cached_price: Annotated[int, Ge(0)] = 0
    """The same of prompt tokens that it calls cached; above prompt_price it counts as that."""
    output_price: Annotated[int, Ge(0)] = 0
    """The same of output tokens."""
    after_s: Annotated[float, Gt(0)] = 5.0
    """A request goes there once its wait is, or the router expects it to be, longer than that."""
    max_open: Annotated[int, Ge(1)] = 32
    """Requests there at once; more wait here."""
    connect_timeout_s: Annotated[float, Gt(0)] = 2.0
    """A connection that takes longer has failed, and the request waits here."""
    first_token_timeout_s: Annotated[float, Gt(0)] = 10.0
    """An answer that has not begun by then has failed, and the request waits here."""
    idle_timeout_s: Annotated[float, Gt(0)] = 30.0
    """Longest silence in the middle of an answer."""

    @property
    def price(self) -> Price:
        """Prices of the endpoint."""
        return Price(prompt=self.prompt_price, cached=self.cached_price, output=self.output_price)
