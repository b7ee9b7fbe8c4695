"""Reading the fields of a JSON object one by one, so that what was not read is known to be unknown."""

from __future__ import annotations

from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import LIMITS, check_number


class Fields:
    """A JSON object that is emptied by reading.

    Args:
        content: the object.
        path: put before names in errors, e.g. "stream_options.".
    """

    def __init__(self, content: dict[str, Any], path: str = "") -> None:
        self._left = dict(content)
        self._path = path

    def take(self, name: str) -> Any:
        """The value of a field, ``None`` when it is absent or null."""
        return self._left.pop(name, None)

    def take_session(self) -> str:
        """The narrowest text of ``SESSION_FIELDS`` that is given."""
        given = [self.take(name) for name in SESSION_FIELDS]
        return next((text for text in given if isinstance(text, str) and text), "")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean field."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadRequest(f"{self._path}{name} must be true or false", param=self._path + name)
        return value

    def number(self, name: str, row: str | None = None) -> float | int | None:
        """A numeric field within the limits of its row."""
        value = self.take(name)
        return None if value is None else check_number(row or name, value, self._path + name)

    def ignore(self, *names: str) -> None:
        """Fields that are accepted and mean nothing here."""
        for name in names:
            self.take(name)

    def refuse(self, name: str, *neutral: Any) -> None:
        """A field of a feature that is not supported, unless its value does not ask for the feature."""
        value = self.take(name)
        if value is not None and value not in neutral:
            raise BadRequest(f"{name} is not supported by this server", param=name, code="unsupported_parameter")

    def end(self) -> None:
        """Refuse what was not read."""
        for name in self._left:
            text = f"{self._path}{name[:100]}"
            raise BadRequest(f"unknown parameter {text!r}", param=text, code="unknown_parameter")


_OTHER_ROWS = ("max_tokens", "n", "num_logprobs", "num_prompt_logprobs", "seed", "dimensions")
SAMPLING_ROWS = tuple(name for name in LIMITS if name not in _OTHER_ROWS)
"""Rows of the limits table that are sampling parameters of the same name on every generation route."""

SESSION_FIELDS = ("prompt_cache_key", "user", "safety_identifier")
"""Texts that are equal for requests that belong together, the narrowest first."""
HARMLESS_FIELDS = (
    *SESSION_FIELDS,
    "metadata",
    "store",
    "prompt_cache_retention",
)
"""Fields of every route that ask for nothing that changes the answer."""
