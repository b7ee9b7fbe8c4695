"""``stratos watermark detect``: was a text written by a platform that marks its output?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.watermark import Watermark, check_watermark, detect
from stratos.text.tokenizer import Tokenizer


def read_key(key_file: Path | None, key: str) -> bytes:
    """The secret, from a file or from the environment; never from the command line, which others can see.

    Raises:
        BadRequest: there is none.
    """
    if key_file is not None:
        try:
            key = key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"the key file cannot be read: {error}") from error
    if not key:
        raise BadRequest("no key: give --key-file, or set STRATOS_GATEWAY_WATERMARK__KEY as for the gateway")
    return key.encode()


def read_text(file: Path | None) -> str:
    """The text to judge; standard input without a file.

    Raises:
        BadRequest: it cannot be read as UTF-8.
    """
    try:
        return sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"the text cannot be read: {error}") from error


def detect_text(text: str, model_path: Path, watermark: Watermark, max_p_value: float) -> dict[str, Any]:
    """Verdict of the detector on a text.

    Args:
        text: without the prompt that it answers.
        model_path: folder with the tokenizer of the model that may have written it.
        watermark: as the gateway's settings have it.
        max_p_value: the text counts as marked up to this probability of a false alarm.
    """
    found = detect(check_watermark(watermark), Tokenizer.load(model_path).encode_plain(text))
    return {
        "is_marked": found.p_value <= max_p_value,
        "z_score": round(found.z_score, 3),
        "p_value": found.p_value,
        "num_scored_tokens": found.num_scored,
        "num_green_tokens": found.num_green,
    }
