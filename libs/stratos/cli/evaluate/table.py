"""A report as text: worst stratum first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = ("stratum", "measure", "samples", "A", "B", "loss", "95 % interval", "bound", "verdict")


def report_text(report: Mapping[str, Any]) -> str:
    """Verdict, models, and a line for each loss."""
    rows = [COLUMNS, *(loss_cells(loss) for loss in report["losses"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    models = [f"{name}: {model_text(report[key])}" for name, key in (("A", "reference"), ("B", "candidate"))]
    return "\n".join([*models, "", *lines, "", f"verdict: {report['verdict']}"])


def loss_cells(loss: Mapping[str, Any]) -> tuple[str, ...]:
    """A loss as cells of ``COLUMNS``; scores are shares, losses percent."""
    interval = loss["loss"]
    return (
        loss["stratum"],
        loss["measure"],
        str(loss["num_samples"]),
        _figure(loss["reference"]),
        _figure(loss["candidate"]),
        _percent(interval["value"]),
        f"{_percent(interval['low'])} to {_percent(interval['high'])}",
        _percent(loss["bound"]),
        loss["verdict"],
    )


def model_text(model: Mapping[str, Any]) -> str:
    """A model in one line."""
    megabytes = model["step_weight_bytes"] / 1e6
    return (
        f"{model['model']}, weights {model['quantization'] or 'floats'} ({megabytes:.1f} MB a step), "
        f"KV {model['kv_dtype']} ({model['kv_token_bytes']} bytes a token)"
    )


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:+.2f} %"
