"""The classifier that content policies may ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import SecretStr

_NO_KEY = SecretStr("")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPoliciesConfig:
    """Where texts are classified, for content policies that want it."""

    classifier_url: str = ""
    """http(s) URL that takes OpenAI's moderation requests; empty: policies with a threshold cannot be checked,
    nor can those of tenants whose plan is resident_only, unless it is said to be resident."""
    classifier_key: SecretStr = _NO_KEY
    """Sent to it as a bearer token; empty sends none."""
    classifier_model: str = ""
    """Sent to it as "model"; empty sends none."""
    classifier_is_resident: bool = False
    """It is a part of this platform: texts of tenants whose plan is resident_only may go there, too."""
    classifier_timeout_s: Annotated[float, Gt(0)] = 2.0
    """A verdict that takes longer counts as none."""
    classifier_max_calls: Annotated[int, Ge(1)] = 64
    """Calls at once; more wait, within their timeout."""
