"""Files of ``stratos evaluate`` as what ``stratos plan tier`` asks for: quality that a smaller model keeps, by text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from stratos.cli.commands.plan.shared import number
from stratos.common.errors import BadRequest

FLAG = "--evaluation"
TEXT = "text: "
"""Strata of single texts begin with it."""
MEASURE = "likeliest token"
"""Share of tokens that a model finds likeliest: a score from 0 to 1, as that of a task is."""


def read_evaluation(text: str) -> tuple[float, Mapping[str, float]]:
    """Billions of parameters, and by text the score of the smaller model as a share of the larger one's.

    Raises:
        BadRequest: not BILLIONS=FILE, or the file is no evaluation with a score above 0 of a text.
    """
    billions, _, name = text.partition("=")
    try:
        losses = json.loads(Path(name).read_text(encoding="utf-8"))["losses"]
        kept = {
            loss["stratum"].removeprefix(TEXT): float(loss["candidate"]) / float(loss["reference"])
            for loss in losses
            if loss["measure"] == MEASURE and loss["stratum"].startswith(TEXT)
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise BadRequest(
            f"{FLAG} {text}: it must be BILLIONS=evaluation.json of stratos evaluate", param=FLAG
        ) from error
    if not kept:
        raise BadRequest(f"{FLAG} {text}: it has no text of its own", param=FLAG)
    if not all(0 <= quality < math.inf for quality in kept.values()):
        raise BadRequest(f"{FLAG} {text}: a score is no number of 0 or more", param=FLAG)
    return number(FLAG, billions), kept
