"""Names that people give to tenants and plans."""

from __future__ import annotations

import re

from stratos.common.errors import BadRequest

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")


def check_name(name: str, kind: str) -> str:
    """Check the name of a tenant or a plan, as ``kind`` says.

    Raises:
        BadRequest: empty, longer than 64 characters, or other characters than a-z 0-9 . _ -
    """
    if not _NAME.match(name):
        text = f"a {kind}'s name has 1 to 64 characters of a-z 0-9 . _ - and starts with a letter or digit"
        raise BadRequest(text, param=kind)
    return name
