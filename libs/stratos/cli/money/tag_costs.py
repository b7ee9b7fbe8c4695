"""Costs of models as text: by cost tags where they were asked for, each with the quality that was measured for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratos.cli.money.statements import money, table_text
from stratos.common.errors import BadRequest

Scores = Mapping[str, Mapping[str, float]]
"""Score by the text of a cost tag and by model."""


def read_scores(path: Path | None, tags: Sequence[str]) -> Scores:
    """Scores of a file; none where there is no file.

    Raises:
        BadRequest: it cannot be read, is of another form, or costs are not told by exactly one tag.
    """
    if path is None:
        return {}
    if len(tags) != 1:
        raise BadRequest("--scores needs exactly one --tag, whose texts it names", param="--scores")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {text: {model: float(score) for model, score in by.items()} for text, by in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        message = f'--scores {path}: it must be JSON such as {{"search": {{"base": 0.91}}}}'
        raise BadRequest(message, param="--scores") from error


def costs_text(rows: Sequence[Mapping[str, Any]], tags: Sequence[str] = (), scores: Scores | None = None) -> str:
    """Cost and margin per model, and by these tags, for a terminal."""
    head = ("model", *tags, "tokens", "device h", "earned", "devices", "external", "margin", "cost per M",
            "earned per M", *(["score"] if scores else []))  # fmt: skip
    shown = [
        (
            row["model"] or "(credits of windows)",
            *(row[f"tag:{name}"] or "-" for name in tags),
            str(row["num_tokens"]),
            f"{row['device_us'] // 36_000_000 / 100:.2f}",
            *(money(row[name]) for name in ("earned", "device_cost", "external_cost", "margin")),
            *("-" if row[name] is None else money(row[name]) for name in ("cost_per_million", "earned_per_million")),
            *([_score(scores.get(row[f"tag:{tags[0]}"], {}).get(row["model"]))] if scores else []),
        )
        for row in rows
    ]
    return table_text([head, *shown]) + "\n"


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:g}"
