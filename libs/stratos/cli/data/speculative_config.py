"""``--speculative-config``: drafts of workers as JSON with the names that vLLM has, for a start and for records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratos.common.errors import BadRequest

SPECULATIVE_FLAG = "--speculative-config"
METHODS = ("auto", "off", "ngram", "suffix", "draft", "self")
MAX_DRAFTED_TOKENS = 16
_SETTING = "SCHEDULER__SPECULATION__"


def parse_speculative_config(text: str) -> dict[str, str]:
    """Settings of workers; none where ``text`` is empty.

    Raises:
        BadRequest: it is no such JSON, or asks for what is not there.
    """
    names = {"method": "METHOD", "model": "MODEL_PATH", "num_speculative_tokens": "NUM_SPECULATIVE_TOKENS"}
    return {f"{_SETTING}{names[name]}": str(value) for name, value in speculation_fields(text).items()}


def speculation_fields(text: str) -> dict[str, Any]:
    """Fields of a record of a model; none where ``text`` is empty.

    Raises:
        BadRequest: as ``parse_speculative_config``.
    """
    if not text:
        return {}
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise _refused('must be a JSON object such as {"method": "ngram"}')
    method, count = fields.pop("method", None), fields.pop("num_speculative_tokens", "auto")
    if method not in METHODS:
        raise _refused(f"needs one of the methods {', '.join(METHODS)}, not {json.dumps(method)}")
    found = {"method": method}
    if method == "draft":
        found["model"] = _draft_folder(fields.pop("model", None))
    if fields:
        raise _refused(f"has {next(iter(fields))}, which is not known with this method")
    if count == "auto":
        return found
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_DRAFTED_TOKENS:
        raise _refused(f'has num_speculative_tokens that are neither "auto" nor between 1 and {MAX_DRAFTED_TOKENS}')
    return found | {"num_speculative_tokens": count}


def speculative_text(fields: Mapping[str, Any]) -> str:
    """The flag that says what a record does."""
    return json.dumps({name: value for name, value in fields.items() if value})


def _draft_folder(model: object) -> str:
    if not isinstance(model, str) or not (Path(model) / "config.json").is_file():
        raise _refused(f"needs a model, the folder of a draft model, not {json.dumps(model)}")
    return str(Path(model).resolve())


def _refused(why: str) -> BadRequest:
    return BadRequest(f"{SPECULATIVE_FLAG} {why}", param=SPECULATIVE_FLAG)
