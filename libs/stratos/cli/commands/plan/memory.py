"""``stratos plan kv`` and ``memory``."""

from __future__ import annotations

from collections.abc import Callable

from stratos.calculators.hardware.devices import find_device
from stratos.calculators.memory.gpu_memory import MemoryAsk, estimate_gpu_memory
from stratos.calculators.memory.kv import KvAsk, estimate_kv
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


@with_flags_of(KvAsk)
def kv(
    *,
    model: ModelOption = "",
    changes: SetOption = None,
    make: Callable[..., KvAsk],
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """KV cache: bytes of a token, of a sequence in whole blocks, of a batch, of a device's share."""
    show(lambda: estimate_kv(shape_of(model, changes), make()), as_json, html)


@with_flags_of(MemoryAsk)
def memory(
    *,
    model: ModelOption = "",
    changes: SetOption = None,
    device: DeviceOption = "",
    make: Callable[..., MemoryAsk],
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """Weights, KV and run-time of an engine; with --device, how many sequences of 4, 8 and 16 K tokens fit."""
    show(
        lambda: estimate_gpu_memory(shape_of(model, changes), make(), find_device(device) if device else None),
        as_json,
        html,
    )
