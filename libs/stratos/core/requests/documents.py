"""Documents within messages: those that are plain text are read, all others are refused by their place.

A model reads a document as text between two lines that name it, whatever dialect it came in.  No address is fetched.
"""

from __future__ import annotations

import base64
import binascii
import re

from stratos.common.errors import BadRequest

MAX_TITLE_CHARS = 500
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)((?:;[\w-]+=[\w.+-]+)*);base64,", re.ASCII)
_CHARSETS = ("", ";charset=utf-8", ";charset=us-ascii")
_JSON = "application/json"


def is_text(media_type: str) -> bool:
    """Whether documents of a media type can be read as they are."""
    return media_type.lower().startswith("text/") or media_type.lower() == _JSON


def read_data_url(value: object, param: str) -> str:
    """Text of a document that is given as a ``data:`` address in base64.

    Raises:
        BadRequest: it is no such address, no text, or not in UTF-8, with ``param``.
    """
    found = _DATA_URL.match(value) if isinstance(value, str) else None
    if found is None or not isinstance(value, str):
        raise BadRequest(f"{param} must be data:MEDIA/TYPE;base64,... of a text", param=param)
    media_type, charset = found[1], found[2].lower()
    if not is_text(media_type) or charset not in _CHARSETS:
        text = f"{param}: only documents of text in UTF-8 are supported, not {media_type[:40]!r}"
        raise BadRequest(text, param=param, code="unsupported_parameter")
    try:
        return base64.b64decode(value[found.end() :], validate=True).decode("utf-8-sig")
    except (binascii.Error, ValueError):
        raise BadRequest(f"{param} is no base64 of a text in UTF-8", param=param) from None


def check_title(value: object, param: str) -> str:
    """Check the name of a document, which is one line; "" where it has none."""
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_TITLE_CHARS or len(value.splitlines()) > 1:
        raise BadRequest(f"{param} must be one line of at most {MAX_TITLE_CHARS} characters", param=param)
    return value.strip()


def document_text(title: str, text: str) -> str:
    """The text that a model reads of a document; lines of its own, as other parts of a message may stand beside it."""
    name = f"document: {title}" if title else "document"
    return f"\n[{name}]\n{text}\n[end of document]\n"
