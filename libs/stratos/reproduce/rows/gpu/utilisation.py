"""Use of a GPU: of its bandwidth by decode steps (MBU), of its peak by prompts (MFU).

Bytes that a step must move are those of the weights and of each row's KV.  MBU is given twice: over the rate of a large
copy in the same run, and over the datasheet's bandwidth.  MFU is over the datasheet's dense peak.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stratos.calculators.formula import Formula
from stratos.calculators.hardware.devices import DeviceSpec, devices
from stratos.calculators.models.known import find_shape
from stratos.calculators.speed.roofline import Roofline, ServingAsk
from stratos.reproduce.gpu_checks import MODEL, GpuCheck
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_least, between, exactly
from stratos.reproduce.record.result import Cell, ResultPlot, ResultTable, RowResult

UNKNOWN = "unknown"
"""In place of a share of a device that the table of datasheets does not have."""
SHAPE, CONTEXT = "llama-3.1-8b", ServingAsk(prompt_tokens=1024, output_tokens=44)
"""As ``scripts/gpu/steps.py`` decodes it."""
DECODE_SHARE = Formula(
    "flops_share",
    "2 * gparameters / (weights_gb / rows + request_gb) * bandwidth_gb_s / peak_gflops",
)
PROMPT = Formula("prompt_ms", "1000 * 2 * gparameters * tokens / peak_gflops")


def read(check: GpuCheck) -> RowResult:
    """Sections ``decode`` and ``prefill``."""
    decode, prefill = check.results("decode"), check.results("prefill")
    device = next((one for one in devices().values() if one.cuda_name == check.device), None)
    steps = _numbered(decode, "greedy")
    return RowResult(
        answers=_answers(check, device),
        tables=[
            ResultTable(
                title=f"Decode steps at 1 K tokens of context, {MODEL}", kind=FigureKind.MEASURED,
                columns=("rows", "step_ms", "tokens_per_s", "roofline_ms", "mbu_of_copy", "mbu_of_datasheet", "mfu"),
                rows=[_step_row(rows, step, decode, device) for rows, step in steps.items()],
            ),
            ResultTable(
                title=f"Prompts, {MODEL}", kind=FigureKind.MEASURED,
                columns=("tokens", "ms", "tokens_per_s", "tflop_per_s", "mfu"),
                rows=[
                    (tokens, one["ms"], one["tokens_per_s"], one["tflop_per_s"], _mfu(one["tflop_per_s"], device))
                    for tokens, one in _numbered(prefill, "prompt").items()
                ],
            ),
        ],
        plots=[
            ResultPlot(
                title="A decode step, and the time that its bytes need", kind=FigureKind.MEASURED, x_label="rows",
                y_label="ms", is_x_log=True,
                lines={
                    name: [(rows, step[key]) for rows, step in steps.items()]
                    for name, key in (("step", "step_ms"), ("roofline", "roofline_ms"))
                },
            )
        ],
        notes=[f"A copy moves {decode['copy_gb_per_s']:,.0f} GB/s here, bytes read and written both counted."],
    )  # fmt: skip


def _numbered(results: Mapping[str, Any], prefix: str) -> dict[int, Mapping[str, Any]]:
    """Results named ``prefix_NUMBER``, ascending; those for which there was no time are left out."""
    measured = {name: value for name, value in results.items() if name.startswith(prefix) and "skipped" not in value}
    named = ((re.fullmatch(rf"{prefix}_(\d+)", name), value) for name, value in measured.items())
    return dict(sorted((int(match[1]), value) for match, value in named if match is not None))


def _step_row(
    rows: int, step: Mapping[str, Any], decode: Mapping[str, Any], device: DeviceSpec | None
) -> tuple[Cell, ...]:
    of_datasheet: Cell = UNKNOWN
    if device is not None:
        of_datasheet = step["mbu"] * decode["copy_gb_per_s"] * 1e9 / device.bandwidth_bytes_s
    times = (step["step_ms"], step["tokens_per_s"], step["roofline_ms"])
    return rows, *times, step["mbu"], of_datasheet, _decode_mfu(rows, step, device)


def _decode_mfu(rows: int, step: Mapping[str, Any], device: DeviceSpec | None) -> Cell:
    if device is None:
        return UNKNOWN
    figures = Roofline(find_shape(SHAPE), device, CONTEXT).step(rows)
    token_flops = next(figure.value for figure in figures if figure.name == "token_flops")
    return _mfu(step["tokens_per_s"] * token_flops / 1e12, device)


def _mfu(tflop_per_s: float, device: DeviceSpec | None) -> Cell:
    return UNKNOWN if device is None else tflop_per_s * 1e12 / device.bf16_flops


def _answers(check: GpuCheck, device: DeviceSpec | None) -> list[ClaimAnswer]:
    decode, prefill = _numbered(check.results("decode"), "greedy"), _numbered(check.results("prefill"), "prompt")
    least, most = min(decode), max(decode)

    def own(name: str, value: Cell, how: str) -> OwnFigure | None:
        text = f"{how}, {MODEL}, one {check.device}"
        return None if isinstance(value, str) else OwnFigure(name=name, value=value, kind=FigureKind.MEASURED, how=text)

    h100 = devices()["h100"].bf16_flops / 1e9
    return [
        ClaimAnswer(
            claim=at_least("0.6", "decode FLOPs from 18 to 55 % and more, 13B at 1 K on 80 GB", 0.55),
            recomputed=DECODE_SHARE(
                gparameters=13, weights_gb=26, rows=64, request_gb=0.839, bandwidth_gb_s=2039, peak_gflops=312_000
            ),
            is_bound=True,
            own=own("decode_mfu", _decode_mfu(most, decode[most], device), f"{most} rows"),
        ),
        ClaimAnswer(
            claim=exactly("1.9", "4,096 tokens of prefill on an H100 in 50 ms", 50, "ms"),
            recomputed=PROMPT(gparameters=8.03, tokens=4096, peak_gflops=round(h100)),
            own=own("prompt_ms", prefill[4096]["ms"], "4,096 tokens") if 4096 in prefill else None,
        ),
        ClaimAnswer(
            claim=between("3.2", "150-200 tokens/s of one stream of a 7B model", 150, 200, "tokens/s"),
            own=own("tokens_per_s", decode[least]["tokens_per_s"], f"{least} row"),
        ),
        ClaimAnswer(
            claim=at_least("4.15", "10,000 tokens/s of a GPU and more", 10_000, "tokens/s"),
            own=own("tokens_per_s", decode[most]["tokens_per_s"], f"{most} rows"),
        ),
    ]
