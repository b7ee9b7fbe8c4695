"""``stratos plan batch``, ``gpu`` and ``replicas``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from stratos.calculators.bounds import above_zero
from stratos.calculators.hardware.devices import DeviceSpec, find_device
from stratos.calculators.speed.batch import optimal_batch_size
from stratos.calculators.speed.choice import GpuAsk, choose_devices
from stratos.calculators.speed.replicas import ReplicasAsk, plan_replicas
from stratos.calculators.speed.roofline import ServingAsk
from stratos.cli.commands.flags import with_flags_of
from stratos.cli.commands.plan.shared import (
    DeviceOption,
    HtmlOption,
    JsonOption,
    ModelOption,
    SetOption,
    shape_of,
    show,
)
from stratos.common.errors import BadRequest


@with_flags_of(ServingAsk)
def batch(
    *,
    model: ModelOption = "",
    changes: SetOption = None,
    device: DeviceOption = "",
    memory_gb: Annotated[float, typer.Option(help="Memory of the device, in place of the table's.")] = 0,
    bandwidth_gb_s: Annotated[float, typer.Option(help="Its bandwidth, in place of the table's.")] = 0,
    tflops: Annotated[float, typer.Option(help="Its dense peak, in place of the table's.")] = 0,
    measured: Annotated[Path | None, typer.Option(help="What `stratos bench --json` printed, to stand beside.")] = None,
    make: Callable[..., ServingAsk],
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """The largest batch that memory and promises allow, its speed, and a sweep of others."""

    def on() -> DeviceSpec:
        return find_device(device, memory_gb=memory_gb, bandwidth_gb_s=bandwidth_gb_s, tflops=tflops)

    show(lambda: optimal_batch_size(shape_of(model, changes), on(), make(), _sweep(measured)), as_json, html)


@with_flags_of(GpuAsk)
def gpu(
    *,
    model: ModelOption = "",
    changes: SetOption = None,
    make: Callable[..., GpuAsk],
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """Which device, how many, how far used, what binds, and what it costs."""
    show(lambda: choose_devices(shape_of(model, changes), make()), as_json, html)


@with_flags_of(ReplicasAsk)
def replicas(*, make: Callable[..., ReplicasAsk], as_json: JsonOption = False, html: HtmlOption = None) -> None:
    """Replicas and devices for a day's requests, streams at once, Redis and router."""
    show(lambda: plan_replicas(make()), as_json, html)


def _sweep(path: Path | None) -> Mapping[int, float]:
    """Output tokens per second by streams; fields as `vllm bench serve` names them.

    Raises:
        BadRequest: no such file; a run that is no closed loop, as its most open requests are no batch; or one that
            measured its client.
    """
    try:
        rows = [] if path is None else json.loads(path.read_text(encoding="utf-8"))
        found = {int(row["max_concurrent_requests"]): float(row["output_throughput"]) for row in rows}
        is_fit = all(_is_fit(row) for row in rows)
    except (OSError, TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        message = f"--measured {path}: it must be a list whose rows have max_concurrent_requests and output_throughput"
        raise BadRequest(message, param="--measured") from error
    if not is_fit:
        message = f"--measured {path}: a run is no closed loop, or its client was the bottleneck"
        raise BadRequest(message, param="--measured")
    for value in (*found, *found.values()):
        above_zero(**{"--measured": value})
    return found


def _is_fit(row: Mapping[str, Any]) -> bool:
    is_closed: bool = row.get("arrivals", "closed").startswith("closed")
    return is_closed and bool(row.get("client", {}).get("is_valid", True))
