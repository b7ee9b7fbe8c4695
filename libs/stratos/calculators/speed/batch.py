"""Batch that a device runs best: the largest one that memory holds and the promise allows.

Tokens per second only grow with the batch, as weights are read once for all of it; the time between tokens grows too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratos.calculators.formula import Figure, Formula
from stratos.calculators.hardware.devices import DeviceSpec
from stratos.calculators.models.shape import ModelShape
from stratos.calculators.published import batch_claims
from stratos.calculators.sheet import Grid, Sheet
from stratos.calculators.speed.roofline import Roofline, ServingAsk
from stratos.common.errors import BadRequest

_ROWS = Formula("rows", "min(memory_rows, promise_rows, max_num_seqs)")
_TOKENS = Formula("tokens_per_s", "1000 * rows / step_ms")
_REQUEST = Formula("device_ms_per_request", "prompt_ms + output_tokens * step_ms / rows")
_REQUESTS = Formula("requests_per_s", "1000 / device_ms_per_request")
UNBOUNDED = 1 << 20


@dataclass(frozen=True, slots=True)
class BestBatch:
    """The largest allowed batch of one device."""

    rows: int
    binds: str
    """Bound that decides: memory, itl, ttft, max_num_seqs; or the one that nothing satisfies."""
    figures: tuple[Figure, ...]

    @property
    def is_possible(self) -> bool:
        return self.rows > 0

    def __getitem__(self, name: str) -> float:
        """The value of a figure."""
        return next(figure.value for figure in self.figures if figure.name == name)


def best_batch(roof: Roofline, ask: ServingAsk) -> BestBatch:
    """The largest batch within memory, promise and ``max_num_seqs``."""
    prompt = roof.prompt()
    if not roof.most_rows:
        return BestBatch(0, "memory", prompt)
    if ask.ttft_ms and prompt[-1].value > ask.ttft_ms:
        return BestBatch(0, "ttft", prompt)
    promised = _most_rows_within(roof, ask.itl_ms) if ask.itl_ms else UNBOUNDED
    if not promised:
        return BestBatch(0, "itl", (*prompt, *roof.step(1)))
    bounds = {"memory": roof.most_rows, "itl": promised, "max_num_seqs": ask.max_num_seqs}
    rows = _ROWS(memory_rows=roof.most_rows, promise_rows=promised, max_num_seqs=ask.max_num_seqs)
    step = roof.step(int(rows.value))
    tokens = _TOKENS("all of them decoding", rows=rows.value, step_ms=step[-1].value)
    request = _REQUEST(
        prompt_ms=prompt[-1].value, output_tokens=ask.output_tokens, step_ms=step[-1].value, rows=rows.value
    )
    requests = _REQUESTS("prompts and answers by turns", device_ms_per_request=request.value)
    figures = (rows, *step, tokens, *prompt, request, requests)
    return BestBatch(int(rows.value), min(bounds, key=lambda name: bounds[name]), figures)


def _most_rows_within(roof: Roofline, itl_ms: float) -> int:
    """The largest batch whose step takes no longer; steps only get longer with the batch."""
    low, high = 0, UNBOUNDED
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if roof.step_ms(middle) <= itl_ms else (low, middle - 1)
    return low


def optimal_batch_size(
    shape: ModelShape, device: DeviceSpec, ask: ServingAsk, measured: Mapping[int, float] | None = None
) -> Sheet:
    """The best batch, and a sweep of others.

    Args:
        shape: of the model.
        device: one of ``ask.tp``.
        ask: requests and promises.
        measured: output tokens per second by streams, as ``stratos bench`` found them, to stand beside the sweep.

    Raises:
        BadRequest: a value that makes no sense, or no batch fits: names the bound.
    """
    roof = Roofline(shape, device, ask)
    best = best_batch(roof, ask)
    if not best.is_possible:
        raise BadRequest(f"not even one sequence of {shape.name} fits {device.name}: {best.binds} forbids it")
    return Sheet(
        title=f"Batch of {shape.name} on {ask.tp} x {device.name} ({device.source})",
        figures=best.figures,
        grids=(_sweep(roof, best.rows, measured or {}),),
        published=batch_claims(shape, device.memory_bytes / 1e9, roof.weights_bytes / 1e9, ask.seq_len),
        notes=(f"{best.binds} decides.",),
    )


def _sweep(roof: Roofline, best: int, measured: Mapping[int, float]) -> Grid:
    columns = ("rows", "step_ms", "tokens_per_s", "fits") + (("measured_tokens_per_s",) if measured else ())
    powers = {1 << power for power in range(best.bit_length() + 1)}
    rows = []
    for count in sorted({*powers, best, *measured}):
        step = roof.step_ms(count)
        row = (count, step, 1000 * count / step, "yes" if count <= roof.most_rows else "no")
        rows.append(row + ((measured.get(count, ""),) if measured else ()))
    return Grid("Steps by batch", columns, tuple(rows))
