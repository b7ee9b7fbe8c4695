"""JSON answers, encoded by orjson."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import JSONResponse


class OrjsonResponse(JSONResponse):
    """A JSON answer."""

    def render(self, content: Any) -> bytes:
        """Content as bytes."""
        return orjson.dumps(content)
